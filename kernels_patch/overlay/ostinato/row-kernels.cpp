// Implementation of row-kernels.h: AVX-512 (VNNI, VBMI), AVX VNNI and AVX2 kernels for the expert types that users have, chosen at run time.

#include "row-kernels.h"

#include "row-inputs.h"

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#if defined(__x86_64__) && defined(__GNUC__)
#define OSTINATO_X86 1
#ifndef __clang__
// GCC 12 takes the undefined operands of its own intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <cpuid.h>
#include <immintrin.h>
#endif

static constexpr int64_t MAX_COLUMNS = 16384; // of rows in tiles of 256 bits, which keep a few words per block of each input

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t) 63;
}

static inline void prefetch(const char * data, size_t bytes) {
#if defined(__GNUC__)
    for (size_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(data + i);
    }
#else
    GGML_UNUSED(data);
    GGML_UNUSED(bytes);
#endif
}

#ifdef OSTINATO_X86

#define OSTINATO_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")))
#define OSTINATO_AVX2   __attribute__((target("avx2,fma,f16c")))

#include "row-dots.h"

// Q8_0 blocks against split rows. dpbusd multiplies unsigned with signed bytes, so signs move to the input.
template <int M>
OSTINATO_AVX512 static inline void dot_q8_0(
        int64_t n, float * out, const char * w, const char * ahead, const char * const * x) {
    const auto * blocks = (const block_q8_0 *) w;
    __m512 sum[M];
    for (int i = 0; i < M; ++i) {
        sum[i] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < n/SPLIT_BLOCK; b += 2) {
        prefetch(ahead + b*sizeof(block_q8_0), 2*sizeof(block_q8_0));
        const __m512i codes = _mm512_inserti64x4(_mm512_castsi256_si512(
            _mm256_loadu_si256((const __m256i *) blocks[b].qs)), _mm256_loadu_si256((const __m256i *) blocks[b + 1].qs), 1);
        const __mmask64 negative = _mm512_movepi8_mask(codes);
        const __m512 scale_w = _mm512_mask_blend_ps(0xFF00, _mm512_set1_ps(_cvtsh_ss(blocks[b].d)), _mm512_set1_ps(_cvtsh_ss(blocks[b + 1].d)));
        for (int i = 0; i < M; ++i) {
            const float * scales_x = (const float *) (x[i] + n) + b;
            const __m512i q        = _mm512_loadu_si512(x[i] + b*SPLIT_BLOCK);
            const __m512i signed_q = _mm512_mask_sub_epi8(q, negative, _mm512_setzero_si512(), q);
            const __m512i products = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_abs_epi8(codes), signed_q);
            const __m512 scale_x = _mm512_mask_blend_ps(0xFF00, _mm512_set1_ps(scales_x[0]), _mm512_set1_ps(scales_x[1]));
            sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), _mm512_mul_ps(scale_w, scale_x), sum[i]);
        }
    }
    for (int i = 0; i < M; ++i) {
        out[i] = _mm512_reduce_add_ps(sum[i]);
    }
}

// Products of a block of Q6_K and one of Q8_K in 16 sums; each of the four vectors is 64 columns, and the scales of every four of them.
OSTINATO_AVX512 static inline __m512i scaled_products(const __m512i * weights, const __m512i * scales, const block_q8_K & row) {
    __m512i products = _mm512_setzero_si512();
    for (int j = 0; j < 4; ++j) {
        const __m512i part = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights[j], _mm512_loadu_si512(row.qs + 64*j));
        products = _mm512_add_epi32(products, _mm512_mullo_epi32(part, scales[j]));
    }
    return products;
}

