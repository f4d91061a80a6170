// Implementation of row-kernels.h: AVX-512 VNNI, AVX VNNI and AVX2 kernels for the expert types that users have, chosen at run time.

#include "row-kernels.h"

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#if defined(__x86_64__) && defined(__GNUC__)
#define OSTINATO_X86 1
// GCC 12 takes the undefined operands of its own intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <cpuid.h>
#include <immintrin.h>
#endif

static constexpr int64_t SPLIT_BLOCK = 32; // columns per scale of a Q8_0 row

static constexpr int64_t MAX_COLUMNS = 16384; // of rows in tiles of 256 bits, which keep a few words per block of each input

// What tiles add to each weight, so that it is not negative.
static constexpr int32_t weight_offset(ggml_type type) {
    return type == GGML_TYPE_MXFP4 ? 12 : type == GGML_TYPE_Q4_0 ? 8 : 128;
}

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

#define OSTINATO_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))

// Scales of MXFP4 blocks, halved, since its code values are doubled to be integers.
struct e8m0_table {
    float half[256];

    e8m0_table() {
        for (uint32_t e = 0; e < 256; ++e) {
            const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
            memcpy(&half[e], &bits, sizeof(bits));
        }
    }
};

static const e8m0_table E8M0;

// Eight scales of six bits, then eight mins, a byte each.
static inline void unpack_q4_K_scales(const uint8_t * scales, uint8_t * unpacked) {
    uint32_t u[4];
    memcpy(u, scales, 12);
    const uint32_t high = u[1] & 0xc0c0c0c0u;
    u[3] = ((u[2] >> 4) & 0x0f0f0f0fu) | (high >> 2);
    const uint32_t mins_low = u[1] & 0x3f3f3f3fu;
    u[1] = (u[2] & 0x0f0f0f0fu) | ((u[0] & 0xc0c0c0c0u) >> 2);
    u[2] = mins_low;
    u[0] &= 0x3f3f3f3fu;
    memcpy(unpacked, u, sizeof(u));
}

static inline int32_t dword_at(const void * data) {
    int32_t v;
    memcpy(&v, data, sizeof(v));
    return v;
}

// Weight blocks of 32 columns against split Q8_0 rows. A decoder gives the absolute values of two neighbouring blocks, the mask of the
// negative ones, and the two scales: dpbusd multiplies unsigned with signed bytes, so signs move to the input.
struct decoded_pair {
    __m512i magnitude;
    __mmask64 negative;
    float scale[2];
};

OSTINATO_AVX512 static inline __m512i nibbles_of_pair(const uint8_t * a, const uint8_t * b) {
    const __m256i q  = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) a)), _mm_loadu_si128((const __m128i *) b), 1);
    const __m256i m  = _mm256_set1_epi8(0x0f);
    const __m512i lh = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_and_si256(q, m)), _mm256_and_si256(_mm256_srli_epi16(q, 4), m), 1);
    return _mm512_shuffle_i64x2(lh, lh, _MM_SHUFFLE(3, 1, 2, 0)); // a low, a high, b low, b high
}

struct decode_mxfp4 {
    using block = block_mxfp4;

    OSTINATO_AVX512 static inline decoded_pair pair(const block * w) {
        const __m512i magnitudes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12));
        const __m512i codes = nibbles_of_pair(w[0].qs, w[1].qs);
        return {
            _mm512_shuffle_epi8(magnitudes, codes), _mm512_test_epi8_mask(codes, _mm512_set1_epi8(8)), { E8M0.half[w[0].e], E8M0.half[w[1].e] },
        };
    }
};

struct decode_q4_0 {
    using block = block_q4_0;

    OSTINATO_AVX512 static inline decoded_pair pair(const block * w) {
        const __m512i magnitudes = _mm512_broadcast_i32x4(_mm_setr_epi8(8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7));
        const __m512i codes = nibbles_of_pair(w[0].qs, w[1].qs);
        return {
            _mm512_shuffle_epi8(magnitudes, codes), _mm512_testn_epi8_mask(codes, _mm512_set1_epi8(8)), { _cvtsh_ss(w[0].d), _cvtsh_ss(w[1].d) },
        };
    }
};

