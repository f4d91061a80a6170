// What row-tiles-amx.h needs of a processor with AMX beyond plain vectors. Included by row-kernels.cpp, behind the AVX-512 tiles, whose transpose it uses.

#pragma once

#define OSTINATO_AMX_INT8 \
    __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")))

struct amx_machine {
    using ints   = int32_t __attribute__((vector_size(64)));
    using floats = float __attribute__((vector_size(64)));

    // dwords[d], lane r: dword d of the 16 bytes at w + r*row_bytes.
    OSTINATO_AMX_INT8 static inline void transpose_rows(const char * w, size_t row_bytes, ints * dwords) {
        avx512::transpose_rows(avx512::tile_rows(w, row_bytes), 0, (__m512i *) dwords);
    }

    // Lane r: r*row_bytes.
    OSTINATO_AMX_INT8 static inline ints offsets(size_t row_bytes) {
        return (ints) _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32((int) row_bytes));
    }

    // The dword at `at` + offset in each lane.
    OSTINATO_AMX_INT8 static inline ints gather(const char * at, ints offsets) {
        return (ints) _mm512_i32gather_epi32((__m512i) offsets, at, 1);
    }

    // A table for look_up.
    OSTINATO_AMX_INT8 static inline ints repeat(const int8_t * values) {
        return (ints) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) values));
    }

    // In each byte what the table has for its four lowest bits.
    OSTINATO_AMX_INT8 static inline ints look_up(ints table, ints codes) {
        return (ints) _mm512_permutexvar_epi8((__m512i) codes, (__m512i) table);
    }

    // The f16 in each lane's lower half.
    OSTINATO_AMX_INT8 static inline floats from_f16(ints v) {
        return (floats) _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i) v));
    }

    OSTINATO_AMX_INT8 static inline floats fma(floats a, floats b, floats c) {
        return (floats) _mm512_fmadd_ps((__m512) a, (__m512) b, (__m512) c);
    }

    OSTINATO_AMX_INT8 static inline floats fma(floats a, float b, floats c) {
        return (floats) _mm512_fmadd_ps((__m512) a, _mm512_set1_ps(b), (__m512) c);
    }

    // c - a*b
    OSTINATO_AMX_INT8 static inline floats fnma(floats a, float b, floats c) {
        return (floats) _mm512_fnmadd_ps((__m512) a, _mm512_set1_ps(b), (__m512) c);
    }

    // Not the compiler's own intrinsics: GCC's don't say what memory they read, and take no template arguments.

    OSTINATO_AMX_INT8 static inline void store_config(void * config) {
        __asm__ volatile("sttilecfg (%0)" :: "r"(config) : "memory");
    }

    OSTINATO_AMX_INT8 static inline void load_config(const void * config) {
        __asm__ volatile("ldtilecfg (%0)" :: "r"(config) : "memory");
    }

    template <int T>
    OSTINATO_AMX_INT8 static inline void zero() {
        __asm__ volatile("tilezero %%tmm%c0" :: "i"(T));
    }

    template <int T>
    OSTINATO_AMX_INT8 static inline void load(const void * from, size_t step) {
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" :: "r"(from), "r"(step), "i"(T) : "memory");
    }

    template <int T>
    OSTINATO_AMX_INT8 static inline void store(void * to, size_t step) {
        __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" :: "r"(to), "r"(step), "i"(T) : "memory");
    }

    // Signed bytes of A and B: four of a row of A with the four that a row of B has for each lane.
    template <int SUM, int A, int B>
    OSTINATO_AMX_INT8 static inline void dot() {
        __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" :: "i"(SUM), "i"(A), "i"(B));
    }
};

// Whether the processor has all of it and the kernel lets this process use tile registers, which it must be asked for once.
static bool may_use_amx() {
#ifdef __linux__
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    constexpr unsigned VBMI = 1u << 1;
    constexpr unsigned AMX  = 1u << 24 | 1u << 25; // tile, int8
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(ecx & VBMI) || (edx & AMX) != AMX) {
        return false;
    }
    constexpr long REQUEST_PERMISSION = 0x1023; // ARCH_REQ_XCOMP_PERM
    constexpr long TILE_DATA = 18;              // XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}