template <int M>
OSTINATO_AVX512 static inline void dot_q6_K(
        int64_t n, float * out, const char * w, const char * ahead, const char * const * x) {
    const auto * blocks = (const block_q6_K *) w;
    __m512 sum[M];
    for (int i = 0; i < M; ++i) {
        sum[i] = _mm512_setzero_ps();
    }
    const __m512i low = _mm512_set1_epi8(0x0f);
    const __m512i two = _mm512_set1_epi8(0x03);
    for (int64_t b = 0; b < n/QK_K; ++b) {
        prefetch(ahead + b*sizeof(block_q6_K), sizeof(block_q6_K));
        const block_q6_K & block = blocks[b];
        const float d = _cvtsh_ss(block.d);
        const __m128i scales8 = _mm_loadu_si128((const __m128i *) block.scales);
        const __m256i scales16 = _mm256_cvtepi8_epi16(scales8);

        __m512i weights[4];
        __m512i scales[4];
        for (int half = 0; half < 2; ++half) {
            const __m512i ql = _mm512_loadu_si512(block.ql + 64*half);
            const __m256i qh = _mm256_loadu_si256((const __m256i *) (block.qh + 32*half));
            const __m512i h0 = _mm512_inserti64x4(_mm512_castsi256_si512(qh), _mm256_srli_epi16(qh, 2), 1);
            const __m512i h1 = _mm512_srli_epi16(h0, 4);
            weights[2*half + 0] = _mm512_or_si512(_mm512_and_si512(ql, low), _mm512_slli_epi16(_mm512_and_si512(h0, two), 4));
            weights[2*half + 1] = _mm512_or_si512(
                _mm512_and_si512(_mm512_srli_epi16(ql, 4), low), _mm512_slli_epi16(_mm512_and_si512(h1, two), 4));
        }
        for (int j = 0; j < 4; ++j) {
            const uint32_t first = 4*j;
            const __m128i select = _mm_set_epi32(
                (int) (0x01010101u*(first + 3)), (int) (0x01010101u*(first + 2)), (int) (0x01010101u*(first + 1)), (int) (0x01010101u*first));
            scales[j] = _mm512_cvtepi8_epi32(_mm_shuffle_epi8(scales8, select));
        }
        for (int i = 0; i < M; ++i) {
            const auto & row = ((const block_q8_K *) x[i])[b];
            __m512i products = scaled_products(weights, scales, row);
            // quants are stored with 32 added
            const __m256i offsets = _mm256_slli_epi32(_mm256_madd_epi16(scales16, _mm256_loadu_si256((const __m256i *) row.bsums)), 5);
            products = _mm512_sub_epi32(products, _mm512_zextsi256_si512(offsets));
            sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), _mm512_set1_ps(d*row.d), sum[i]);
        }
    }
    for (int i = 0; i < M; ++i) {
        out[i] = _mm512_reduce_add_ps(sum[i]);
    }
}

#define OSTINATO_DOT(NAME, CALL)                                                                                                         \
    OSTINATO_AVX512 static void NAME(                                                                                                    \
            int64_t n, float * out, const char * w, const char * ahead, const char * const * x, int n_x) {                               \
        int i = 0;                                                                                                                       \
        for (; i + 4 <= n_x; i += 4) { CALL(4)(n, out + i, w, ahead, x + i); }                                                                  \
        for (; i + 2 <= n_x; i += 2) { CALL(2)(n, out + i, w, ahead, x + i); }                                                                  \
        for (; i     <  n_x; i += 1) { CALL(1)(n, out + i, w, ahead, x + i); }                                                                  \
    }

#define OSTINATO_MXFP4(M) dot_nibbles<codes_mxfp4, M>
#define OSTINATO_Q4_0(M)  dot_nibbles<codes_q4_0, M>
#define OSTINATO_Q8_0(M)  dot_q8_0<M>
#define OSTINATO_Q4_K(M)  dot_q4_K<M>
#define OSTINATO_Q6_K(M)  dot_q6_K<M>

OSTINATO_DOT(dot_mxfp4_rows, OSTINATO_MXFP4)
OSTINATO_DOT(dot_q4_0_rows, OSTINATO_Q4_0)
OSTINATO_DOT(dot_q8_0_rows, OSTINATO_Q8_0)
OSTINATO_DOT(dot_q4_K_rows, OSTINATO_Q4_K)
OSTINATO_DOT(dot_q6_K_rows, OSTINATO_Q6_K)

static bool has_avx512() {
    static const bool found = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    return found;
}

