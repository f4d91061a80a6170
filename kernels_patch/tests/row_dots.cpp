// row_dots: the kernels of row-dots.h and the tiles of row-tiles.h against ggml's own vec_dot, with AVX-512 in software: rows of many lengths, also such as
// end in the middle of a group of blocks, one to four inputs of rows and one to 16 of tiles, scales of all sizes, and nothing readable behind the last row.
// Where this CPU has AVX-512, its tiles have the bits of the modelled ones.
//
// Prints nothing and returns 0, or one line per failure and 1. Compiled and run by tests/e2e/test_row_kernels.py.

#include "avx512-model.h"

#include "ostinato/row-inputs.h"
#include "ostinato/row-kernels.h"

#include "ggml-cpu.h"

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <vector>

static inline void prefetch(const char *, size_t) {}

#define OSTINATO_AVX512
#define OSTINATO_AVX2
#include "ostinato/row-dots.h"

#define OSTINATO_TILES modelled
#define OSTINATO_TILES_TARGET
#define OSTINATO_TILES_BITS 512
#define OSTINATO_TILES_INPUTS split_inputs
#define OSTINATO_TILES_DOT(sum, u, s) _mm512_dpbusd_epi32(sum, u, _mm512_set1_epi32(dword_at(s)))
#include "ostinato/row-tiles.h"

