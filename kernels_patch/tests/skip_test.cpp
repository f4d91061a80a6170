// ostinato-skip-test [DEVICE [quick]]: products with experts over slot ids as PUBLISH and STAGE leave them, against a plain computation.
//
// Runs on the named device, else on the first one that is no CPU, else on the CPU. For every weight type and every kernel that a batch size
// chooses (one token, few, tiled, dense): slot ids with zero slots in the places of cold experts, and, where the device's kernels leave routes
// out, OSTINATO_SKIPPED_SLOT there instead: none, some, all, all but one, all of a token, the same experts for all tokens. Also the fused product of
// gate and up. Results are checked row by row, so that one wrong row of a thousand is seen, and rows of cold experts have to be zero exactly.
//
// Where tiles that have rows are launched (expert-tiles.cuh), ids of PUBLISH give stock's bits in every case, those of STAGE where stock gives every block
// whole tiles, and wherever in the staging buffer an expert is.
//
// Prints one line per failure, then a summary; returns 1 where something failed. `quick` tries fewer types, batch sizes and numbers of experts.

#include "ostinato/cuda-functions.h"
#include "ostinato/skip.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int64_t N_IN       = 256;
constexpr int64_t N_OUT      = 160; // no multiple of a tile
constexpr int32_t N_EXPERTS  = 9;   // of them k zero slots, where there are any
constexpr int64_t MAX_TOKENS = 512;
constexpr int64_t MAX_K      = 8;

// A row's error against its own size. Kernels round activations to 8 bits; a wrong row is off by 1 and more.
constexpr double MOST_ROW_NMSE = 5e-3;

const std::vector<ggml_type> TYPES = {
    GGML_TYPE_MXFP4, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q2_K,
    GGML_TYPE_Q3_K, GGML_TYPE_Q5_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32,
};

const std::vector<int64_t> TOKENS = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 100, 128, 129, 256, 300, 512 };

// 4, 6 and 8 have kernels of their own for sorting routes.
const std::vector<int64_t> KS = { 3, 4, 6, 8 };

const std::vector<ggml_type> QUICK_TYPES = { GGML_TYPE_MXFP4, GGML_TYPE_Q4_K, GGML_TYPE_F16, GGML_TYPE_F32 };
const std::vector<int64_t> QUICK_TOKENS = { 1, 2, 8, 9, 33 };
const std::vector<int64_t> QUICK_KS = { 3, 4 };

enum class pattern { none, some, all, one_left, whole_tokens, same_everywhere };

const std::map<pattern, const char *> PATTERNS = {
    { pattern::none, "none cold" }, { pattern::some, "half cold" }, { pattern::all, "all cold" }, { pattern::one_left, "all but one cold" },
    { pattern::whole_tokens, "every second token cold" }, { pattern::same_everywhere, "the same experts for all tokens, half cold" },
};

int n_failed = 0;
int n_cases  = 0;

// One type's weights, inputs and what every expert makes of every input.
struct data {
    ggml_type type;
    std::vector<char>  weights;  // (N_EXPERTS, N_OUT, N_IN) in `type`; the last MAX_K + 1 of the slots that are made of it are zeros
    std::vector<float> x;        // (MAX_TOKENS*MAX_K, N_IN)
    std::vector<float> expected; // (N_EXPERTS, MAX_TOKENS*MAX_K, N_OUT)
};

data make_data(ggml_type type, uint32_t seed) {
    data d = { type, {}, {}, {} };
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> weights(N_EXPERTS*N_OUT*N_IN);
    std::generate(weights.begin(), weights.end(), [&] { return normal(random); });
    d.weights.resize(N_EXPERTS*N_OUT*ggml_row_size(type, N_IN));
    ggml_quantize_chunk(type, weights.data(), d.weights.data(), 0, N_EXPERTS*N_OUT, N_IN, nullptr);
    if (type != GGML_TYPE_F32) {
        ggml_get_type_traits(type)->to_float(d.weights.data(), weights.data(), weights.size());
    }
    d.x.resize(MAX_TOKENS*MAX_K*N_IN);
    std::generate(d.x.begin(), d.x.end(), [&] { return normal(random); });

    const int64_t n_inputs = MAX_TOKENS*MAX_K;
    d.expected.resize(N_EXPERTS*n_inputs*N_OUT);
    for (int64_t e = 0; e < N_EXPERTS; ++e) {
        for (int64_t i = 0; i < n_inputs; ++i) {
            for (int64_t row = 0; row < N_OUT; ++row) {
                const float * w = weights.data() + (e*N_OUT + row)*N_IN;
                const float * x = d.x.data() + i*N_IN;
                float lanes[8] = {}; // lets the compiler use vectors
                for (int64_t j = 0; j < N_IN; j += 8) {
                    for (int64_t l = 0; l < 8; ++l) {
                        lanes[l] += w[j + l]*x[j + l];
                    }
                }
                float sum = 0.0f;
                for (const float lane : lanes) {
                    sum += lane;
                }
                d.expected[(e*n_inputs + i)*N_OUT + row] = sum;
            }
        }
    }
    return d;
}

