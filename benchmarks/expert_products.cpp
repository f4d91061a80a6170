// expert_products [COLUMNS ROWS EXPERTS PER_TOKEN [TYPE]]: how long the products with one layer's experts take on a GPU, by tokens: llama.cpp's kernels, and the
// engine's for tiles that have rows. The widths in kernels_patch/overlay/ostinato/expert-tiles.cu come from such figures.
//
// What is timed is the chain gate, up, SwiGLU, down: EXPERTS experts of COLUMNS x ROWS (down: ROWS x COLUMNS), PER_TOKEN of them for each token, some chosen a
// hundred times as often as others. 4096 2048 113 6 mxfp4 where nothing is said: the hot experts of a layer of DeepSeek-V4-Flash. Both chains have the same ids:
// llama.cpp's those of no operator of ours, the engine's those of STAGE (ostinato/ops.h). All routes are hot, since llama.cpp's kernels know no others.
// Microseconds, the best of nine series of four. Bits are the same where llama.cpp gives every block whole tiles (expert-tiles.cuh).
//
// Compile with the overlay, ggml's include, and an engine's libraries:
//
//     g++ -O2 -std=gnu++17 -Ikernels_patch/overlay -IGGML/include benchmarks/expert_products.cpp -LBIN -Wl,-rpath,BIN
//         -lggml -lggml-base -lggml-cpu -Wl,--allow-shlib-undefined

#include "ostinato/cuda-functions.h"
#include "ostinato/ops.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {

constexpr int    TOKENS[] = { 16, 32, 64, 128, 249, 512, 1024, 2048 };
constexpr int    N_SERIES = 9;
constexpr int    N_TURNS  = 4;    // of a series
constexpr double SKEW     = 4.6;  // the first expert is chosen exp(SKEW) times as often as the last

struct shape {
    int64_t   n_columns = 4096; // of gate and up
    int64_t   n_rows    = 2048;
    int32_t   n_experts = 113;
    int32_t   k         = 6;    // experts of a token
    ggml_type type      = GGML_TYPE_MXFP4;
};

enum class ids_of { nobody, stage };

// One layer's experts in the memory of a GPU: the rows of one, in another order for each of the others.
struct experts {
    shape s;
    ggml_context_ptr ctx;
    ggml_tensor * gate; // [n_columns, n_rows, n_experts], as up
    ggml_tensor * up;
    ggml_tensor * down; // [n_rows, n_columns, n_experts]
    ggml_backend_buffer_ptr buffer;

    experts(const shape & s, ggml_backend_t backend) :
        s(s), ctx(ggml_init({ 3*ggml_tensor_overhead(), nullptr, true })),
        gate(ggml_new_tensor_3d(ctx.get(), s.type, s.n_columns, s.n_rows, s.n_experts)),
        up(ggml_new_tensor_3d(ctx.get(), s.type, s.n_columns, s.n_rows, s.n_experts)),
        down(ggml_new_tensor_3d(ctx.get(), s.type, s.n_rows, s.n_columns, s.n_experts)),
        buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend)) {
        if (!buffer) {
            throw std::runtime_error("the experts do not fit the GPU's memory");
        }
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        std::mt19937 random(1);
        std::normal_distribution<float> normal(0.0f, 0.05f);
        std::vector<float> values(s.n_columns*s.n_rows);
        std::generate(values.begin(), values.end(), [&] { return normal(random); });
        for (ggml_tensor * t : { gate, up, down }) {
            std::vector<char> expert(t->nb[2]);
            ggml_quantize_chunk(s.type, values.data(), expert.data(), 0, t->ne[1], t->ne[0], nullptr);
            for (int32_t e = 0; e < s.n_experts; ++e) {
                std::rotate(expert.begin(), expert.begin() + 7 % t->ne[1]*t->nb[1], expert.end());
                ggml_backend_tensor_set(t, expert.data(), e*t->nb[2], expert.size());
            }
        }
    }
};

// [n_tokens, k]: different experts for each token, those with small numbers more often. Where an expert lies has nothing to do with how often it is chosen.
std::vector<int32_t> choose_experts(const shape & s, int n_tokens) {
    std::mt19937 random(n_tokens);
    std::uniform_real_distribution<double> uniform(std::numeric_limits<double>::min(), 1.0);
    std::vector<int32_t> place_of(s.n_experts);
    std::iota(place_of.begin(), place_of.end(), 0);
    std::shuffle(place_of.begin(), place_of.end(), random);

    std::vector<int32_t> ids;
    std::vector<std::pair<double, int32_t>> keys(s.n_experts); // the k least ones of exponential variates are a draw by weight, without replacement
    for (int t = 0; t < n_tokens; ++t) {
        for (int32_t e = 0; e < s.n_experts; ++e) {
            keys[e] = { -std::log(uniform(random))*std::exp(SKEW*e/s.n_experts), e };
        }
        std::partial_sort(keys.begin(), keys.begin() + s.k, keys.end());
        for (int32_t i = 0; i < s.k; ++i) {
            ids.push_back(place_of[keys[i].second]);
        }
    }
    return ids;
}

