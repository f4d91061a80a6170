// row_kernels [THREADS [MIB]]: how fast the CPU branch's row kernels are, by type and number of inputs: row by row, and 16 rows at once. The thresholds
// in kernels_patch/overlay/ostinato/row-kernels.* come from its figures.
//
// First table: nanoseconds for 16 rows of 32 columns, weights in the cache of each thread. Second: bytes of weights per second over MIB of memory (1,024),
// every thread reading a run of its own, as the workers do. 2,048 columns. Compile with the overlay, ggml's include and src, and an engine's libraries:
//
//     g++ -O3 -std=gnu++17 -Ikernels_patch/overlay -IGGML/include -IGGML/src benchmarks/row_kernels.cpp
//         kernels_patch/overlay/ostinato/row-kernels.cpp -LBIN -Wl,-rpath,BIN -lggml -lggml-cpu -lggml-base -lpthread

#include "ostinato/row-kernels.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int64_t COLUMNS     = 2048;
constexpr int     CACHED_ROWS = 64;
constexpr int     INPUTS[]    = { 1, 2, 3, 4, 6, 8, 12, 16 };

using clock_type = std::chrono::steady_clock;

enum class way { rows, tile };

struct weights {
    ostinato_row_kernel kernel;
    size_t row_bytes;
    std::vector<char> rows;   // CACHED_ROWS random ones
    std::vector<char> inputs; // aligned by `x`
    const char * x[OSTINATO_TILE_INPUTS];

    explicit weights(ggml_type type) : kernel(ostinato_find_row_kernel(type, COLUMNS)), row_bytes(ggml_row_size(type, COLUMNS)) {
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        std::vector<float> values(CACHED_ROWS*COLUMNS);
        std::generate(values.begin(), values.end(), [&] { return normal(random); });
        rows.resize(CACHED_ROWS*row_bytes);
        ggml_quantize_chunk(type, values.data(), rows.data(), 0, CACHED_ROWS, COLUMNS, nullptr);
        const size_t bytes = ostinato_input_row_bytes(kernel, COLUMNS);
        inputs.resize((OSTINATO_TILE_INPUTS + 1)*bytes);
        char * first = (char *) (((uintptr_t) inputs.data() + 63) & ~(uintptr_t) 63);
        for (int i = 0; i < OSTINATO_TILE_INPUTS; ++i) {
            ostinato_input_row(kernel, values.data() + i*COLUMNS, first + i*bytes, COLUMNS);
            x[i] = first + i*bytes;
        }
    }

    bool has(way by) const { return by == way::rows || kernel.tile; }

    void multiply(way by, const char * w, const char * ahead, int n_x) const {
        float out[OSTINATO_TILE][OSTINATO_TILE_INPUTS];
        if (by == way::tile) {
            ostinato_dot_tile(kernel, COLUMNS, out, w, row_bytes, ahead, x, n_x);
            return;
        }
        for (int r = 0; r < OSTINATO_TILE; ++r) {
            ostinato_dot_rows(kernel, COLUMNS, out[r], w + r*row_bytes, ahead + r*row_bytes, x, n_x);
        }
    }
};

// Seconds until all threads have done their part, the least of three times.
template <typename part>
double seconds(int n_threads, const part & work) {
    double best = 1e9;
    for (int round = 0; round < 3; ++round) {
        std::atomic<int> n_ready { 0 };
        std::vector<std::thread> threads;
        std::atomic<int64_t> begin { 0 };
        for (int ith = 0; ith < n_threads; ++ith) {
            threads.emplace_back([&, ith] {
                if (++n_ready == n_threads) {
                    begin.store(clock_type::now().time_since_epoch().count());
                }
                while (begin.load() == 0) {
                }
                work(ith);
            });
        }
        for (std::thread & thread : threads) {
            thread.join();
        }
        const clock_type::duration took(clock_type::now().time_since_epoch().count() - begin.load());
        best = std::min(best, std::chrono::duration<double>(took).count());
    }
    return best;
}

template <typename cell>
void print_table(const char * title, int precision, const cell & measure) {
    printf("%s\n%-13s", title, "");
    for (const int n_x : INPUTS) {
        printf("%8d", n_x);
    }
    printf("\n");
    for (const ggml_type type : { GGML_TYPE_MXFP4, GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K }) {
        const weights w(type);
        const char * const names[] = { "rows", "tile" };
        for (const way by : { way::rows, way::tile }) {
            if (!w.has(by)) {
                continue;
            }
            printf("%-6s %-6s", ggml_type_name(type), names[(int) by]);
            for (const int n_x : INPUTS) {
                printf("%8.*f", precision, measure(w, by, n_x));
                fflush(stdout);
            }
            printf("\n");
        }
    }
}

} // namespace

int main(int argc, char ** argv) {
    const int n_threads = argc > 1 ? atoi(argv[1]) : (int) std::thread::hardware_concurrency();
    const size_t bytes  = (size_t) (argc > 2 ? atoi(argv[2]) : 1024) << 20;
    ggml_cpu_init();
    printf("%d threads; by inputs:\n", n_threads);

    print_table("ns per 16 rows of 32 columns, in the cache", 1, [&](const weights & w, way by, int n_x) {
        constexpr int TURNS = 60;
        const double s = seconds(n_threads, [&](int) {
            std::vector<char> own = w.rows;
            for (int turn = 0; turn < TURNS; ++turn) {
                for (int row = 0; row < CACHED_ROWS; row += OSTINATO_TILE) {
                    const char * at = own.data() + row*w.row_bytes;
                    w.multiply(by, at, at, n_x);
                }
            }
        });
        return s*1e9/(TURNS*(CACHED_ROWS/OSTINATO_TILE)*(COLUMNS/32));
    });

    std::vector<char> memory(bytes);
    ggml_type in_memory = GGML_TYPE_COUNT;
    print_table("GB/s of weights in memory", 1, [&](const weights & w, way by, int n_x) {
        const size_t tile_bytes = OSTINATO_TILE*w.row_bytes;
        const size_t n_tiles    = bytes/tile_bytes/n_threads;
        if (in_memory != w.kernel.type) {
            in_memory = w.kernel.type;
            for (size_t at = 0; at + w.rows.size() <= bytes; at += w.rows.size()) {
                std::copy(w.rows.begin(), w.rows.end(), memory.begin() + at);
            }
        }
        const double s = seconds(n_threads, [&](int ith) {
            char * run = memory.data() + ith*n_tiles*tile_bytes;
            for (size_t tile = 0; tile < n_tiles; ++tile) {
                const size_t next = std::min(tile + 1, n_tiles - 1);
                w.multiply(by, run + tile*tile_bytes, run + next*tile_bytes, n_x);
            }
        });
        return n_tiles*tile_bytes*n_threads/s*1e-9;
    });
    return 0;
}