// What a step's routes are: an expert, or -1 for a cold one.
std::vector<int32_t> make_routes(int64_t k, int64_t n_tokens, pattern p, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> experts(N_EXPERTS);
    for (int32_t e = 0; e < N_EXPERTS; ++e) {
        experts[e] = e;
    }
    std::vector<int32_t> routes;
    const int64_t left = n_tokens*k/2;
    for (int64_t t = 0; t < n_tokens; ++t) {
        if (t == 0 || p != pattern::same_everywhere) {
            std::shuffle(experts.begin(), experts.end(), random);
        }
        for (int64_t i = 0; i < k; ++i) {
            bool is_cold = false;
            switch (p) {
                case pattern::none:            break;
                case pattern::some:            is_cold = random() % 2; break;
                case pattern::all:             is_cold = true; break;
                case pattern::one_left:        is_cold = t*k + i != left; break;
                case pattern::whole_tokens:    is_cold = t % 2 == 0; break;
                case pattern::same_everywhere: is_cold = i % 2 == 0; break;
            }
            routes.push_back(is_cold ? -1 : experts[i]);
        }
    }
    return routes;
}

double silu(double v) {
    return v/(1.0 + std::exp(-v));
}

struct options {
    int64_t k;
    int64_t n_tokens;
    bool is_skipping;  // cold routes have OSTINATO_SKIPPED_SLOT, else zero slots
    bool is_broadcast; // a token's routes have the same input, as gate and up projections do
    bool is_fused;     // silu(gate product)*up product, of equal weights
    pattern cold;
};

// Has a graph take ids for an operator's result, which a graph of its own has computed.
void make_result_of(ostinato_op op, ggml_tensor * ids) {
    ids->op = GGML_OP_CUSTOM;
    ids->op_params[OSTINATO_PARAM_TAG] = OSTINATO_OP_TAG;
    ids->op_params[OSTINATO_PARAM_OP]  = op;
}

class device {
public:
    explicit device(ggml_backend_dev_t dev) : dev(dev), backend(ggml_backend_dev_init(dev, nullptr)) {
        const size_t rows = (3*N_OUT + N_IN)*MAX_TOKENS*MAX_K; // floats of the largest graph
        memory.reset(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(dev), rows*sizeof(float) + (1 << 20)));
    }

    // Weights in memory of the device, with zero slots behind the experts.
    void load(const data & d) {
        ctx.reset(ggml_init({ 4*ggml_tensor_overhead(), nullptr, true }));
        for (ggml_tensor *& w : weights) {
            w = ggml_new_tensor_3d(ctx.get(), d.type, N_IN, N_OUT, N_EXPERTS + MAX_K + 1);
        }
        buffer.reset(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()));
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_backend_buffer_clear(buffer.get(), 0);
        for (ggml_tensor * w : weights) {
            ggml_backend_tensor_set(w, d.weights.data(), 0, d.weights.size());
        }
    }

    // (n_tokens*k, N_OUT), or nothing where the device cannot compute it.
    std::vector<float> compute(const data & d, const options & o, const std::vector<int32_t> & routes) {
        ggml_context_ptr graph_ctx(ggml_init({ 16*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true }));
        ggml_context * c = graph_ctx.get();
        ggml_tensor * x    = ggml_new_tensor_3d(c, GGML_TYPE_F32, N_IN, o.is_broadcast ? 1 : o.k, o.n_tokens);
        ggml_tensor * ids  = ggml_new_tensor_2d(c, GGML_TYPE_I32, o.k, o.n_tokens);
        ggml_tensor * node = ggml_mul_mat_id(c, weights[0], x, ids);
        if (o.is_fused) {
            node = ggml_swiglu_split(c, node, ggml_mul_mat_id(c, weights[1], x, ids));
        }
        if (!ggml_backend_dev_supports_op(dev, node->src[0]->op == GGML_OP_MUL_MAT_ID ? node->src[0] : node)) {
            return {};
        }
        ggml_cgraph * graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, node);
        ggml_tallocr allocator = ggml_tallocr_new(memory.get());
        for (ggml_tensor * t = ggml_get_first_tensor(c); t; t = ggml_get_next_tensor(c, t)) {
            ggml_tallocr_alloc(&allocator, t);
            ggml_backend_tensor_memset(t, 0xff, 0, ggml_nbytes(t)); // results that nobody writes are NaN
        }

        std::vector<float> inputs;
        for (int64_t t = 0; t < o.n_tokens; ++t) {
            const int64_t n = o.is_broadcast ? 1 : o.k;
            inputs.insert(inputs.end(), d.x.begin() + t*MAX_K*N_IN, d.x.begin() + (t*MAX_K + n)*N_IN);
        }
        ggml_backend_tensor_set(x, inputs.data(), 0, ggml_nbytes(x));
        std::vector<int32_t> slots(routes.size());
        for (size_t r = 0; r < routes.size(); ++r) {
            slots[r] = routes[r] >= 0 ? routes[r] : o.is_skipping ? OSTINATO_SKIPPED_SLOT : N_EXPERTS + (int32_t) (r % o.k);
        }
        ggml_backend_tensor_set(ids, slots.data(), 0, ggml_nbytes(ids));
        if (o.is_skipping) {
            make_result_of(OSTINATO_OP_STAGE, ids);
        }
        if (ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS) {
            return {};
        }
        std::vector<float> out(ggml_nelements(node));
        ggml_backend_tensor_get(node, out.data(), 0, ggml_nbytes(node));
        return out;
    }

    bool skips(ggml_type type) const {
        const auto * cuda = (const ostinato_cuda_functions *) ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(dev), OSTINATO_CUDA_FUNCTIONS);
        return cuda && cuda->skips_routes(0, type, N_EXPERTS + MAX_K + 1);
    }

    const char * name() const { return ggml_backend_dev_name(dev); }