struct decode_q8_0 {
    using block = block_q8_0;

    OSTINATO_AVX512 static inline decoded_pair pair(const block * w) {
        const __m512i q = _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) w[0].qs)), _mm256_loadu_si256((const __m256i *) w[1].qs), 1);
        return { _mm512_abs_epi8(q), _mm512_movepi8_mask(q), { _cvtsh_ss(w[0].d), _cvtsh_ss(w[1].d) } };
    }
};

template <typename decode, int M>
OSTINATO_AVX512 static inline void dot_split(
        int64_t n, float * out, const char * w, const char * ahead, const char * const * x) {
    const auto * blocks = (const typename decode::block *) w;
    __m512 sum[M];
    for (int i = 0; i < M; ++i) {
        sum[i] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < n/SPLIT_BLOCK; b += 2) {
        prefetch(ahead + b*sizeof(typename decode::block), 2*sizeof(typename decode::block));
        const decoded_pair p = decode::pair(blocks + b);
        const __m512 scale_w = _mm512_mask_blend_ps(0xFF00, _mm512_set1_ps(p.scale[0]), _mm512_set1_ps(p.scale[1]));
        for (int i = 0; i < M; ++i) {
            const float * scales_x = (const float *) (x[i] + n) + b;
            const __m512i q      = _mm512_loadu_si512(x[i] + b*SPLIT_BLOCK);
            const __m512i signed_q = _mm512_mask_sub_epi8(q, p.negative, _mm512_setzero_si512(), q);
            const __m512i products = _mm512_dpbusd_epi32(_mm512_setzero_si512(), p.magnitude, signed_q);
            const __m512 scale_x = _mm512_mask_blend_ps(0xFF00, _mm512_set1_ps(scales_x[0]), _mm512_set1_ps(scales_x[1]));
            sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), _mm512_mul_ps(scale_w, scale_x), sum[i]);
        }
    }
    for (int i = 0; i < M; ++i) {
        out[i] = _mm512_reduce_add_ps(sum[i]);
    }
}

// Weight blocks of 256 columns against Q8_K rows.
template <int M>
OSTINATO_AVX512 static inline void dot_q4_K(
        int64_t n, float * out, const char * w, const char * ahead, const char * const * x) {
    const auto * blocks = (const block_q4_K *) w;
    __m512 sum[M];
    float  mins[M] = { 0.0f };
    for (int i = 0; i < M; ++i) {
        sum[i] = _mm512_setzero_ps();
    }
    const __m256i low = _mm256_set1_epi8(0x0f);
    for (int64_t b = 0; b < n/QK_K; ++b) {
        const block_q4_K & block = blocks[b];
        prefetch(ahead + b*sizeof(block), sizeof(block));
        const float d    = _cvtsh_ss(block.d);
        const float dmin = _cvtsh_ss(block.dmin);

        uint8_t packed[16];
        unpack_q4_K_scales(block.scales, packed);
        const __m128i scales_mins = _mm_loadu_si128((const __m128i *) packed);
        const __m128i mins16 = _mm_cvtepu8_epi16(_mm_srli_si128(scales_mins, 8));

        __m512i weights[4];
        __m512i scales[4];
        for (int j = 0; j < 4; ++j) {
            const __m256i q = _mm256_loadu_si256((const __m256i *) (block.qs + 32*j));
            weights[j] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_and_si256(q, low)), _mm256_and_si256(_mm256_srli_epi16(q, 4), low), 1);
            const __m128i select = _mm_set_epi64x((int64_t) 0x0101010101010101*(2*j + 1), (int64_t) 0x0101010101010101*(2*j));
            scales[j]  = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(scales_mins, select));
        }
        for (int i = 0; i < M; ++i) {
            const auto & row = ((const block_q8_K *) x[i])[b];
            __m512i products = _mm512_setzero_si512();
            for (int j = 0; j < 4; ++j) {
                const __m512i part = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights[j], _mm512_loadu_si512(row.qs + 64*j));
                products = _mm512_add_epi32(products, _mm512_mullo_epi32(part, scales[j]));
            }
            sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), _mm512_set1_ps(d*row.d), sum[i]);

            const __m256i sums = _mm256_loadu_si256((const __m256i *) row.bsums);
            const __m128i pairs = _mm_hadd_epi16(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
            __m128i m = _mm_madd_epi16(mins16, pairs);
            m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
            m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1));
            mins[i] += dmin*row.d*(float) _mm_cvtsi128_si32(m);
        }
    }
    for (int i = 0; i < M; ++i) {
        out[i] = _mm512_reduce_add_ps(sum[i]) - mins[i];
    }
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
            __m512i products = _mm512_setzero_si512();
            for (int j = 0; j < 4; ++j) {
                const __m512i part = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights[j], _mm512_loadu_si512(row.qs + 64*j));
                products = _mm512_add_epi32(products, _mm512_mullo_epi32(part, scales[j]));
            }
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

