// The operations of AVX-512 that row-dots.h and row-tiles.h use, in software: their kernels then run, slowly, on any CPU with AVX2. Included before them.

#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#pragma GCC diagnostic ignored "-Wpsabi" // vectors of 64 bytes are passed between functions of one program only

// One vector by the sizes of its parts.
union model512 {
    __m512i  ints;
    __m512   floats;
    __m256i  halves[2];
    __m128i  quarters[4];
    uint64_t u64[8];
    uint32_t u32[16];
    int32_t  s32[16];
    float    f32[16];
    uint16_t u16[32];
    int16_t  s16[32];
    uint8_t  u8[64];
    int8_t   s8[64];

    model512() { memset(this, 0, sizeof(*this)); }
    model512(__m512i v) : ints(v) {}
    model512(__m512 v) : floats(v) {}

    operator __m512i() const { return ints; }
    operator __m512() const { return floats; }
};

template <typename operation>
static model512 each_32(operation value) {
    model512 r;
    for (int i = 0; i < 16; ++i) {
        r.u32[i] = (uint32_t) value(i);
    }
    return r;
}

template <typename operation>
static model512 each_float(operation value) {
    model512 r;
    for (int i = 0; i < 16; ++i) {
        r.f32[i] = value(i);
    }
    return r;
}

static inline __m512i model_broadcast_i32x4(__m128i v) {
    model512 r;
    for (__m128i & quarter : r.quarters) {
        quarter = v;
    }
    return r;
}

static inline __m512i model_mask_broadcast_i32x4(model512 otherwise, int mask, __m128i v) {
    const model512 all = model_broadcast_i32x4(v);
    return each_32([&](int i) { return mask >> i & 1 ? all.u32[i] : otherwise.u32[i]; });
}

static inline __m512i model_broadcast_i64x4(__m256i v) {
    model512 r;
    r.halves[0] = r.halves[1] = v;
    return r;
}

static inline __m512i model_castsi128_si512(__m128i v) {
    model512 r;
    r.quarters[0] = v;
    return r;
}

static inline __m512i model_inserti32x4(model512 v, __m128i quarter, int at) {
    v.quarters[at] = quarter;
    return v;
}

static inline __m512i model_unpack_epi32(model512 a, model512 b, int first) {
    return each_32([&](int i) { return (i % 2 ? b : a).u32[i/4*4 + first + i % 4/2]; });
}

static inline __m512i model_unpacklo_epi32(model512 a, model512 b) {
    return model_unpack_epi32(a, b, 0);
}

static inline __m512i model_unpackhi_epi32(model512 a, model512 b) {
    return model_unpack_epi32(a, b, 2);
}

static inline __m512i model_unpacklo_epi64(model512 a, model512 b) {
    return each_32([&](int i) { return (i % 4 < 2 ? a : b).u32[i/4*4 + i % 2]; });
}

static inline __m512i model_unpackhi_epi64(model512 a, model512 b) {
    return each_32([&](int i) { return (i % 4 < 2 ? a : b).u32[i/4*4 + 2 + i % 2]; });
}

static inline __m512i model_inserti64x4(model512 v, __m256i half, int at) {
    v.halves[at] = half;
    return v;
}

static inline __m512i model_set_epi64(uint64_t h, uint64_t g, uint64_t f, uint64_t e, uint64_t d, uint64_t c, uint64_t b, uint64_t a) {
    const uint64_t values[] = { a, b, c, d, e, f, g, h };
    model512 r;
    memcpy(r.u64, values, sizeof(values));
    return r;
}

static inline __m512i model_setr_epi32(
        int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m, int n, int o, int p) {
    const int values[] = { a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p };
    model512 r;
    memcpy(r.s32, values, sizeof(values));
    return r;
}

static inline __m512i model_set1_epi8(int v) {
    model512 r;
    memset(r.u8, v, sizeof(r.u8));
    return r;
}

static inline __m512i model_set1_epi16(int v) {
    model512 r;
    for (int16_t & word : r.s16) {
        word = (int16_t) v;
    }
    return r;
}

static inline __m512i model_set1_epi32(int v) {
    return each_32([&](int) { return v; });
}