private:
    ggml_backend_dev_t dev;
    ggml_backend_ptr backend;
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
    ggml_backend_buffer_ptr memory; // of one graph after the other
    ggml_tensor * weights[2] = {};
};

// The first fault, or "".
std::string compare(const data & d, const options & o, const std::vector<int32_t> & routes, const std::vector<float> & found) {
    char text[160];
    for (size_t r = 0; r < routes.size(); ++r) {
        const float * row = found.data() + r*N_OUT;
        const int64_t input = (int64_t) (r/o.k)*MAX_K + (o.is_broadcast ? 0 : (int64_t) (r % o.k));
        double error = 0.0;
        double total = 0.0;
        for (int64_t i = 0; i < N_OUT; ++i) {
            double expected = 0.0;
            if (routes[r] >= 0) {
                expected = d.expected[(routes[r]*MAX_TOKENS*MAX_K + input)*N_OUT + i];
                expected = o.is_fused ? silu(expected)*expected : expected;
            }
            error += (row[i] - expected)*(row[i] - expected);
            total += expected*expected;
        }
        const bool is_right = routes[r] < 0 ? error == 0.0 : error <= MOST_ROW_NMSE*total; // not where it is NaN
        if (!is_right) {
            snprintf(text, sizeof(text), "token %zu, position %zu, %s: an error of %g of %g", r/o.k, r % o.k,
                routes[r] < 0 ? "cold" : "hot", error, total);
            return text;
        }
    }
    return "";
}

void check(device & dev, const data & d, const options & o) {
    const std::vector<int32_t> routes = make_routes(o.k, o.n_tokens, o.cold, (uint32_t) (17*o.k + o.n_tokens));
    const std::vector<float> found = dev.compute(d, o, routes);
    if (found.empty()) {
        return;
    }
    n_cases++;
    std::string fault = compare(d, o, routes, found);
    if (fault.empty() && found != dev.compute(d, o, routes)) {
        fault = "a second time it gives other results";
    }
    if (!fault.empty()) {
        n_failed++;
        printf("%s: %s, %s, %s%s, k %lld, %lld tokens, %s: %s\n", dev.name(), ggml_type_name(d.type), o.is_skipping ? "skipped" : "zero slots",
            o.is_broadcast ? "one input per token" : "one input per route", o.is_fused ? ", fused" : "", (long long) o.k, (long long) o.n_tokens,
            PATTERNS.at(o.cold), fault.c_str());
    }
}

// Whose ids the products have.
enum class ids_of { stock, counting, publish, stage };

