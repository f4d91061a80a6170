// ostinato-test-operators: PUBLISH and JOIN on the CPU against a plain computation, route by route in double precision; row kernels and choices in
// the files beside this one that checks.h names.
//
// Prints nothing and returns 0, or one line per failure and 1. Run by tests/e2e/test_architectures.py.

#include "checks.h"

#include "ostinato/expert-pool.h"
#include "ostinato/ops.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

struct shape {
    int64_t n_in = 256, n_ff = 256, n_out = 256, n_experts = 6, k = 3, n_tokens = 5;
    ggml_type gate_type = GGML_TYPE_F32, up_type = GGML_TYPE_F32, down_type = GGML_TYPE_F32;
    bool merged = false, gated = true, biases = false, scales = false, weight_before = false;
    ostinato_activation act = OSTINATO_ACT_SILU;
};

// Tensors with random content in memory of the CPU backend.
class fixture {
public:
    explicit fixture(const shape & s) : s(s) {
        ctx.reset(ggml_init({ 64*ggml_tensor_overhead(), nullptr, true }));
        const auto weight = [&](ggml_type type, int64_t columns, int64_t rows) {
            return ggml_new_tensor_3d(ctx.get(), type, columns, rows, s.n_experts);
        };
        const auto per_row = [&](int64_t rows) { return s.biases ? ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, rows, s.n_experts) : nullptr; };
        const auto single  = [&]() { return s.scales ? ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, s.n_experts) : nullptr; };
        if (s.merged) {
            ffn.gate_up   = weight(s.up_type, s.n_in, 2*s.n_ff);
            ffn.gate_up_b = per_row(2*s.n_ff);
        } else {
            ffn.up   = weight(s.up_type, s.n_in, s.n_ff);
            ffn.up_b = per_row(s.n_ff);
            if (s.gated) {
                ffn.gate   = weight(s.gate_type, s.n_in, s.n_ff);
                ffn.gate_b = per_row(s.n_ff);
                ffn.gate_s = single();
            }
        }
        ffn.up_s   = single();
        ffn.down   = weight(s.down_type, s.n_ff, s.n_out);
        ffn.down_b = per_row(s.n_out);
        ffn.down_s = single();
        ffn.act = s.act;
        ffn.a   = 1.5f;
        ffn.b   = 2.5f;
        ffn.weight_before = s.weight_before;

        counts  = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, s.n_experts, 2);
        ids     = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, s.k + 2, s.n_tokens); // a strided view of it is used, as top-k gives one
        x       = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, s.n_in, s.n_tokens);
        weights = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, 1, s.k, s.n_tokens);
        gpu     = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, s.n_out, s.n_tokens);
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));

        for (const auto & tensor : ostinato_per_expert_tensors) {
            fill(const_cast<ggml_tensor *>(ffn.*tensor.member), tensor.dim == 2 ? 0.1f : 0.5f);
        }
        fill(x, 1.0f);
        fill(weights, 1.0f);
        fill(gpu, 1.0f);
    }

    void set_ids(const std::vector<int32_t> & routes) {
        std::vector<int32_t> padded(ggml_nelements(ids), 0);
        for (size_t r = 0; r < routes.size(); ++r) {
            padded[r/s.k*(s.k + 2) + r % s.k] = routes[r];
        }
        memcpy(ids->data, padded.data(), ggml_nbytes(ids));
    }

    const shape s;
    ostinato_expert_ffn ffn;
    ggml_tensor * counts;
    ggml_tensor * ids;
    ggml_tensor * x;
    ggml_tensor * weights;
    ggml_tensor * gpu;

private:
    void fill(ggml_tensor * tensor, float deviation) {
        if (!tensor) {
            return;
        }
        std::normal_distribution<float> normal(0.0f, deviation);
        std::vector<float> values(ggml_nelements(tensor));
        std::generate(values.begin(), values.end(), [&] { return normal(random); });
        ggml_quantize_chunk(tensor->type, values.data(), tensor->data, 0, ggml_nrows(tensor), tensor->ne[0], nullptr);
    }

    std::mt19937 random { 7 };
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
};

std::vector<float> row_of(const ggml_tensor * weight, int64_t row, int64_t expert) {
    std::vector<float> values(weight->ne[0]);
    const char * data = (const char *) weight->data + expert*weight->nb[2] + row*weight->nb[1];
    if (weight->type == GGML_TYPE_F32) {
        memcpy(values.data(), data, values.size()*sizeof(float));
    } else {
        ggml_get_type_traits(weight->type)->to_float(data, values.data(), weight->ne[0]);
    }
    return values;
}