// Sixteen weight rows at once, one in each lane of 32 bits. Four columns of a row fill its lane, and dpbusd adds their products with four columns of an
// input, which all lanes share. Weights are made unsigned by adding `offset`; inputs come with what that adds too much.

// dwords[d], lane r: dword d of the 16 bytes at w + r*row_bytes.
OSTINATO_AVX512 static inline void transpose_16_rows(const char * w, size_t row_bytes, __m512i * dwords) {
    __m512i rows[4]; // number i: rows i, i + 4, i + 8, i + 12
    for (int i = 0; i < 4; ++i) {
        const auto row = [&](int r) { return _mm_loadu_si128((const __m128i *) (w + r*row_bytes)); };
        rows[i] = _mm512_castsi128_si512(row(i));
        rows[i] = _mm512_inserti32x4(rows[i], row(i + 4), 1);
        rows[i] = _mm512_inserti32x4(rows[i], row(i + 8), 2);
        rows[i] = _mm512_inserti32x4(rows[i], row(i + 12), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]);
    const __m512i b = _mm512_unpackhi_epi32(rows[0], rows[1]);
    const __m512i c = _mm512_unpacklo_epi32(rows[2], rows[3]);
    const __m512i d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    dwords[0] = _mm512_unpacklo_epi64(a, c); // lane 4*l + i: row i + 4*l
    dwords[1] = _mm512_unpackhi_epi64(a, c);
    dwords[2] = _mm512_unpacklo_epi64(b, d);
    dwords[3] = _mm512_unpackhi_epi64(b, d);
}

OSTINATO_AVX512 static inline __m512i low_nibbles(__m512i v) {
    return _mm512_and_si512(v, _mm512_set1_epi8(0x0f));
}

OSTINATO_AVX512 static inline __m512i high_nibbles(__m512i v) {
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(0x0f));
}

OSTINATO_AVX512 static inline __m512 scales_of_f16(const uint16_t * scales) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) scales));
}

// A block of 32 columns of 16 rows: columns 4*j .. 4*j + 3 in codes[j], and the rows' scales.
struct decoded_tile {
    __m512i codes[8];
    __m512  scales;
};

struct tile_mxfp4 {
    using block = block_mxfp4;

    OSTINATO_AVX512 static inline void decode(const char * w, size_t row_bytes, decoded_tile & t) {
        const __m512i values = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        __m512i dwords[4];
        transpose_16_rows(w + offsetof(block, qs), row_bytes, dwords);
        alignas(64) float scales[16];
        for (int r = 0; r < 16; ++r) {
            scales[r] = E8M0.half[((const block *) (w + r*row_bytes))->e];
        }
        for (int d = 0; d < 4; ++d) {
            t.codes[d]     = _mm512_shuffle_epi8(values, low_nibbles(dwords[d]));
            t.codes[4 + d] = _mm512_shuffle_epi8(values, high_nibbles(dwords[d]));
        }
        t.scales = _mm512_load_ps(scales);
    }
};