// Products with experts of any size: one expert's weights, its rows in another order for each.
class tiled_products {
public:
    tiled_products(ggml_backend_dev_t dev, ggml_type type, int64_t n_in, int64_t n_out, int32_t n_experts) :
        n_in(n_in), n_out(n_out), n_experts(n_experts), backend(ggml_backend_dev_init(dev, nullptr)), rows(n_out*ggml_row_size(type, n_in)),
        ctx(ggml_init({ ggml_tensor_overhead(), nullptr, true })) {
        std::vector<float> values(n_in*n_out);
        fill(values);
        ggml_quantize_chunk(type, values.data(), rows.data(), 0, n_out, n_in, nullptr);
        weights = ggml_new_tensor_3d(ctx.get(), type, n_in, n_out, n_experts);
        buffer.reset(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()));
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }

    // `place_of` every expert; (n_tokens*k, n_out). Every call has the same inputs and routes, by the numbers of both.
    std::vector<float> compute(int64_t n_tokens, int64_t k, ids_of whose, const std::vector<int32_t> & place_of) {
        for (int32_t e = 0; e < n_experts; ++e) {
            std::vector<char> shifted = rows;
            std::rotate(shifted.begin(), shifted.begin() + 5*e % n_out*weights->nb[1], shifted.end());
            ggml_backend_tensor_set(weights, shifted.data(), place_of[e]*weights->nb[2], shifted.size());
        }
        const ggml_context_ptr graph_ctx(ggml_init({ 8*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true }));
        ggml_context * c    = graph_ctx.get();
        ggml_tensor * x     = ggml_new_tensor_3d(c, GGML_TYPE_F32, n_in, 1, n_tokens);
        ggml_tensor * ids   = ggml_new_tensor_2d(c, GGML_TYPE_I32, k, n_tokens);
        ggml_tensor * node  = ggml_mul_mat_id(c, weights, x, ids);
        ggml_cgraph * graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, node);
        const ggml_backend_buffer_ptr memory(ggml_backend_alloc_ctx_tensors(c, backend.get()));
        std::vector<float> inputs(n_in*n_tokens);
        fill(inputs);
        ggml_backend_tensor_set(x, inputs.data(), 0, ggml_nbytes(x));
        std::vector<int32_t> slots;
        std::mt19937 random((uint32_t) (n_tokens*k));
        for (int64_t t = 0; t < n_tokens; ++t) { // the first experts are chosen most
            std::vector<int32_t> experts;
            while ((int64_t) experts.size() < k) {
                const int32_t e = (int32_t) (random() % n_experts*(random() % 100)/100);
                if (std::find(experts.begin(), experts.end(), e) == experts.end()) {
                    experts.push_back(e);
                    slots.push_back(place_of[e]);
                }
            }
        }
        ggml_backend_tensor_set(ids, slots.data(), 0, ggml_nbytes(ids));
        if (whose == ids_of::counting) {
            ids->op_params[OSTINATO_PARAM_TAG] = OSTINATO_OP_TAG;
        } else if (whose != ids_of::stock) {
            make_result_of(whose == ids_of::stage ? OSTINATO_OP_STAGE : OSTINATO_OP_PUBLISH, ids);
            ids->src[2] = x; // in the place of an index table
            ids->op_params[OSTINATO_PARAM_ZERO_SLOT] = OSTINATO_NO_ZERO_SLOT;
        }
        std::vector<float> out(ggml_nelements(node));
        if (ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS) {
            return {};
        }
        ggml_backend_tensor_get(node, out.data(), 0, ggml_nbytes(node));
        return out;
    }

private:
    static void fill(std::vector<float> & values) {
        std::mt19937 random(3);
        std::normal_distribution<float> normal;
        std::generate(values.begin(), values.end(), [&] { return normal(random); });
    }

    int64_t n_in;
    int64_t n_out;
    int32_t n_experts;
    ggml_backend_ptr backend;
    std::vector<char> rows;
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor * weights = nullptr;
};

// What was launched for the tiles that have rows, of the process.
uint64_t n_tiled(ggml_backend_dev_t dev) {
    return ((const ostinato_cuda_functions *) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), OSTINATO_CUDA_FUNCTIONS))->tiled_products();
}

void expect_same(const char * what, ggml_type type, int64_t n_tokens, const std::vector<float> & found, const std::vector<float> & expected) {
    n_cases++;
    if (found.empty() || found.size() != expected.size() || memcmp(found.data(), expected.data(), found.size()*sizeof(float)) != 0) {
        n_failed++;
        printf("%s, %lld tokens: other bits %s\n", ggml_type_name(type), (long long) n_tokens, what);
    }
}

