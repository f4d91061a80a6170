// ostinato-test-operators: PUBLISH and JOIN on the CPU against a plain computation, route by route in double precision; the pool, row kernels and
// choices in the files beside this one that checks.h names.
//
// Prints nothing and returns 0, or one line per failure and 1. Run by tests/e2e/test_architectures.py.

#include "checks.h"
#include "layer-fixture.h"

#include "ostinato/expert-pool.h"
#include "ostinato/ops.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

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