std::vector<double> project(
        const ggml_tensor * weight, const ggml_tensor * bias, const ggml_tensor * scale, int64_t expert, const std::vector<double> & in) {
    std::vector<double> out(weight->ne[1]);
    for (int64_t row = 0; row < weight->ne[1]; ++row) {
        const std::vector<float> w = row_of(weight, row, expert);
        for (size_t i = 0; i < in.size(); ++i) {
            out[row] += w[i]*in[i];
        }
        out[row] *= scale ? ((const float *) scale->data)[expert] : 1.0;
        out[row] += bias ? ((const float *) bias->data)[expert*weight->ne[1] + row] : 0.0;
    }
    return out;
}

double activation(const ostinato_expert_ffn & ffn, double g, double u, bool gated) {
    const double a = ffn.a;
    const double b = ffn.b;
    const auto sigmoid = [](double v) { return 1.0/(1.0 + std::exp(-v)); };
    const double up = gated ? u : 1.0;
    switch (ffn.act) {
        case OSTINATO_ACT_SILU:         return g*sigmoid(g)*up;
        case OSTINATO_ACT_SWIGLU_CLAMP: return std::min(g, a)*sigmoid(std::min(g, a))*std::clamp(u, -a, a);
        case OSTINATO_ACT_SILU_CLAMP:   return std::min(g*sigmoid(g), a)*std::clamp(u, -a, a);
        case OSTINATO_ACT_SWIGLU_OAI:   return std::min(g, b)*sigmoid(a*std::min(g, b))*(std::clamp(u, -b, b) + 1.0);
        case OSTINATO_ACT_SITU:         return a*std::tanh(g/a)*sigmoid(g)*b*std::tanh(u/b);
        case OSTINATO_ACT_GELU:         return 0.5*g*(1.0 + std::tanh(0.7978845608028654*g*(1.0 + 0.044715*g*g)))*up;
        case OSTINATO_ACT_RELU:         return std::max(g, 0.0)*up;
        case OSTINATO_ACT_RELU_SQR:     return std::max(g, 0.0)*std::max(g, 0.0);
    }
    return NAN;
}

// What JOIN has to give: the GPU branch's output plus every route whose expert exists and is cold.
std::vector<double> expected_output(const fixture & f, const std::vector<int32_t> & routes, const std::set<int32_t> & hot) {
    const shape & s = f.s;
    std::vector<double> out((const float *) f.gpu->data, (const float *) f.gpu->data + s.n_out*s.n_tokens);
    const bool gated = s.merged || s.gated;
    for (size_t r = 0; r < routes.size(); ++r) {
        const int32_t expert = routes[r];
        if (expert < 0 || expert >= s.n_experts || hot.count(expert)) {
            continue;
        }
        const int64_t token  = r/s.k;
        const double  weight = ((const float *) f.weights->data)[r];
        std::vector<double> in((const float *) f.x->data + token*s.n_in, (const float *) f.x->data + (token + 1)*s.n_in);
        for (double & value : in) {
            value *= s.weight_before ? weight : 1.0;
        }
        std::vector<double> gate;
        std::vector<double> up;
        if (s.merged) {
            const std::vector<double> both = project(f.ffn.gate_up, f.ffn.gate_up_b, f.ffn.up_s, expert, in);
            gate.assign(both.begin(), both.begin() + s.n_ff);
            up  .assign(both.begin() + s.n_ff, both.end());
        } else {
            up   = project(f.ffn.up, f.ffn.up_b, f.ffn.up_s, expert, in);
            gate = s.gated ? project(f.ffn.gate, f.ffn.gate_b, f.ffn.gate_s, expert, in) : up;
        }
        for (int64_t i = 0; i < s.n_ff; ++i) {
            up[i] = activation(f.ffn, gate[i], up[i], gated);
        }
        const std::vector<double> down = project(f.ffn.down, f.ffn.down_b, f.ffn.down_s, expert, up);
        for (int64_t i = 0; i < s.n_out; ++i) {
            out[token*s.n_out + i] += down[i]*(s.weight_before ? 1.0 : weight);
        }
    }
    return out;
}