// Products of the tiles that have rows, bit for bit.
void check_tiles(ggml_backend_dev_t dev, ggml_type type) {
    constexpr int64_t K    = 4;
    constexpr int64_t MANY = 512; // tokens for which stock gives every block whole tiles: 16*4*24 of them, on GPUs with up to 170 SMs
    constexpr int32_t N    = 24;
    std::vector<int32_t> in_order(N);
    std::generate(in_order.begin(), in_order.end(), [n = 0]() mutable { return n++; });
    const std::vector<int32_t> reversed(in_order.rbegin(), in_order.rend());
    tiled_products large(dev, type, 512, 2048, N);
    for (const int64_t n_tokens : { (int64_t) 12, (int64_t) 40, (int64_t) 100, MANY }) {
        const std::vector<float> stock = large.compute(n_tokens, K, ids_of::stock, in_order);
        expect_same("than stock's with PUBLISH's ids", type, n_tokens, large.compute(n_tokens, K, ids_of::publish, in_order), stock);
        expect_same("than stock's where routes are counted", type, n_tokens, large.compute(n_tokens, K, ids_of::counting, in_order), stock);
        if (n_tokens == MANY) {
            expect_same("than stock's with STAGE's ids", type, n_tokens, large.compute(n_tokens, K, ids_of::stage, in_order), stock);
        }
    }
    int64_t n_tokens = MANY; // another number each time: no CUDA graph of the one before is replayed
    for (const ids_of whose : { ids_of::stock, ids_of::counting, ids_of::publish, ids_of::stage }) {
        const uint64_t n_before = n_tiled(dev);
        large.compute(++n_tokens, K, whose, in_order);
        n_cases++;
        if (n_tiled(dev) - n_before != (whose == ids_of::stock ? 0 : 1)) {
            n_failed++;
            printf("%s, %lld tokens: %d products were launched for the tiles that have rows\n", ggml_type_name(type), (long long) n_tokens,
                (int) (n_tiled(dev) - n_before));
        }
    }
    for (const int64_t n_out : { (int64_t) 64, (int64_t) 128 }) { // stock divides K
        tiled_products small(dev, type, 512, n_out, N);
        for (const int64_t n_tokens : { (int64_t) 12, (int64_t) 100, (int64_t) 2000 }) {
            expect_same("when experts are in other places", type, n_tokens, small.compute(n_tokens, K, ids_of::stage, reversed),
                small.compute(n_tokens, K, ids_of::stage, in_order));
        }
    }
}

ggml_backend_dev_t find_device(const char * name) {
    ggml_backend_load_all();
    if (name) {
        return ggml_backend_dev_by_name(name);
    }
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        if (ggml_backend_dev_type(ggml_backend_dev_get(i)) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            return ggml_backend_dev_get(i);
        }
    }
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

} // namespace

int main(int argc, char ** argv) {
    ggml_backend_dev_t found = find_device(argc > 1 ? argv[1] : nullptr);
    if (!found) {
        printf("there is no device %s\n", argc > 1 ? argv[1] : "");
        return 1;
    }
    device dev(found);
    const bool is_quick = argc > 2 && strcmp(argv[2], "quick") == 0;
    for (const ggml_type type : is_quick ? QUICK_TYPES : TYPES) {
        const data d = make_data(type, 5 + (uint32_t) type);
        dev.load(d);
        const bool skips = dev.skips(type);
        const int before = n_cases;
        for (const bool is_skipping : { false, true }) {
            if (is_skipping && !skips) {
                continue;
            }
            for (const int64_t n_tokens : is_quick ? QUICK_TOKENS : TOKENS) {
                for (const int64_t k : is_quick ? QUICK_KS : KS) {
                    for (const auto & p : PATTERNS) {
                        check(dev, d, { k, n_tokens, is_skipping, true,  false, p.first });
                        check(dev, d, { k, n_tokens, is_skipping, false, false, p.first });
                        if (n_tokens <= 16) {
                            check(dev, d, { k, n_tokens, is_skipping, true, true, p.first });
                        }
                    }
                }
            }
        }
        if (skips && ggml_is_quantized(type)) {
            check_tiles(found, type);
        }
        printf("%s: %s: %d cases, %s\n", dev.name(), ggml_type_name(type), n_cases - before, skips ? "zero slots and skipped" : "zero slots");
        fflush(stdout);
    }
    printf("%s: %d of %d cases failed\n", dev.name(), n_failed, n_cases);
    return n_failed == 0 && n_cases > 0 ? 0 : 1;
}