static inline __m512 model_set1_ps(float v) {
    return each_float([&](int) { return v; });
}

static inline __m512i model_multishift_epi64_epi8(model512 shifts, model512 v) {
    model512 r;
    for (int i = 0; i < 64; ++i) {
        const int shift = shifts.u8[i] & 63;
        const uint64_t q = v.u64[i/8];
        r.u8[i] = (uint8_t) (shift == 0 ? q : q >> shift | q << (64 - shift));
    }
    return r;
}

static inline __m512i model_maskz_permutexvar_epi8(uint64_t mask, model512 which, model512 v) {
    model512 r;
    for (int i = 0; i < 64; ++i) {
        r.u8[i] = mask >> i & 1 ? v.u8[which.u8[i] & 63] : 0;
    }
    return r;
}

static inline __m512i model_maskz_permutex2var_epi8(uint64_t mask, model512 a, model512 which, model512 b) {
    model512 r;
    for (int i = 0; i < 64; ++i) {
        const int from = which.u8[i] & 127;
        r.u8[i] = mask >> i & 1 ? (from < 64 ? a.u8[from] : b.u8[from - 64]) : 0;
    }
    return r;
}

static inline __m512i model_permutexvar_epi8(model512 which, model512 v) {
    return model_maskz_permutexvar_epi8(~0ull, which, v);
}

static inline __m512 model_permutexvar_ps(model512 which, model512 v) {
    return each_float([&](int i) { return v.f32[which.u32[i] & 15]; });
}

static inline __m512i model_and_si512(model512 a, model512 b) {
    return each_32([&](int i) { return a.u32[i] & b.u32[i]; });
}

static inline __m512i model_or_si512(model512 a, model512 b) {
    return each_32([&](int i) { return a.u32[i] | b.u32[i]; });
}

static inline __m512i model_xor_si512(model512 a, model512 b) {
    return each_32([&](int i) { return a.u32[i] ^ b.u32[i]; });
}

static inline __m512i model_srli_epi16(model512 v, unsigned n) {
    for (uint16_t & word : v.u16) {
        word = (uint16_t) (word >> n);
    }
    return v;
}

static inline __m512i model_srl_epi16(model512 v, __m128i n) {
    return model_srli_epi16(v, (unsigned) _mm_cvtsi128_si32(n));
}

static inline __m512i model_slli_epi16(model512 v, unsigned n) {
    for (uint16_t & word : v.u16) {
        word = (uint16_t) (word << n);
    }
    return v;
}

static inline __m512i model_slli_epi32(model512 v, unsigned n) {
    return each_32([&](int i) { return v.u32[i] << n; });
}

static inline __m512i model_add_epi32(model512 a, model512 b) {
    return each_32([&](int i) { return a.u32[i] + b.u32[i]; });
}

static inline __m512i model_sub_epi32(model512 a, model512 b) {
    return each_32([&](int i) { return a.u32[i] - b.u32[i]; });
}

static inline __m512i model_max_epi32(model512 a, model512 b) {
    return each_32([&](int i) { return a.s32[i] > b.s32[i] ? a.s32[i] : b.s32[i]; });
}

static inline __m512i model_srlv_epi16(model512 v, model512 n) {
    for (int i = 0; i < 32; ++i) {
        v.u16[i] = (uint16_t) (n.u16[i] < 16 ? v.u16[i] >> n.u16[i] : 0);
    }
    return v;
}

static inline __m512i model_mullo_epi32(model512 a, model512 b) {
    return each_32([&](int i) { return a.u32[i]*b.u32[i]; });
}

static inline __m512i model_dpbusd_epi32(model512 sum, model512 a, model512 b) {
    for (int i = 0; i < 64; ++i) {
        sum.s32[i/4] += a.u8[i]*b.s8[i];
    }
    return sum;
}

static inline __m512i model_dpwssd_epi32(model512 sum, model512 a, model512 b) {
    for (int i = 0; i < 32; ++i) {
        sum.s32[i/2] += a.s16[i]*b.s16[i];
    }
    return sum;
}