namespace {

constexpr int N_ROWS = 16;

int n_failed = 0;

const bool has_avx512_tiles = __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");

using dot = void (*)(int64_t n, float * out, const char * w, const char * ahead, const char * const * x);

struct kind {
    ggml_type type;
    bool is_split;
    dot dots[5]; // by inputs; nullptr where only tiles are tried
};

const kind kinds[] = {
    { GGML_TYPE_MXFP4, true,  { nullptr, dot_nibbles<codes_mxfp4, 1>, dot_nibbles<codes_mxfp4, 2>, nullptr, dot_nibbles<codes_mxfp4, 4> } },
    { GGML_TYPE_Q4_0,  true,  { nullptr, dot_nibbles<codes_q4_0, 1>,  dot_nibbles<codes_q4_0, 2>,  nullptr, dot_nibbles<codes_q4_0, 4> } },
    { GGML_TYPE_Q4_K,  false, { nullptr, dot_q4_K<1>,                 dot_q4_K<2>,                 nullptr, dot_q4_K<4> } },
    { GGML_TYPE_Q8_0,  true,  {} },
    { GGML_TYPE_Q6_K,  false, {} },
};

// Memory that ends where a page begins that cannot be read.
class guarded {
public:
    explicit guarded(size_t bytes) : page(sysconf(_SC_PAGESIZE)), size((bytes + page - 1)/page*page) {
        begin = (char *) mmap(nullptr, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(begin + size, page, PROT_NONE);
        data = begin + size - bytes;
    }

    ~guarded() { munmap(begin, size + page); }

    char * data;

private:
    size_t page;
    size_t size;
    char * begin;
};

void check(const kind & kind, int64_t n, std::mt19937 & random) {
    const auto * cpu   = ggml_get_type_traits_cpu(kind.type);
    const auto * input = ggml_get_type_traits_cpu(cpu->vec_dot_type);
    ostinato_row_kernel kernel = ostinato_find_row_kernel(kind.type, n, 0);
    kernel.is_split = kind.is_split;

    std::normal_distribution<float> normal;
    std::vector<float> weights(N_ROWS*n);
    for (float & w : weights) {
        w = normal(random)*std::pow(10.0f, (float) (random() % 5) - 2.0f);
    }
    const size_t row_bytes = ggml_row_size(kind.type, n);
    const guarded rows(N_ROWS*row_bytes);
    ggml_quantize_chunk(kind.type, weights.data(), rows.data, 0, N_ROWS, n, nullptr);
    for (int r = 0; kind.type == GGML_TYPE_MXFP4 && r < 4; ++r) { // all of a row small: halves of the scales 0 and 1 are denormal
        for (int64_t b = 0; b < n/QK_MXFP4; ++b) {
            ((block_mxfp4 *) (rows.data + r*row_bytes))[b].e = (uint8_t) r;
        }
    }
    std::vector<float> x(OSTINATO_TILE_INPUTS*n);
    for (float & v : x) {
        v = normal(random);
    }
    const size_t input_bytes = ostinato_input_row_bytes(kernel, n);
    const guarded inputs(OSTINATO_TILE_INPUTS*input_bytes);
    const char * of[OSTINATO_TILE_INPUTS];
    std::vector<float> expected(N_ROWS*OSTINATO_TILE_INPUTS); // by row and input
    std::vector<char> quantised(ggml_row_size(cpu->vec_dot_type, n));
    for (int i = 0; i < OSTINATO_TILE_INPUTS; ++i) {
        of[i] = inputs.data + i*input_bytes;
        ostinato_input_row(kernel, x.data() + i*n, inputs.data + i*input_bytes, n);
        input->from_float(x.data() + i*n, quantised.data(), n);
        for (int r = 0; r < N_ROWS; ++r) {
            cpu->vec_dot((int) n, &expected[r*OSTINATO_TILE_INPUTS + i], 0, rows.data + r*row_bytes, 0, quantised.data(), 0, 1);
        }
    }
    std::vector<double> squares(N_ROWS);
    std::vector<float> plain(n);
    for (int r = 0; r < N_ROWS; ++r) {
        ggml_get_type_traits(kind.type)->to_float(rows.data + r*row_bytes, plain.data(), n);
        for (const float w : plain) {
            squares[r] += (double) w*w;
        }
    }
    const auto compare = [&](const char * what, int n_x, int r, const float * out) {
        for (int i = 0; i < n_x; ++i) {
            const float wanted = expected[r*OSTINATO_TILE_INPUTS + i];
            if (!(std::fabs(out[i] - wanted) <= 2e-6*std::sqrt(squares[r]*n)) && n_failed++ < 20) {
                printf("%s, %s: %lld columns, %d inputs, row %d: expected %g, found %g\n",
                    ggml_type_name(kind.type), what, (long long) n, n_x, r, wanted, out[i]);
            }
        }
    };

    for (const int n_x : { 1, 2, 4 }) {
        for (int r = 0; kind.dots[n_x] && r < N_ROWS; ++r) {
            const char * row = rows.data + r*row_bytes;
            float out[4];
            kind.dots[n_x](n, out, row, row, of);
            compare("row", n_x, r, out);
        }
    }

    const ostinato_row_kernel native = ostinato_find_row_kernel(kind.type, n, 512); // none of 512 bits: another form of inputs, or other sums
    for (int n_x = 1; n_x <= OSTINATO_TILE_INPUTS; ++n_x) {
        float tile[OSTINATO_TILE][OSTINATO_TILE_INPUTS];
        modelled::tile_of(kind.type)(n, tile, rows.data, row_bytes, rows.data, of, n_x);
        for (int r = 0; r < OSTINATO_TILE; ++r) {
            compare("tile", n_x, r, tile[r]);
        }
        if (has_avx512_tiles && native.is_split == kind.is_split) {
            float found[OSTINATO_TILE][OSTINATO_TILE_INPUTS];
            native.tile(n, found, rows.data, row_bytes, rows.data, of, n_x);
            for (int r = 0; r < OSTINATO_TILE; ++r) {
                if (memcmp(found[r], tile[r], n_x*sizeof(float)) != 0 && n_failed++ < 20) {
                    printf("%s: %lld columns, %d inputs, row %d of this CPU's tile has other bits\n", ggml_type_name(kind.type), (long long) n, n_x, r);
                }
            }
        }
    }
}

} // namespace

int main() {
    ggml_cpu_init();
    std::mt19937 random(7);
    for (const kind & kind : kinds) {
        for (const int64_t n : { 64, 256, 512, 704, 1344, 1536, 2880, 4096 }) {
            if (n % ggml_blck_size(kind.type) == 0) {
                check(kind, n, random);
            }
        }
    }
    return n_failed == 0 ? 0 : 1;
}