double nmse(const std::vector<float> & values, const std::vector<double> & reference) {
    double error = 0.0;
    double total = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
        error += (values[i] - reference[i])*(values[i] - reference[i]);
        total += reference[i]*reference[i];
    }
    return error/total;
}

ostinato_expert_pool make_pool(const std::vector<ostinato_pool_layer> & layers, const ostinato_expert_pool::hot_sets & hot) {
    const ostinato_pool_memory memory = { ggml_backend_cpu_buffer_type() };
    ostinato_expert_pool pool(layers, memory, ostinato_expert_pool::bytes_for(layers, hot, memory));
    pool.set_hot(hot, [&](size_t layer, int32_t expert) { return ostinato_expert_in_tensors(*layers[layer].ffn, expert); });
    return pool;
}

struct result {
    std::vector<int32_t> words; // of PUBLISH alone, before JOIN uses the memory again
    std::vector<int32_t> counts;
    std::vector<float>   out;
};

result run(fixture & f, const std::vector<int32_t> & routes, const std::set<int32_t> & hot, int n_threads) {
    const shape & s = f.s;
    f.set_ids(routes);
    memset(f.counts->data, 0, ggml_nbytes(f.counts));
    const ostinato_expert_pool pool = make_pool({ { &f.ffn, (int32_t) s.n_experts, (int32_t) s.k } }, { std::vector<int32_t>(hot.begin(), hot.end()) });
    const ostinato_layer_ops ops = { pool.index_table(0), pool.zero_slot(0), &f.ffn, nullptr, 0 };

    ggml_backend_ptr backend(ggml_backend_cpu_init());
    ggml_backend_cpu_set_n_threads(backend.get(), n_threads);
    const auto compute = [&](bool join, std::vector<char> & bytes) {
        ggml_context_ptr ctx(ggml_init({ 32*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true }));
        ggml_tensor * ids = ggml_view_2d(ctx.get(), f.ids, s.k, s.n_tokens, f.ids->nb[1], 0);
        ggml_tensor * slot_ids = nullptr;
        ggml_tensor * node = ostinato_publish(ctx.get(), ops, ids, f.counts, f.x, f.weights, 1, &slot_ids);
        if (join) {
            node = ostinato_join(ctx.get(), ops, f.gpu, node, f.x, f.weights);
        }
        ggml_cgraph * graph = ggml_new_graph(ctx.get());
        ggml_build_forward_expand(graph, node);
        ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));
        ggml_backend_graph_compute(backend.get(), graph);
        bytes.assign((const char *) node->data, (const char *) node->data + ggml_nbytes(node));
    };
    result r;
    std::vector<char> bytes;
    compute(false, bytes);
    r.words.assign((const int32_t *) bytes.data(), (const int32_t *) bytes.data() + bytes.size()/sizeof(int32_t));
    r.counts.assign((const int32_t *) f.counts->data, (const int32_t *) f.counts->data + ggml_nelements(f.counts));
    compute(true, bytes);
    r.out.assign((const float *) bytes.data(), (const float *) bytes.data() + bytes.size()/sizeof(float));
    return r;
}

void check_publish(const char * name, const fixture & f, const std::vector<int32_t> & routes, const std::set<int32_t> & hot, result & r) {
    const shape & s = f.s;
    const ostinato_handoff handoff(r.words.data(), (int32_t) routes.size());
    std::vector<int32_t> counts(s.n_experts, 0);
    std::vector<int32_t> cold;
    for (size_t i = 0; i < routes.size(); ++i) {
        const bool is_valid = routes[i] >= 0 && routes[i] < s.n_experts;
        const bool is_hot   = is_valid && hot.count(routes[i]);
        const int32_t expected = is_hot ? (int32_t) std::distance(hot.begin(), hot.find(routes[i])) : (int32_t) (hot.size() + i % s.k);
        if (handoff.slot_ids[i] != expected) {
            fail("%s: route %zu: expected slot %d, found %d", name, i, expected, handoff.slot_ids[i]);
        }
        if (is_valid) {
            counts[routes[i]]++;
        }
        if (is_valid && !is_hot) {
            cold.push_back((int32_t) i);
        }
    }
    std::stable_sort(cold.begin(), cold.end(), [&](int32_t a, int32_t b) { return routes[a] < routes[b]; });
    const int32_t n_cold = handoff.header[ostinato_handoff::N_COLD];
    if (n_cold != (int32_t) cold.size() || !std::equal(cold.begin(), cold.end(), handoff.cold)) {
        fail("%s: expected %zu cold routes by expert, found %d or another order", name, cold.size(), n_cold);
    }
    int32_t begin = 0;
    for (int32_t g = 0; g < handoff.header[ostinato_handoff::N_GROUPS]; ++g) {
        for (; begin < handoff.groups[2*g + 1] && begin < n_cold; ++begin) {
            if (routes[handoff.cold[begin]] != handoff.groups[2*g]) {
                fail("%s: group %d holds a route of another expert", name, g);
            }
        }
    }
    if (begin != n_cold) {
        fail("%s: the groups end at cold route %d of %d", name, begin, n_cold);
    }
    if (!std::equal(counts.begin(), counts.end(), r.counts.begin() + s.n_experts)) {
        fail("%s: routes are counted wrong", name);
    }
    if (std::any_of(r.counts.begin(), r.counts.begin() + s.n_experts, [](int32_t n) { return n != 0; })) {
        fail("%s: routes of one phase are counted in the other", name);
    }
}