struct tile_q4_0 {
    using block = block_q4_0;

    OSTINATO_AVX512 static inline void decode(const char * w, size_t row_bytes, decoded_tile & t) {
        __m512i dwords[4];
        transpose_16_rows(w + offsetof(block, qs), row_bytes, dwords);
        alignas(32) uint16_t scales[16];
        for (int r = 0; r < 16; ++r) {
            scales[r] = ((const block *) (w + r*row_bytes))->d;
        }
        for (int d = 0; d < 4; ++d) {
            t.codes[d]     = low_nibbles(dwords[d]);
            t.codes[4 + d] = high_nibbles(dwords[d]);
        }
        t.scales = scales_of_f16(scales);
    }
};

struct tile_q8_0 {
    using block = block_q8_0;

    OSTINATO_AVX512 static inline void decode(const char * w, size_t row_bytes, decoded_tile & t) {
        transpose_16_rows(w + offsetof(block, qs), row_bytes, t.codes);
        transpose_16_rows(w + offsetof(block, qs) + 16, row_bytes, t.codes + 4);
        alignas(32) uint16_t scales[16];
        for (int r = 0; r < 16; ++r) {
            scales[r] = ((const block *) (w + r*row_bytes))->d;
        }
        for (int d = 0; d < 8; ++d) {
            t.codes[d] = _mm512_xor_si512(t.codes[d], _mm512_set1_epi8((char) 0x80));
        }
        t.scales = scales_of_f16(scales);
    }
};

OSTINATO_AVX512 static inline void store_tile(const __m512 * sums, float (*out)[16], int n_x) {
    for (int i = 0; i < n_x; ++i) {
        alignas(64) float lanes[16];
        _mm512_store_ps(lanes, sums[i]);
        for (int r = 0; r < 16; ++r) {
            out[r][i] = lanes[r];
        }
    }
}

// A cache line of each row of the tile.
static inline void prefetch_tile(const char * ahead, size_t row_bytes) {
    for (int r = 0; r < 16; ++r) {
        prefetch(ahead + r*row_bytes, 64);
    }
}

template <typename tile>
OSTINATO_AVX512 static void dot_split_tile(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    constexpr size_t BLOCK = sizeof(typename tile::block);
    __m512 sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = _mm512_setzero_ps();
    }
    size_t prefetched = 0;
    for (int64_t b = 0; b < n/SPLIT_BLOCK; ++b) {
        if (b*BLOCK >= prefetched) {
            prefetch_tile(ahead + prefetched, row_bytes);
            prefetched += 64;
        }
        decoded_tile t;
        tile::decode(w + b*BLOCK, row_bytes, t);
        for (int i = 0; i < n_x; ++i) {
            const char * q = x[i] + b*SPLIT_BLOCK;
            const char * after = x[i] + n;
            __m512i sum = _mm512_set1_epi32(dword_at(after + (n/SPLIT_BLOCK + b)*sizeof(float)));
            for (int j = 0; j < 8; ++j) {
                sum = _mm512_dpbusd_epi32(sum, t.codes[j], _mm512_set1_epi32(dword_at(q + 4*j)));
            }
            const __m512 scale = _mm512_mul_ps(t.scales, _mm512_set1_ps(((const float *) after)[b]));
            sums[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, sums[i]);
        }
    }
    store_tile(sums, out, n_x);
}

// bytes[r] holds 16 bytes of row r; afterwards columns[c] holds byte c of the 16 rows.
OSTINATO_AVX512 static inline void transpose_16_bytes(const __m128i * bytes, __m128i * columns) {
    __m128i from[16];
    __m128i to[16];
    for (int r = 0; r < 16; ++r) {
        from[r] = bytes[r];
    }
    for (int stage = 0; stage < 4; ++stage) { // each interleaves rows that are eight apart
        for (int r = 0; r < 8; ++r) {
            to[2*r + 0] = _mm_unpacklo_epi8(from[r], from[r + 8]);
            to[2*r + 1] = _mm_unpackhi_epi8(from[r], from[r + 8]);
        }
        for (int r = 0; r < 16; ++r) {
            from[r] = to[r];
        }
    }
    for (int c = 0; c < 16; ++c) {
        columns[c] = from[c];
    }
}

