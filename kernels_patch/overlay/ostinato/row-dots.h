// Products of one weight row, in codes of four bits, with several input rows: AVX-512 with VNNI and VBMI. One weight row at a time is what decode does,
// whose speed is this code's as much as the memory's: the fewer operations per column the better.
//
// Included by row-kernels.cpp, with SPLIT_BLOCK, prefetch() and OSTINATO_AVX512 defined, and by tests/row_dots.cpp, which has the processor's part in
// software. No other includes.

#pragma once

#include "ostinato/q4-k-factors.h"

// The codes of two blocks in the order of their columns, each in the low nibble of a byte: lanes of low nibbles stand still, those of high ones move.
// What is left above them is for the caller to ignore. A shift of words runs beside the permutations, where one that picks bytes would wait for them.
OSTINATO_AVX512 __attribute__((always_inline)) static inline __m512i nibbles_of_pair(const uint8_t * a, const uint8_t * b) {
    __m512i q = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) a));
    q = _mm512_mask_broadcast_i32x4(q, 0xFF00, _mm_loadu_si128((const __m128i *) b)); // a a b b
    const __m512i shifts = _mm512_set_epi64(
        0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004, 0x0004000400040004, 0, 0);
    return _mm512_srlv_epi16(q, shifts);
}

struct codes_mxfp4 {
    using block = block_mxfp4;

    OSTINATO_AVX512 static inline __m512i pair(const block * w) {
        const __m512i values = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        return _mm512_permutexvar_epi8(nibbles_of_pair(w[0].qs, w[1].qs), values); // the low six bits of a byte choose from 64: sixteen values, four times
    }

    static constexpr int HEAD_BYTES = 1;

    OSTINATO_AVX512 static inline __m512 scales(__m512i heads) { // half of 2^(e - 127)
        return _mm512_scalef_ps(_mm512_set1_ps(1.0f), _mm512_add_ps(_mm512_cvtepi32_ps(heads), _mm512_set1_ps(-128.0f)));
    }
};

struct codes_q4_0 {
    using block = block_q4_0;

    OSTINATO_AVX512 static inline __m512i pair(const block * w) {
        return _mm512_and_si512(nibbles_of_pair(w[0].qs, w[1].qs), _mm512_set1_epi8(0x0f));
    }

    static constexpr int HEAD_BYTES = 2;

    OSTINATO_AVX512 static inline __m512 scales(__m512i heads) {
        return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(heads));
    }
};

// The first `codes::HEAD_BYTES` bytes of each of sixteen neighbouring blocks, as integers: a gather takes four times as long.
template <typename codes>
OSTINATO_AVX512 __attribute__((always_inline)) static inline __m512i heads_of(const char * at) {
    constexpr int SIZE = sizeof(typename codes::block);
    static_assert(3*SIZE + 2 <= 64, "a vector must hold the heads of four blocks");
    const auto four = [at](int i) { return (const void *) (at + 4*i*SIZE); };
    const __m512i which = _mm512_setr_epi32( // two bytes of blocks 0..3 of the first vector, then of the second
        0x100, 0x101*SIZE + 0x100, 0x202*SIZE + 0x100, 0x303*SIZE + 0x100,
        0x4140, 0x101*SIZE + 0x4140, 0x202*SIZE + 0x4140, 0x303*SIZE + 0x4140, 0, 0, 0, 0, 0, 0, 0, 0);
    constexpr uint64_t BYTES = 0x1111111111111111*((1 << codes::HEAD_BYTES) - 1);
    const __m512i low  = _mm512_maskz_permutex2var_epi8(BYTES, _mm512_loadu_si512(four(0)), which, _mm512_loadu_si512(four(1)));
    const __m512i high = _mm512_maskz_permutex2var_epi8(BYTES, _mm512_loadu_si512(four(2)), which, _mm512_loadu_si512(four(3)));
    return _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
}

// The same of the first of them, as far as `here` says; nothing behind them is read.
template <typename codes>
OSTINATO_AVX512 __attribute__((always_inline)) static inline __m512i heads_of(const char * at, __mmask16 here) {
    const __m512i lanes  = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(sizeof(typename codes::block)));
    const __m512i words  = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), here, places, at, 1);
    return _mm512_and_si512(words, _mm512_set1_epi32((1 << 8*codes::HEAD_BYTES) - 1));
}

// Which of sixteen scales belong to the columns of each pair of blocks; in memory, since a processor has more room for loads here than for permutations.
alignas(64) static const int32_t SCALES_OF_PAIR[8][16] = {
    {  0,  0,  0,  0,  0,  0,  0,  0,  1,  1,  1,  1,  1,  1,  1,  1 },
    {  2,  2,  2,  2,  2,  2,  2,  2,  3,  3,  3,  3,  3,  3,  3,  3 },
    {  4,  4,  4,  4,  4,  4,  4,  4,  5,  5,  5,  5,  5,  5,  5,  5 },
    {  6,  6,  6,  6,  6,  6,  6,  6,  7,  7,  7,  7,  7,  7,  7,  7 },
    {  8,  8,  8,  8,  8,  8,  8,  8,  9,  9,  9,  9,  9,  9,  9,  9 },
    { 10, 10, 10, 10, 10, 10, 10, 10, 11, 11, 11, 11, 11, 11, 11, 11 },
    { 12, 12, 12, 12, 12, 12, 12, 12, 13, 13, 13, 13, 13, 13, 13, 13 },
    { 14, 14, 14, 14, 14, 14, 14, 14, 15, 15, 15, 15, 15, 15, 15, 15 },
};