void check(const char * name, const shape & s, const std::vector<int32_t> & routes, const std::set<int32_t> & hot, double most) {
    fixture f(s);
    result one = run(f, routes, hot, 1);
    result many = run(f, routes, hot, 3);
    check_publish(name, f, routes, hot, one);
    if (memcmp(one.out.data(), many.out.data(), one.out.size()*sizeof(float)) != 0) {
        fail("%s: the result depends on the number of threads", name);
    }
    const double error = nmse(one.out, expected_output(f, routes, hot));
    if (!(error <= most)) {
        fail("%s: expected an NMSE of at most %.1e, found %.1e", name, most, error);
    }
}

std::vector<int32_t> distinct_routes(const shape & s) {
    std::mt19937 random(3);
    std::vector<int32_t> experts(s.n_experts);
    for (int32_t e = 0; e < s.n_experts; ++e) {
        experts[e] = e;
    }
    std::vector<int32_t> routes;
    for (int64_t t = 0; t < s.n_tokens; ++t) {
        std::shuffle(experts.begin(), experts.end(), random);
        routes.insert(routes.end(), experts.begin(), experts.begin() + s.k);
    }
    return routes;
}

// Rounding of f32 sums; of gelu, which ggml looks up in f16; of inputs that quantised products round to 8 bits.
const double F32_NMSE   = 1e-12;
const double GELU_NMSE  = 1e-6;
const double QUANT_NMSE = 2e-3;

void check_sets_and_ids() {
    const shape s;
    const std::vector<int32_t> routes = distinct_routes(s);
    check("mixed set", s, routes, { 1, 2, 5 }, F32_NMSE);
    check("empty set", s, routes, {}, F32_NMSE);
    check("full set",  s, routes, { 0, 1, 2, 3, 4, 5 }, 0.0);
    check("duplicates within a token", s, { 0, 0, 0,  4, 1, 4,  5, 5, 2,  3, 3, 3,  2, 0, 2 }, { 1, 2, 5 }, F32_NMSE);
    check("ids that name no expert", s, { -1, 0, 1,  -1, -1, -1,  6, 5, 4,  3, 1 << 30, 2,  0, -1, 0 }, { 1, 2, 5 }, F32_NMSE);

    shape one = s;
    one.k = one.n_tokens = 1;
    check("one cold route", one, { 3 }, { 0 }, F32_NMSE);
    check("one hot route",  one, { 3 }, { 3 }, 0.0);

    shape single = s;
    single.n_experts = single.k = 1;
    check("one expert", single, { 0, 0, 0, 0, 0 }, {}, F32_NMSE);

    shape large = s;
    large.n_in = large.n_ff = large.n_out = 32;
    large.n_experts = 64;
    large.k = 8;
    large.n_tokens = 2048;
    check("many routes", large, distinct_routes(large), { 0, 3, 9, 10, 40, 63 }, F32_NMSE);

    shape uneven = s;
    uneven.n_in = 96;
    uneven.n_ff = 33;
    uneven.n_out = 65;
    check("uneven sizes", uneven, routes, { 4 }, F32_NMSE);
}