OSTINATO_AVX512 static void dot_q4_K_tile(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    __m512 sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < n/QK_K; ++b) {
        const char * blocks = w + b*sizeof(block_q4_K);
        for (size_t line = 0; line < sizeof(block_q4_K); line += 64) {
            prefetch_tile(ahead + b*sizeof(block_q4_K) + line, row_bytes);
        }
        const auto block = [&](int r) -> const block_q4_K & { return *(const block_q4_K *) (blocks + r*row_bytes); };
        __m128i packed[16];
        alignas(32) uint16_t d[16];
        alignas(32) uint16_t dmin[16];
        for (int r = 0; r < 16; ++r) {
            uint8_t u[16];
            unpack_q4_K_scales(block(r).scales, u);
            packed[r] = _mm_loadu_si128((const __m128i *) u);
            d[r]    = block(r).d;
            dmin[r] = block(r).dmin;
        }
        __m128i columns[16];
        transpose_16_bytes(packed, columns);
        const __m512 scale_w = scales_of_f16(d);
        const __m512 min_w   = scales_of_f16(dmin);
        __m512 block_sums[16];
        for (int i = 0; i < n_x; ++i) {
            block_sums[i] = _mm512_setzero_ps();
        }
        for (int j = 0; j < 4; ++j) { // 64 columns: two sub-blocks
            __m512i dwords[8];
            transpose_16_rows(blocks + offsetof(block_q4_K, qs) + 32*j, row_bytes, dwords);
            transpose_16_rows(blocks + offsetof(block_q4_K, qs) + 32*j + 16, row_bytes, dwords + 4);
            for (int half = 0; half < 2; ++half) {
                const int s = 2*j + half;
                __m512i codes[8];
                for (int c = 0; c < 8; ++c) {
                    codes[c] = half == 0 ? low_nibbles(dwords[c]) : high_nibbles(dwords[c]);
                }
                const __m512 scale = _mm512_mul_ps(scale_w, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(columns[s])));
                const __m512 min   = _mm512_mul_ps(min_w, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(columns[8 + s])));
                for (int i = 0; i < n_x; ++i) {
                    const auto & row = ((const block_q8_K *) x[i])[b];
                    __m512i sum = _mm512_setzero_si512();
                    for (int c = 0; c < 8; ++c) {
                        sum = _mm512_dpbusd_epi32(sum, codes[c], _mm512_set1_epi32(dword_at(row.qs + 32*s + 4*c)));
                    }
                    block_sums[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, block_sums[i]);
                    block_sums[i] = _mm512_fnmadd_ps(min, _mm512_set1_ps((float) (row.bsums[2*s] + row.bsums[2*s + 1])), block_sums[i]);
                }
            }
        }
        for (int i = 0; i < n_x; ++i) {
            sums[i] = _mm512_fmadd_ps(block_sums[i], _mm512_set1_ps(((const block_q8_K *) x[i])[b].d), sums[i]);
        }
    }
    store_tile(sums, out, n_x);
}