// The processor's saturates; no product here may come near that.
static inline __m512i model_maddubs_epi16(model512 a, model512 b) {
    model512 r;
    for (int i = 0; i < 32; ++i) {
        const int sum = a.u8[2*i]*b.s8[2*i] + a.u8[2*i + 1]*b.s8[2*i + 1];
        if (sum < INT16_MIN || sum > INT16_MAX) {
            abort();
        }
        r.s16[i] = (int16_t) sum;
    }
    return r;
}

static inline __m512i model_cvtepu8_epi32(__m128i v) {
    const model512 bytes = model_castsi128_si512(v);
    return each_32([&](int i) { return bytes.u8[i]; });
}

static inline __m512i model_cvtepi8_epi32(__m128i v) {
    const model512 bytes = model_castsi128_si512(v);
    return each_32([&](int i) { return bytes.s8[i]; });
}

static inline __m512 model_castsi512_ps(model512 v) {
    return v;
}

static inline __m512i model_loadu_si512(const void * data) {
    model512 r;
    memcpy(&r, data, sizeof(r));
    return r;
}

static inline __m512i model_load_si512(const void * data) {
    if ((uintptr_t) data % 64) {
        abort();
    }
    return model_loadu_si512(data);
}

static inline __m512i model_maskz_loadu_epi32(int mask, const void * data) {
    model512 r;
    for (int i = 0; i < 16; ++i) {
        if (mask >> i & 1) {
            memcpy(&r.u32[i], (const char *) data + 4*i, 4);
        }
    }
    return r;
}

static inline __m512 model_maskz_loadu_ps(int mask, const void * data) {
    return model512(model_maskz_loadu_epi32(mask, data));
}

static inline __m512i model_mask_i32gather_epi32(model512 otherwise, int mask, model512 places, const void * base, int scale) {
    for (int i = 0; i < 16; ++i) {
        if (mask >> i & 1) {
            memcpy(&otherwise.u32[i], (const char *) base + (int64_t) places.s32[i]*scale, 4);
        }
    }
    return otherwise;
}

static inline __m256i model_cvtepi32_epi16(model512 v) {
    model512 r;
    for (int i = 0; i < 16; ++i) {
        r.u16[i] = (uint16_t) v.u32[i];
    }
    return r.halves[0];
}

static inline __m512 model_cvtph_ps(__m256i v) {
    model512 r;
    r.halves[0] = v;
    return each_float([&](int i) { return _cvtsh_ss(r.u16[i]); });
}

static inline __m512 model_cvtepi32_ps(model512 v) {
    return each_float([&](int i) { return (float) v.s32[i]; });
}

static inline __m256i model_castsi512_si256(model512 v) {
    return v.halves[0];
}

static inline __m512i model_zextsi128_si512(__m128i v) {
    model512 r;
    r.quarters[0] = v;
    return r;
}

static inline __m512 model_zextps256_ps512(__m256 v) {
    model512 r;
    r.halves[0] = _mm256_castps_si256(v);
    return r;
}

static inline __m512 model_setzero_ps() {
    return model512();
}

static inline __m512i model_setzero_si512() {
    return model512();
}

static inline __m512 model_mul_ps(model512 a, model512 b) {
    return each_float([&](int i) { return a.f32[i]*b.f32[i]; });
}

// a times two to the power of b, rounded down; the result may be denormal.
static inline __m512 model_scalef_ps(model512 a, model512 b) {
    return each_float([&](int i) { return std::ldexp(a.f32[i], (int) std::floor(b.f32[i])); });
}

static inline __m512 model_add_ps(model512 a, model512 b) {
    return each_float([&](int i) { return a.f32[i] + b.f32[i]; });
}

static inline __m512 model_sub_ps(model512 a, model512 b) {
    return each_float([&](int i) { return a.f32[i] - b.f32[i]; });
}

static inline __m512 model_fmadd_ps(model512 a, model512 b, model512 c) {
    return each_float([&](int i) { return std::fma(a.f32[i], b.f32[i], c.f32[i]); });
}

static inline __m512 model_fnmadd_ps(model512 a, model512 b, model512 c) {
    return each_float([&](int i) { return std::fma(-a.f32[i], b.f32[i], c.f32[i]); });
}

static inline void model_store_ps(void * to, model512 v) {
    if ((uintptr_t) to % 64) {
        abort();
    }
    memcpy(to, &v, sizeof(v));
}