// Layers that keep the stock nodes: the router's ids are counted, marked for their products, and what they were.
void check_counting() {
    constexpr int64_t EXPERTS = 8;
    constexpr int64_t TOKENS  = 5;
    constexpr int64_t K       = 3;
    std::vector<int32_t> counted[2]; // without counting, with it
    for (const bool is_counting : { false, true }) {
        ggml_context_ptr ctx(ggml_init({ (size_t) 1 << 20, nullptr, false }));
        ggml_tensor * logits = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, EXPERTS, TOKENS);
        std::mt19937 random(4);
        for (int64_t i = 0; i < EXPERTS*TOKENS; ++i) {
            ((float *) logits->data)[i] = std::normal_distribution<float>()(random);
        }
        ggml_tensor * ids    = ggml_argsort_top_k(ctx.get(), logits, (int) K);
        ggml_tensor * counts = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, EXPERTS, 2);
        memset(counts->data, 0, ggml_nbytes(counts));
        ggml_cgraph * graph = ggml_new_graph(ctx.get());
        ggml_build_forward_expand(graph, is_counting ? ostinato_publish_counts(ctx.get(), ids, counts, 0) : ids);
        ggml_graph_compute_with_ctx(ctx.get(), graph, 1);
        if (ostinato_is_counted(ids) != is_counting) {
            fail("ids of a layer are%s marked as counted", is_counting ? " not" : "");
        }
        std::vector<int32_t> expected(2*EXPERTS, 0);
        for (int64_t t = 0; t < TOKENS; ++t) {
            for (int64_t i = 0; i < K; ++i) {
                const int32_t id = *(const int32_t *) ((const char *) ids->data + t*ids->nb[1] + i*ids->nb[0]);
                counted[is_counting].push_back(id);
                expected[id] += is_counting;
            }
        }
        if (memcmp(counts->data, expected.data(), ggml_nbytes(counts)) != 0) {
            fail("routes of a layer with the stock nodes are counted wrong");
        }
    }
    if (counted[0] != counted[1]) {
        fail("counting changes the router's ids");
    }
}

void check_forms() {
    for (int act = OSTINATO_ACT_SILU; act <= OSTINATO_ACT_RELU_SQR; ++act) {
        for (const bool merged : { false, true }) {
            shape s;
            s.act    = (ostinato_activation) act;
            s.merged = merged;
            s.gated  = act != OSTINATO_ACT_RELU_SQR;
            s.biases = s.scales = true;
            if (merged && !s.gated) {
                continue;
            }
            const std::string name = "activation " + std::to_string(act) + (merged ? ", merged" : "");
            check(name.c_str(), s, distinct_routes(s), { 2, 3 }, act == OSTINATO_ACT_GELU ? GELU_NMSE : F32_NMSE);
        }
    }
    shape s;
    s.gated = false;
    check("no gate", s, distinct_routes(s), { 2 }, F32_NMSE);
    s = shape();
    s.weight_before = true;
    s.n_in  = 512;
    s.n_out = 128;
    check("weight before the experts", s, distinct_routes(s), { 2 }, F32_NMSE);
    s.up_type = GGML_TYPE_Q8_0;
    check("weight before the experts, two types", s, distinct_routes(s), { 2 }, QUANT_NMSE);
}

void check_types() {
    for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
        const ggml_type type = (ggml_type) t;
        const auto * traits = ggml_get_type_traits_cpu(type);
        if (!traits->vec_dot || !ggml_get_type_traits(type)->to_float) {
            continue;
        }
        const int64_t n = std::max<int64_t>(256, ggml_blck_size(type));
        const std::vector<char> zeros(ggml_row_size(type, n), 0);
        std::vector<float> values(n, 1.0f);
        ggml_get_type_traits(type)->to_float(zeros.data(), values.data(), n);
        if (std::any_of(values.begin(), values.end(), [](float v) { return v != 0.0f; })) {
            fail("%s: a slot of zero bytes is not zero", ggml_type_name(type));
        }
        const bool is_slow = type == GGML_TYPE_IQ2_S || type == GGML_TYPE_IQ1_M; // to quantise to: the tables alone take seconds
        if (is_slow || ggml_quantize_requires_imatrix(type)) {
            continue;
        }
        shape s;
        s.n_experts = 3;
        s.k         = 2;
        s.n_tokens  = 3;
        s.n_out     = 16;
        s.gate_type = s.up_type = s.down_type = type;
        check(ggml_type_name(type), s, distinct_routes(s), { 1 }, QUANT_NMSE);
        s.up_type = GGML_TYPE_Q4_K;
        s.down_type = GGML_TYPE_BF16;
        check((std::string("q4_K with ") + ggml_type_name(type)).c_str(), s, distinct_routes(s), { 1 }, QUANT_NMSE);
    }
}