// Input rows of Q8_0 blocks. What a tile needs beyond their quants is computed once for both of its halves.
class q8_0_inputs {
public:
    OSTINATO_AVX2 q8_0_inputs(const char * const * x, int n_x, int64_t n, int32_t offset) : x(x) {
        const __m256i ones = _mm256_set1_epi8(1);
        for (int i = 0; i < n_x; ++i) {
            const auto * blocks = (const block_q8_0 *) x[i];
            for (int64_t b = 0; b < n/SPLIT_BLOCK; ++b) {
                const __m256i q      = _mm256_loadu_si256((const __m256i *) blocks[b].qs);
                const __m256i eights = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, q), _mm256_set1_epi16(1));
                const __m128i fours  = _mm_add_epi32(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
                const __m128i twos   = _mm_add_epi32(fours, _mm_shuffle_epi32(fours, 0x4e));
                starts[i][b] = -offset*_mm_cvtsi128_si32(_mm_add_epi32(twos, _mm_shuffle_epi32(twos, 0xb1)));
                scales[i][b] = _cvtsh_ss(blocks[b].d);
            }
        }
    }

    input_block at(int i, int64_t b) const { return { (const char *) ((const block_q8_0 *) x[i])[b].qs, &starts[i][b], &scales[i][b] }; }

private:
    const char * const * x;
    float   scales[16][MAX_COLUMNS/SPLIT_BLOCK];
    int32_t starts[16][MAX_COLUMNS/SPLIT_BLOCK];
};

// An operand that the instruction repeats itself: GCC loads it apart, which is half of the loop's work again.
OSTINATO_AVX512 static inline __m512i dot_512(__m512i sum, __m512i u, const char * s) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(u), "m"(*(const int32_t *) s));
    return sum;
}

#define OSTINATO_TILES avx512
#define OSTINATO_TILES_TARGET OSTINATO_AVX512
#define OSTINATO_TILES_BITS 512
#define OSTINATO_TILES_INPUTS split_inputs
#define OSTINATO_TILES_DOT(sum, u, s) dot_512(sum, u, s)
#include "row-tiles.h"

#define OSTINATO_TILES avx2
#define OSTINATO_TILES_TARGET OSTINATO_AVX2
#define OSTINATO_TILES_BITS 256
#define OSTINATO_TILES_INPUTS q8_0_inputs
#define OSTINATO_TILES_DOT(sum, u, s) \
    _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, _mm256_set1_epi32(dword_at(s))), _mm256_set1_epi16(1)))
#include "row-tiles.h"

#if defined(__clang__) || __GNUC__ >= 11
#define OSTINATO_AVX_VNNI 1
#define OSTINATO_TILES avxvnni
#define OSTINATO_TILES_TARGET __attribute__((target("avxvnni,avx2,fma,f16c")))
#define OSTINATO_TILES_BITS 256
#define OSTINATO_TILES_INPUTS q8_0_inputs
#define OSTINATO_TILES_DOT(sum, u, s) _mm256_dpbusd_avx_epi32(sum, u, _mm256_set1_epi32(dword_at(s)))
#include "row-tiles.h"

// Leaf 7.1 of cpuid: the compiler's own test for it is younger than the instructions.
static bool has_avx_vnni() {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & (1u << 4)) && __builtin_cpu_supports("avx2");
}
#endif