static inline float model_reduce_add_ps(model512 v) {
    for (int n = 8; n > 0; n /= 2) {
        for (int i = 0; i < n; ++i) {
            v.f32[i] += v.f32[i + n];
        }
    }
    return v.f32[0];
}

#define _mm512_broadcast_i32x4 model_broadcast_i32x4
#define _mm512_mask_broadcast_i32x4 model_mask_broadcast_i32x4
#define _mm512_broadcast_i64x4 model_broadcast_i64x4
#define _mm512_inserti64x4 model_inserti64x4
#define _mm512_set_epi64 model_set_epi64
#undef _mm512_setr_epi32 // a macro in immintrin.h
#define _mm512_setr_epi32 model_setr_epi32
#define _mm512_set1_epi8 model_set1_epi8
#define _mm512_set1_epi16 model_set1_epi16
#define _mm512_set1_epi32 model_set1_epi32
#define _mm512_set1_ps model_set1_ps
#define _mm512_multishift_epi64_epi8 model_multishift_epi64_epi8
#define _mm512_maskz_permutexvar_epi8 model_maskz_permutexvar_epi8
#define _mm512_maskz_permutex2var_epi8 model_maskz_permutex2var_epi8
#define _mm512_castsi512_si256 model_castsi512_si256
#define _mm512_permutexvar_epi8 model_permutexvar_epi8
#define _mm512_permutexvar_ps model_permutexvar_ps
#define _mm512_and_si512 model_and_si512
#define _mm512_srlv_epi16 model_srlv_epi16
#define _mm512_mullo_epi32 model_mullo_epi32
#define _mm512_dpbusd_epi32 model_dpbusd_epi32
#define _mm512_dpwssd_epi32 model_dpwssd_epi32
#define _mm512_maddubs_epi16 model_maddubs_epi16
#define _mm512_loadu_si512 model_loadu_si512
#define _mm512_load_si512 model_load_si512
#define _mm512_maskz_loadu_epi32 model_maskz_loadu_epi32
#define _mm512_maskz_loadu_ps model_maskz_loadu_ps
#define _mm512_mask_i32gather_epi32 model_mask_i32gather_epi32
#define _mm512_cvtepi32_epi16 model_cvtepi32_epi16
#define _mm512_cvtph_ps model_cvtph_ps
#define _mm512_cvtepi32_ps model_cvtepi32_ps
#define _mm512_zextsi128_si512 model_zextsi128_si512
#define _mm512_zextps256_ps512 model_zextps256_ps512
#define _mm512_setzero_ps model_setzero_ps
#define _mm512_setzero_si512 model_setzero_si512
#define _mm512_mul_ps model_mul_ps
#define _mm512_scalef_ps model_scalef_ps
#define _mm512_add_ps model_add_ps
#define _mm512_sub_ps model_sub_ps
#define _mm512_fmadd_ps model_fmadd_ps
#define _mm512_reduce_add_ps model_reduce_add_ps
#define _mm512_castsi128_si512 model_castsi128_si512
#define _mm512_inserti32x4 model_inserti32x4
#define _mm512_unpacklo_epi32 model_unpacklo_epi32
#define _mm512_unpackhi_epi32 model_unpackhi_epi32
#define _mm512_unpacklo_epi64 model_unpacklo_epi64
#define _mm512_unpackhi_epi64 model_unpackhi_epi64
#define _mm512_or_si512 model_or_si512
#define _mm512_xor_si512 model_xor_si512
#define _mm512_srli_epi16 model_srli_epi16
#define _mm512_srl_epi16 model_srl_epi16
#define _mm512_slli_epi16 model_slli_epi16
#define _mm512_slli_epi32 model_slli_epi32
#define _mm512_add_epi32 model_add_epi32
#define _mm512_sub_epi32 model_sub_epi32
#define _mm512_max_epi32 model_max_epi32
#define _mm512_cvtepu8_epi32 model_cvtepu8_epi32
#define _mm512_cvtepi8_epi32 model_cvtepi8_epi32
#define _mm512_castsi512_ps model_castsi512_ps
#define _mm512_fnmadd_ps model_fnmadd_ps
#define _mm512_store_ps model_store_ps