// The products of a pair of sixteen blocks that begin at `at` in the weights and at column `column` of the inputs.
template <typename codes, int M>
OSTINATO_AVX512 __attribute__((always_inline)) static inline void add_pair(
        __m512 * sum, const __m512 * scales, const char * at, const char * const * x, int64_t column, int pair) {
    const __m512i c     = codes::pair((const typename codes::block *) at + 2*pair);
    const __m512i which = _mm512_load_si512(SCALES_OF_PAIR[pair]);
    for (int i = 0; i < M; ++i) {
        const __m512i products = _mm512_dpbusd_epi32(_mm512_setzero_si512(), c, _mm512_loadu_si512(x[i] + column + 2*pair*SPLIT_BLOCK));
        sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), _mm512_permutexvar_ps(which, scales[i]), sum[i]);
    }
}

// Blocks of 32 columns against split rows, sixteen blocks at a time: their scales fill a vector. Two sums for each input, so that none waits for its last product.
template <typename codes, int M>
OSTINATO_AVX512 static inline void dot_nibbles(int64_t n, float * out, const char * w, const char * ahead, const char * const * x) {
    constexpr int SIZE = sizeof(typename codes::block);
    const int64_t n_blocks = n/SPLIT_BLOCK;
    __m512 even[M];
    __m512 odd[M];
    for (int i = 0; i < M; ++i) {
        even[i] = odd[i] = _mm512_setzero_ps();
    }
    for (int64_t first = 0; first < n_blocks; first += 16) {
        const int n_here = n_blocks - first < 16 ? (int) (n_blocks - first) : 16;
        const __mmask16 here = (__mmask16) ((1u << n_here) - 1);
        const char * at = w + first*SIZE;
        __m512 scales_w;
        if (n_here == 16) {
            prefetch(ahead + first*SIZE, 16*SIZE);
            scales_w = codes::scales(heads_of<codes>(at));
        } else {
            prefetch(ahead + first*SIZE, n_here*SIZE);
            scales_w = codes::scales(heads_of<codes>(at, here));
        }
        __m512 scales[M];
        for (int i = 0; i < M; ++i) {
            const char * tail = x[i] + n + first*sizeof(float);
            scales[i] = _mm512_mul_ps(scales_w, _mm512_maskz_loadu_ps(here, tail));
            const __m512i starts = _mm512_maskz_loadu_epi32(here, tail + n_blocks*sizeof(float));
            odd[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(starts), scales[i], odd[i]);
        }
        const int64_t column = first*SPLIT_BLOCK;
        if (n_here == 16) {
#pragma GCC unroll 4
            for (int p = 0; p < 8; p += 2) {
                add_pair<codes, M>(even, scales, at, x, column, p);
                add_pair<codes, M>(odd, scales, at, x, column, p + 1);
            }
        } else {
            for (int p = 0; 2*p < n_here; ++p) {
                add_pair<codes, M>(even, scales, at, x, column, p);
            }
        }
    }
    for (int i = 0; i < M; ++i) {
        out[i] = _mm512_reduce_add_ps(_mm512_add_ps(even[i], odd[i]));
    }
}

template <int M>
OSTINATO_AVX512 static inline void dot_q4_K(int64_t n, float * out, const char * w, const char * ahead, const char * const * x) {
    const auto * blocks = (const block_q4_K *) w;
    const __m512i shifts = _mm512_set_epi64(
        0x3c342c241c140c04, 0x3c342c241c140c04, 0x3c342c241c140c04, 0x3c342c241c140c04,
        0x3830282018100800, 0x3830282018100800, 0x3830282018100800, 0x3830282018100800);
    const __m512i low = _mm512_set1_epi8(0x0f);
    __m512 sum[M];
    __m256 mins[M];
    for (int i = 0; i < M; ++i) {
        sum[i]  = _mm512_setzero_ps();
        mins[i] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < n/QK_K; ++b) {
        const block_q4_K & block = blocks[b];
        prefetch(ahead + b*sizeof(block), sizeof(block));
        const float d    = _cvtsh_ss(block.d);
        const float dmin = _cvtsh_ss(block.dmin);
        const __m128i unpacked = scales_and_mins(block);
        const __m512i scales = _mm512_zextsi128_si512(unpacked);
        const __m256i mins16 = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(unpacked, _mm_setr_epi8(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15)));
        __m512i products[M];
        for (int i = 0; i < M; ++i) {
            products[i] = _mm512_setzero_si512();
        }
        for (int j = 0; j < 4; ++j) {
            const __m512i q = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *) (block.qs + 32*j)));
            const __m512i codes = _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, q), low);
            const __m512i which = _mm512_inserti64x4(_mm512_set1_epi16((short) (2*j)), _mm256_set1_epi16((short) (2*j + 1)), 1);
            const __m512i scale = _mm512_maskz_permutexvar_epi8(0x5555555555555555, which, scales); // in words
            for (int i = 0; i < M; ++i) {
                const auto & row = ((const block_q8_K *) x[i])[b];
                products[i] = _mm512_dpwssd_epi32(products[i], _mm512_maddubs_epi16(codes, _mm512_loadu_si512(row.qs + 64*j)), scale);
            }
        }
        for (int i = 0; i < M; ++i) {
            const auto & row = ((const block_q8_K *) x[i])[b];
            sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[i]), _mm512_set1_ps(d*row.d), sum[i]);
            const __m256i m = _mm256_madd_epi16(mins16, _mm256_loadu_si256((const __m256i *) row.bsums));
            mins[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(m), _mm256_set1_ps(dmin*row.d), mins[i]);
        }
    }
    for (int i = 0; i < M; ++i) {
        out[i] = _mm512_reduce_add_ps(_mm512_sub_ps(sum[i], _mm512_zextps256_ps512(mins[i])));
    }
}