OSTINATO_AVX512 static void dot_q6_K_tile(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    __m512 sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < n/QK_K; ++b) {
        const char * blocks = w + b*sizeof(block_q6_K);
        for (size_t line = 0; line < sizeof(block_q6_K); line += 64) {
            prefetch_tile(ahead + b*sizeof(block_q6_K) + line, row_bytes);
        }
        __m128i scales[16];
        alignas(32) uint16_t d[16];
        for (int r = 0; r < 16; ++r) {
            const auto & block = *(const block_q6_K *) (blocks + r*row_bytes);
            scales[r] = _mm_loadu_si128((const __m128i *) block.scales);
            d[r]      = block.d;
        }
        __m128i columns[16];
        transpose_16_bytes(scales, columns);
        const __m512 scale_w = scales_of_f16(d);
        __m512 block_sums[16];
        for (int i = 0; i < n_x; ++i) {
            block_sums[i] = _mm512_setzero_ps();
        }
        for (int part = 0; part < 4; ++part) { // 64 columns of each half in which two sixteens of ql meet the same of qh
            const int half = part/2;
            const int at   = part % 2*16; // columns l = at .. at + 15 of each run of 32
            __m512i low[2][4];            // ql of l and l + 32
            __m512i high[4];
            const char * ql = blocks + offsetof(block_q6_K, ql) + 64*half + at;
            transpose_16_rows(ql, row_bytes, low[0]);
            transpose_16_rows(ql + 32, row_bytes, low[1]);
            transpose_16_rows(blocks + offsetof(block_q6_K, qh) + 32*half + at, row_bytes, high);
            for (int run = 0; run < 4; ++run) { // of 32 columns
                __m512i codes[4];
                for (int c = 0; c < 4; ++c) {
                    const __m512i nibbles = run < 2 ? low_nibbles(low[run][c]) : high_nibbles(low[run - 2][c]);
                    const __m512i bits    = _mm512_and_si512(_mm512_srl_epi16(high[c], _mm_cvtsi32_si128(2*run)), _mm512_set1_epi8(0x03));
                    codes[c] = _mm512_or_si512(nibbles, _mm512_slli_epi16(bits, 4));
                }
                const int s = 8*half + 2*run + part % 2; // of sixteen columns
                const __m512 scale = _mm512_mul_ps(scale_w, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(columns[s])));
                for (int i = 0; i < n_x; ++i) {
                    const auto & row = ((const block_q8_K *) x[i])[b];
                    __m512i sum = _mm512_set1_epi32(-32*row.bsums[s]); // quants are stored with 32 added
                    for (int c = 0; c < 4; ++c) {
                        sum = _mm512_dpbusd_epi32(sum, codes[c], _mm512_set1_epi32(dword_at(row.qs + 16*s + 4*c)));
                    }
                    block_sums[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, block_sums[i]);
                }
            }
        }
        for (int i = 0; i < n_x; ++i) {
            sums[i] = _mm512_fmadd_ps(block_sums[i], _mm512_set1_ps(((const block_q8_K *) x[i])[b].d), sums[i]);
        }
    }
    store_tile(sums, out, n_x);
}

#define OSTINATO_DOT(NAME, CALL)                                                                                                         \
    OSTINATO_AVX512 static void NAME(                                                                                                    \
            int64_t n, float * out, const char * w, const char * ahead, const char * const * x, int n_x) {                               \
        int i = 0;                                                                                                                       \
        for (; i + 4 <= n_x; i += 4) { CALL(4)(n, out + i, w, ahead, x + i); }                                                                  \
        for (; i + 2 <= n_x; i += 2) { CALL(2)(n, out + i, w, ahead, x + i); }                                                                  \
        for (; i     <  n_x; i += 1) { CALL(1)(n, out + i, w, ahead, x + i); }                                                                  \
    }

#define OSTINATO_MXFP4(M) dot_split<decode_mxfp4, M>
#define OSTINATO_Q4_0(M)  dot_split<decode_q4_0, M>
#define OSTINATO_Q8_0(M)  dot_split<decode_q8_0, M>
#define OSTINATO_Q4_K(M)  dot_q4_K<M>
#define OSTINATO_Q6_K(M)  dot_q6_K<M>

OSTINATO_DOT(dot_mxfp4, OSTINATO_MXFP4)
OSTINATO_DOT(dot_q4_0,  OSTINATO_Q4_0)
OSTINATO_DOT(dot_q8_0,  OSTINATO_Q8_0)
OSTINATO_DOT(dot_q4_K_rows, OSTINATO_Q4_K)
OSTINATO_DOT(dot_q6_K_rows, OSTINATO_Q6_K)

static bool has_avx512_vnni() {
    static const bool found = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    return found;
}

#define OSTINATO_TILES_TARGET __attribute__((target("avx2,fma,f16c")))
#define OSTINATO_TILES avx2
#define OSTINATO_TILES_DOT(sum, u, s) _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)))
#include "row-tiles-256.h"
#undef OSTINATO_TILES
#undef OSTINATO_TILES_DOT
#undef OSTINATO_TILES_TARGET