// A lent place is a slot of its layer's tensors. Layers of one kind have the same places, and no place is of two kinds or a hot expert's.
void check_lent_places(const ostinato_expert_pool & pool, const std::vector<ostinato_pool_layer> & layers, int round) {
    std::vector<std::pair<const char *, const char *>> ranges; // of kinds, and of slots
    std::vector<const char *> base_of;                         // by kind
    for (size_t i = 0; i < layers.size(); ++i) {
        const ostinato_expert_ffn & slots   = pool.slots(i);
        const ostinato_expert_ffn * staging = pool.staging(i);
        const ostinato_lent_places lent     = pool.lent_places(i);
        const ggml_tensor * first = slots.gate_up ? slots.gate_up : slots.gate;
        if (!staging || (lent.n == 0) != (layers[i].n_zero_slots > 0)) {
            fail("round %d, layer %zu: %d lent places", round, i, lent.n);
            return;
        }
        for (const auto & weight : ostinato_record_weights) {
            const ggml_tensor * slot  = slots.*weight.member;
            const ggml_tensor * stage = staging->*weight.member;
            if (slot && (slot->nb[2] != stage->nb[2] || ((const char *) stage->data - (const char *) slot->data) % (ptrdiff_t) slot->nb[2] != 0)) {
                fail("round %d, layer %zu: staging is not at a whole number of slots", round, i);
            }
        }
        if (lent.n > 0 && (lent.base != (const char *) first->data + lent.slot*first->nb[2] || lent.stride != first->nb[2])) {
            fail("round %d, layer %zu: the first lent place is not slot %d", round, i, lent.slot);
        }
        base_of.resize(std::max(base_of.size(), lent.kind + 1));
        if (lent.n > 0 && base_of[lent.kind] && base_of[lent.kind] != lent.base) {
            fail("round %d, layer %zu: its kind's places are elsewhere", round, i);
        }
        if (lent.n > 0 && !base_of[lent.kind]) {
            base_of[lent.kind] = lent.base;
            ranges.emplace_back(lent.base, lent.base + lent.n*lent.stride);
        }
        ranges.emplace_back((const char *) first->data, (const char *) first->data + first->ne[2]*first->nb[2]);
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t r = 1; r < ranges.size(); ++r) {
        if (ranges[r].first < ranges[r - 1].second) {
            fail("round %d: records overlap", round);
        }
    }
}

// The tiled kernels read past the last row of a kind's last layer.
void check_zeros_behind(const ostinato_expert_pool & pool, size_t n_layers, int round) {
    constexpr size_t TAIL = 64*1024;
    std::map<size_t, const char *> end_of; // by kind
    for (size_t i = 0; i < n_layers; ++i) {
        const ostinato_expert_ffn & slots = pool.slots(i);
        const ggml_tensor * first = slots.gate_up ? slots.gate_up : slots.gate;
        const char *& end = end_of[pool.lent_places(i).kind];
        end = std::max(end, (const char *) first->data + first->ne[2]*first->nb[2]);
    }
    for (const auto & [kind, end] : end_of) {
        if (!std::all_of(end, end + TAIL, [](char c) { return c == 0; })) {
            fail("round %d, kind %zu: no zeros behind the last slot", round, kind);
        }
    }
}