static bool has_avx2() { // and with it f16c, which compilers do not all test for
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static void set_tile_of_256_bits(ostinato_row_kernel & kernel) {
#ifdef OSTINATO_AVX_VNNI
    static const bool is_vnni = has_avx_vnni();
    if (is_vnni) {
        kernel.tile = avxvnni::tile_of(kernel.type);
        return;
    }
#endif
    static const bool is_avx2 = has_avx2();
    if (is_avx2 && kernel.type != GGML_TYPE_Q8_0) { // its products are too large for sums of 16 bits
        kernel.tile      = avx2::tile_of(kernel.type);
        kernel.tile_from = kernel.type == GGML_TYPE_Q4_K ? 8 : 4; // ggml's are as fast with fewer
    }
}

#endif // OSTINATO_X86

ostinato_row_kernel ostinato_find_row_kernel(ggml_type type, int64_t columns, int most_bits) {
    const auto * traits = ggml_get_type_traits_cpu(type);
    ostinato_row_kernel kernel = { type, traits->vec_dot_type, traits->vec_dot };
    GGML_UNUSED(columns);
    GGML_UNUSED(most_bits);
#ifdef OSTINATO_X86
    if (most_bits >= 512 && has_avx512()) {
        switch (type) {
            case GGML_TYPE_MXFP4: kernel.dot = dot_mxfp4_rows; break;
            case GGML_TYPE_Q4_0:  kernel.dot = dot_q4_0_rows;  break;
            case GGML_TYPE_Q8_0:  kernel.dot = dot_q8_0_rows;  break;
            case GGML_TYPE_Q4_K:  kernel.dot = dot_q4_K_rows;  break;
            case GGML_TYPE_Q6_K:  kernel.dot = dot_q6_K_rows;  break;
            default: break;
        }
        kernel.tile = avx512::tile_of(type);
        // measured from memory, where other threads read too; on Intel's with one input row by row was as fast or faster
        static const bool is_amd = __builtin_cpu_is("amd");
        kernel.tile_from = is_amd ? 1 : type == GGML_TYPE_Q6_K ? 3 : 2;
        if (kernel.dot && kernel.input == GGML_TYPE_Q8_0) {
            kernel.is_split = columns % (2*SPLIT_BLOCK) == 0;
            kernel.dot      = kernel.is_split ? kernel.dot : nullptr;
            kernel.tile     = kernel.is_split ? kernel.tile : nullptr;
        }
    } else if (most_bits >= 256 && columns <= MAX_COLUMNS) {
        set_tile_of_256_bits(kernel);
    }
#endif
    return kernel;
}

size_t ostinato_input_row_bytes(const ostinato_row_kernel & kernel, int64_t n) {
    return align64(kernel.is_split ? n + n/SPLIT_BLOCK*(sizeof(float) + sizeof(int32_t)) : ggml_row_size(kernel.input, n));
}

void ostinato_input_row(const ostinato_row_kernel & kernel, const float * src, char * dst, int64_t n) {
    ostinato_input_columns(kernel, src, dst, 0, n, n);
}

void ostinato_input_columns(const ostinato_row_kernel & kernel, const float * src, char * dst, int64_t begin, int64_t end, int64_t columns) {
    if (kernel.input == GGML_TYPE_F32) {
        memcpy(dst + begin*sizeof(float), src, (end - begin)*sizeof(float));
        return;
    }
    const auto from_float = ggml_get_type_traits_cpu(kernel.input)->from_float;
    if (!kernel.is_split) {
        from_float(src, dst + ggml_row_size(kernel.input, begin), end - begin);
        return;
    }
    constexpr int64_t PART = 1024;
    alignas(64) block_q8_0 blocks[PART/SPLIT_BLOCK];
    float   * scales = (float *) (dst + columns);
    int32_t * starts = (int32_t *) (scales + columns/SPLIT_BLOCK);
    const int32_t offset = weight_offset(kernel.type);
    for (int64_t i = begin; i < end; i += PART) {
        const int64_t n = std::min(PART, end - i);
        from_float(src + i - begin, blocks, n);
        for (int64_t b = 0; b < n/SPLIT_BLOCK; ++b) {
            memcpy(dst + i + b*SPLIT_BLOCK, blocks[b].qs, SPLIT_BLOCK);
            scales[i/SPLIT_BLOCK + b] = ggml_fp16_to_fp32(blocks[b].d);
            starts[i/SPLIT_BLOCK + b] = -offset*std::accumulate(blocks[b].qs, blocks[b].qs + SPLIT_BLOCK, 0);
        }
    }
}

void ostinato_dot_rows(
        const ostinato_row_kernel & kernel, int64_t columns, float * out, const char * w, const char * ahead, const char * const * x, int n_x) {
    if (kernel.dot) {
        kernel.dot(columns, out, w, ahead, x, n_x);
        return;
    }
    prefetch(ahead, ggml_row_size(kernel.type, columns));
    for (int i = 0; i < n_x; ++i) {
        kernel.vec_dot((int) columns, out + i, 0, w, 0, x[i], 0, 1);
    }
}

void ostinato_prefetch(const char * data, size_t bytes) {
    prefetch(data, bytes);
}

void ostinato_dot_tile(
        const ostinato_row_kernel & kernel, int64_t columns, float (*out)[OSTINATO_TILE_INPUTS], const char * w, size_t row_bytes, const char * ahead,
        const char * const * x, int n_x) {
    kernel.tile(columns, out, w, row_bytes, ahead, x, n_x);
}