#if defined(__clang__) || __GNUC__ >= 11
#define OSTINATO_TILES_TARGET __attribute__((target("avxvnni,avx2,fma,f16c")))
#define OSTINATO_TILES avxvnni
#define OSTINATO_TILES_DOT(sum, u, s) _mm256_dpbusd_avx_epi32(sum, u, s)
#include "row-tiles-256.h"
#undef OSTINATO_TILES
#undef OSTINATO_TILES_DOT
#undef OSTINATO_TILES_TARGET

// Leaf 7.1 of cpuid: the compiler's own test for it is younger than the instructions.
static bool has_avx_vnni() {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & (1u << 4)) && __builtin_cpu_supports("avx2");
}
#define OSTINATO_AVX_VNNI 1
#endif

static bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

static void set_tile_of_256_bits(ostinato_row_kernel & kernel) {
#ifdef OSTINATO_AVX_VNNI
    static const bool is_vnni = has_avx_vnni();
    if (is_vnni) {
        switch (kernel.type) {
            case GGML_TYPE_MXFP4: kernel.tile = avxvnni::split_tile<avxvnni::tile_mxfp4>; break;
            case GGML_TYPE_Q4_0:  kernel.tile = avxvnni::split_tile<avxvnni::tile_q4_0>;  break;
            case GGML_TYPE_Q8_0:  kernel.tile = avxvnni::split_tile<avxvnni::tile_q8_0>;  break;
            case GGML_TYPE_Q4_K:  kernel.tile = avxvnni::twice<avxvnni::q4_K_rows>;       break;
            case GGML_TYPE_Q6_K:  kernel.tile = avxvnni::twice<avxvnni::q6_K_rows>;       break;
            default: break;
        }
        return;
    }
#endif
    static const bool is_avx2 = has_avx2();
    if (!is_avx2) {
        return;
    }
    kernel.tile_from = 4;
    switch (kernel.type) { // products of Q8_0 are too large for sums of 16 bits
        case GGML_TYPE_MXFP4: kernel.tile = avx2::split_tile<avx2::tile_mxfp4>; break;
        case GGML_TYPE_Q4_0:  kernel.tile = avx2::split_tile<avx2::tile_q4_0>;  break;
        case GGML_TYPE_Q4_K:  kernel.tile = avx2::twice<avx2::q4_K_rows>; kernel.tile_from = 8; break; // ggml's are as fast with fewer
        case GGML_TYPE_Q6_K:  kernel.tile = avx2::twice<avx2::q6_K_rows>;       break;
        default: break;
    }
}

#endif // OSTINATO_X86

ostinato_row_kernel ostinato_find_row_kernel(ggml_type type, int64_t columns, int most_bits) {
    const auto * traits = ggml_get_type_traits_cpu(type);
    ostinato_row_kernel kernel = { type, traits->vec_dot_type, traits->vec_dot };
    GGML_UNUSED(columns);
    GGML_UNUSED(most_bits);
#ifdef OSTINATO_X86
    if (most_bits >= 512 && has_avx512_vnni()) {
        switch (type) {
            case GGML_TYPE_MXFP4: kernel.dot = dot_mxfp4;     kernel.tile = dot_split_tile<tile_mxfp4>; break;
            case GGML_TYPE_Q4_0:  kernel.dot = dot_q4_0;      kernel.tile = dot_split_tile<tile_q4_0>;  break;
            case GGML_TYPE_Q8_0:  kernel.dot = dot_q8_0;      kernel.tile = dot_split_tile<tile_q8_0>;  break;
            case GGML_TYPE_Q4_K:  kernel.dot = dot_q4_K_rows; kernel.tile = dot_q4_K_tile;              break;
            case GGML_TYPE_Q6_K:  kernel.dot = dot_q6_K_rows; kernel.tile = dot_q6_K_tile;              break;
            default: break;
        }
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