// Any sequence of sets leaves the pool as a new one with the last set, but for the order of slots; zeros included.
void check_pool_moves() {
    std::mt19937 random(5);
    std::vector<std::unique_ptr<fixture>> fixtures;
    std::vector<ostinato_pool_layer> layers;
    for (int i = 0; i < 6; ++i) { // the last two are of the kinds of the first and third
        shape s;
        s.n_experts = 6 + i;
        s.n_ff      = 32 << i % 4;
        s.biases    = i % 2 == 1;
        s.merged    = i == 2;
        if (i >= 4) {
            s.n_ff   = i == 4 ? 32 : 128;
            s.biases = false;
            s.merged = i == 5;
        }
        fixtures.push_back(std::make_unique<fixture>(s));
        layers.push_back({ &fixtures.back()->ffn, (int32_t) s.n_experts, i % 2 == 1 && s.biases ? (int32_t) s.k : 0 });
    }
    ostinato_expert_pool::hot_sets all;
    for (const auto & layer : layers) {
        all.emplace_back();
        for (int32_t e = 0; e < layer.n_experts; ++e) {
            all.back().push_back(e);
        }
    }
    const ostinato_pool_memory memory = { ggml_backend_cpu_buffer_type() };
    const ostinato_expert_pool::hot_sets none(layers.size());
    ostinato_expert_pool pool(layers, memory, ostinato_expert_pool::bytes_for(layers, all, memory), 4*ostinato_expert_pool::least_lent(layers));
    for (int round = 0; round < 200; ++round) {
        ostinato_expert_pool::hot_sets hot = all;
        for (auto & experts : hot) {
            std::shuffle(experts.begin(), experts.end(), random);
            experts.resize(random() % (experts.size() + 1));
        }
        size_t file_bytes = 0;
        for (size_t i = 0; i < layers.size(); ++i) {
            file_bytes += hot[i].size()*ostinato_expert_bytes(*layers[i].ffn);
        }
        const size_t needed   = ostinato_expert_pool::bytes_for(layers, hot, memory);
        const size_t capacity = needed + random() % 4096;
        if (ostinato_expert_pool::room_for(layers, needed - 1, memory) >= file_bytes && file_bytes > 0) {
            fail("round %d: room for %zu bytes of experts, which do not fit", round, file_bytes);
        }
        if (ostinato_expert_pool::room_for(layers, capacity, memory) > capacity - ostinato_expert_pool::bytes_for(layers, none, memory)) {
            fail("round %d: more room than the pool of %zu bytes has", round, capacity);
        }
        pool.set_hot(hot, [&](size_t layer, int32_t expert) { return ostinato_expert_in_tensors(*layers[layer].ffn, expert); });
        for (size_t i = 0; i < layers.size(); ++i) {
            const int32_t * table = (const int32_t *) pool.index_table(i)->data;
            std::set<int32_t> slots;
            for (int32_t e = 0; e < layers[i].n_experts; ++e) {
                const bool is_hot = std::find(hot[i].begin(), hot[i].end(), e) != hot[i].end();
                if (is_hot != (table[e] >= 0) || (is_hot && (table[e] >= (int32_t) hot[i].size() || !slots.insert(table[e]).second))) {
                    fail("round %d, layer %zu: expert %d has slot %d", round, i, e, table[e]);
                    return;
                }
            }
            for (const auto & [member, dim] : ostinato_per_expert_tensors) {
                const ggml_tensor * slots_of = pool.slots(i).*member;
                const ggml_tensor * experts  = layers[i].ffn->*member;
                if (!experts) {
                    continue;
                }
                const size_t bytes = experts->nb[dim];
                const size_t slot  = slots_of->nb[dim];
                for (const int32_t e : hot[i]) {
                    if (memcmp((const char *) slots_of->data + table[e]*slot, (const char *) experts->data + e*bytes, bytes) != 0) {
                        fail("round %d, layer %zu: expert %d is not in its slot", round, i, e);
                        return;
                    }
                }
                const std::vector<char> zeros(bytes, 0);
                for (int32_t zero = 0; zero < layers[i].n_zero_slots; ++zero) {
                    if (memcmp((const char *) slots_of->data + (hot[i].size() + zero)*slot, zeros.data(), bytes) != 0) {
                        fail("round %d, layer %zu: a zero slot is not zero", round, i);
                        return;
                    }
                }
            }
        }
        check_lent_places(pool, layers, round);
        check_zeros_behind(pool, layers.size(), round);
        for (size_t i = 0; i < layers.size(); ++i) { // whoever borrows them leaves something there
            const ostinato_lent_places lent = pool.lent_places(i);
            memset(lent.base, 0x5a, lent.n*lent.stride);
        }
        if (pool.used() + pool.lent() != pool.capacity() + 4*ostinato_expert_pool::least_lent(layers)) {
            fail("round %d: %zu bytes used and %zu lent are not the pool", round, pool.used(), pool.lent());
        }
    }
}

} // namespace

int main() {
    check_choices();
    ggml_cpu_init(); // the tables that ggml's row kernels read
    check_pool_moves();
    check_all_row_kernels();
    check_sets_and_ids();
    check_counting();
    check_forms();
    check_types();
    return n_failed == 0 ? 0 : 1;
}