// Gate, up, SwiGLU and down for some tokens, as a graph of its own.
class chain {
public:
    chain(const experts & layer, ggml_backend_t backend, int n_tokens, const std::vector<int32_t> & chosen, ids_of whose) :
        backend(backend), ctx(ggml_init({ 8*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true })) {
        ggml_context * c  = ctx.get();
        ggml_tensor * x   = ggml_new_tensor_3d(c, GGML_TYPE_F32, layer.s.n_columns, 1, n_tokens);
        ggml_tensor * ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, layer.s.k, n_tokens);
        ggml_tensor * g   = ggml_mul_mat_id(c, layer.gate, x, ids); // [n_rows, k, n_tokens]
        ggml_tensor * u   = ggml_mul_mat_id(c, layer.up, x, ids);
        out   = ggml_mul_mat_id(c, layer.down, ggml_swiglu_split(c, g, u), ids); // [n_columns, k, n_tokens]
        graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, out);
        buffer.reset(ggml_backend_alloc_ctx_tensors(c, backend));
        if (!buffer) {
            throw std::runtime_error("the products do not fit the GPU's memory");
        }
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        std::vector<float> inputs(ggml_nelements(x));
        std::generate(inputs.begin(), inputs.end(), [&] { return normal(random); });
        ggml_backend_tensor_set(x, inputs.data(), 0, ggml_nbytes(x));
        ggml_backend_tensor_set(ids, chosen.data(), 0, ggml_nbytes(ids));
        if (whose == ids_of::stage) { // as the operator's result; the graph is built, so nothing computes it
            ids->op = GGML_OP_CUSTOM;
            ids->op_params[OSTINATO_PARAM_TAG] = OSTINATO_OP_TAG;
            ids->op_params[OSTINATO_PARAM_OP]  = OSTINATO_OP_STAGE;
        }
    }

    double microseconds() {
        double best = std::numeric_limits<double>::max();
        for (int series = 0; series < N_SERIES; ++series) {
            ggml_backend_synchronize(backend);
            const int64_t begin = ggml_time_us();
            for (int turn = 0; turn < N_TURNS; ++turn) {
                if (ggml_backend_graph_compute_async(backend, graph) != GGML_STATUS_SUCCESS) {
                    throw std::runtime_error("the products failed");
                }
            }
            ggml_backend_synchronize(backend);
            best = std::min(best, (double) (ggml_time_us() - begin)/N_TURNS);
        }
        return best;
    }

    std::vector<float> results() const {
        std::vector<float> values(ggml_nelements(out));
        ggml_backend_tensor_get(out, values.data(), 0, ggml_nbytes(out));
        return values;
    }

private:
    ggml_backend_t backend;
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor * out;
    ggml_cgraph * graph;
};

ggml_type type_called(const char * name) {
    for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
        if (ggml_is_quantized((ggml_type) t) && !ggml_quantize_requires_imatrix((ggml_type) t) && strcmp(ggml_type_name((ggml_type) t), name) == 0) {
            return (ggml_type) t;
        }
    }
    throw std::runtime_error("no type that can be quantised here has this name");
}

shape shape_of(int argc, char ** argv) {
    shape s;
    if (argc != 1 && argc != 5 && argc != 6) {
        throw std::runtime_error("usage: expert_products [COLUMNS ROWS EXPERTS PER_TOKEN [TYPE]]");
    }
    if (argc > 1) {
        s.n_columns = atoi(argv[1]);
        s.n_rows    = atoi(argv[2]);
        s.n_experts = atoi(argv[3]);
        s.k         = atoi(argv[4]);
    }
    if (argc > 5) {
        s.type = type_called(argv[5]);
    }
    const int64_t block = ggml_blck_size(s.type);
    if (s.n_columns < 1 || s.n_rows < 1 || s.n_columns % block != 0 || s.n_rows % block != 0) {
        throw std::runtime_error("COLUMNS and ROWS have to be multiples of the type's block");
    }
    if (s.k < 1 || s.k > s.n_experts) {
        throw std::runtime_error("PER_TOKEN has to be 1 to EXPERTS");
    }
    return s;
}

void measure(const shape & s) {
    ggml_backend_load_all();
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    if (!dev) {
        throw std::runtime_error("no GPU found");
    }
    const auto * cuda = (const ostinato_cuda_functions *) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), OSTINATO_CUDA_FUNCTIONS);
    if (!cuda || !cuda->skips_routes(0, s.type, s.n_experts)) {
        throw std::runtime_error("these libraries have no products of the engine for this type on this GPU");
    }
    const ggml_backend_ptr backend(ggml_backend_dev_init(dev, nullptr));
    if (!backend) {
        throw std::runtime_error("the GPU cannot be used");
    }
    const experts layer(s, backend.get());
    printf("%s: %d experts of %lld x %lld, %s, %d per token\n", ggml_backend_dev_description(dev), s.n_experts, (long long) s.n_columns, (long long) s.n_rows,
        ggml_type_name(s.type), s.k);
    printf("%6s %16s %14s %14s %7s  bits\n", "tokens", "rows per expert", "llama.cpp, us", "engine, us", "ratio");
    for (const int n_tokens : TOKENS) {
        const std::vector<int32_t> chosen = choose_experts(s, n_tokens);
        // Both exist at once: a CUDA graph is found by the address of its first node, and does not look at what the ids are marked with.
        chain stock(layer, backend.get(), n_tokens, chosen, ids_of::nobody);
        chain engine(layer, backend.get(), n_tokens, chosen, ids_of::stage);
        const double stock_us  = stock.microseconds();
        const double engine_us = engine.microseconds();
        const std::vector<float> expected = stock.results();
        const std::vector<float> found    = engine.results();
        const bool is_same = memcmp(found.data(), expected.data(), found.size()*sizeof(float)) == 0;
        printf("%6d %16.1f %14.0f %14.0f %7.2f  %s\n", n_tokens, (double) n_tokens*s.k/s.n_experts, stock_us, engine_us, stock_us/engine_us,
            is_same ? "the same" : "others");
        fflush(stdout);
    }
}

} // namespace

int main(int argc, char ** argv) {
    try {
        measure(shape_of(argc, argv));
    } catch (const std::exception & e) {
        fprintf(stderr, "expert_products: %s\n", e.what());
        return 1;
    }
    return 0;
}
