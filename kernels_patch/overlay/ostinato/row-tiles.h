// Tiles of row-kernels.h: one weight row in each lane of 32 bits, so 16 rows at once with vectors of 512 bits, twice eight with vectors of 256. Four
// columns of a row fill its lane, and their products with four columns of an input, which all lanes share, are added at once. Weights are made unsigned
// by adding weight_offset(type); sums begin with what that adds too much.
//
// Included by row-kernels.cpp once for each instruction set, with
//   OSTINATO_TILES                a namespace,
//   OSTINATO_TILES_TARGET         the attribute that names the set,
//   OSTINATO_TILES_BITS           of a vector: 256 or 512,
//   OSTINATO_TILES_INPUTS         a class that reads blocks of 32 columns of inputs,
//   OSTINATO_TILES_DOT(sum, u, s) the products of four unsigned and four signed bytes in each lane, added to it,
// all undefined again at the end. No include guard, and no includes.

#define OSTINATO_TILES_PASTE(prefix, bits, suffix) prefix##bits##suffix
#define OSTINATO_TILES_NAME(prefix, bits, suffix) OSTINATO_TILES_PASTE(prefix, bits, suffix)
#define V(operation) OSTINATO_TILES_NAME(_mm, OSTINATO_TILES_BITS, _##operation) // V(mul_ps): _mm256_mul_ps or _mm512_mul_ps
#define SI(operation) OSTINATO_TILES_NAME(V(operation), _si, OSTINATO_TILES_BITS) // SI(and): _mm256_and_si256 or _mm512_and_si512

namespace OSTINATO_TILES {

using ints   = OSTINATO_TILES_NAME(__m, OSTINATO_TILES_BITS, i);
using floats = OSTINATO_TILES_NAME(__m, OSTINATO_TILES_BITS, );

static constexpr int ROWS = OSTINATO_TILES_BITS/32;

#if OSTINATO_TILES_BITS == 512

// 16 bytes at w + r*row_bytes for r = i, i + 4, i + 8, i + 12.
OSTINATO_TILES_TARGET static inline ints load_each_fourth(const char * w, size_t row_bytes, int i) {
    const auto row = [&](int r) { return _mm_loadu_si128((const __m128i *) (w + r*row_bytes)); };
    ints rows = _mm512_castsi128_si512(row(i));
    rows = _mm512_inserti32x4(rows, row(i + 4), 1);
    rows = _mm512_inserti32x4(rows, row(i + 8), 2);
    return _mm512_inserti32x4(rows, row(i + 12), 3);
}

// Sixteen bytes, again in every 128 bits.
OSTINATO_TILES_TARGET static inline ints repeat(__m128i bytes) {
    return _mm512_broadcast_i32x4(bytes);
}

OSTINATO_TILES_TARGET static inline floats load_f16(const uint16_t * values) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) values));
}

// Column c of what transpose_bytes left.
OSTINATO_TILES_TARGET static inline __m128i load_column(const __m128i * columns, int c) {
    return columns[c];
}

#else

// 16 bytes at w + r*row_bytes for r = i, i + 4.
OSTINATO_TILES_TARGET static inline ints load_each_fourth(const char * w, size_t row_bytes, int i) {
    const auto row = [&](int r) { return _mm_loadu_si128((const __m128i *) (w + r*row_bytes)); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(i + 4), 1);
}

OSTINATO_TILES_TARGET static inline ints repeat(__m128i bytes) {
    return _mm256_broadcastsi128_si256(bytes);
}

OSTINATO_TILES_TARGET static inline floats load_f16(const uint16_t * values) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) values));
}

OSTINATO_TILES_TARGET static inline __m128i load_column(const __m128i * columns, int c) {
    return _mm_loadl_epi64((const __m128i *) ((const char *) columns + c*ROWS));
}

#endif

// dwords[d], lane r: dword d of the 16 bytes at w + r*row_bytes.
OSTINATO_TILES_TARGET static inline void transpose_rows(const char * w, size_t row_bytes, ints * dwords) {
    ints rows[4];
    for (int i = 0; i < 4; ++i) {
        rows[i] = load_each_fourth(w, row_bytes, i);
    }
    const ints a = V(unpacklo_epi32)(rows[0], rows[1]);
    const ints b = V(unpackhi_epi32)(rows[0], rows[1]);
    const ints c = V(unpacklo_epi32)(rows[2], rows[3]);
    const ints d = V(unpackhi_epi32)(rows[2], rows[3]);
    dwords[0] = V(unpacklo_epi64)(a, c); // lane 4*l + i: row i + 4*l
    dwords[1] = V(unpackhi_epi64)(a, c);
    dwords[2] = V(unpacklo_epi64)(b, d);
    dwords[3] = V(unpackhi_epi64)(b, d);
}

// 16 bytes of each row, become ROWS bytes of each column, one column behind the other.
OSTINATO_TILES_TARGET static inline void transpose_bytes(__m128i * bytes) {
    for (int stage = 1; stage < ROWS; stage *= 2) { // each interleaves rows that are ROWS/2 apart
        __m128i to[ROWS];
        for (int r = 0; r < ROWS/2; ++r) {
            to[2*r + 0] = _mm_unpacklo_epi8(bytes[r], bytes[r + ROWS/2]);
            to[2*r + 1] = _mm_unpackhi_epi8(bytes[r], bytes[r + ROWS/2]);
        }
        for (int r = 0; r < ROWS; ++r) {
            bytes[r] = to[r];
        }
    }
}

OSTINATO_TILES_TARGET static inline ints low_nibbles(ints v) {
    return SI(and)(v, V(set1_epi8)(0x0f));
}

OSTINATO_TILES_TARGET static inline ints high_nibbles(ints v) {
    return SI(and)(V(srli_epi16)(v, 4), V(set1_epi8)(0x0f));
}

// A block of 32 columns: columns 4*j .. 4*j + 3 in codes[j], and the rows' scales.
struct decoded_tile {
    ints   codes[8];
    floats scales;
};

// Of the rows' blocks.
template <typename block>
OSTINATO_TILES_TARGET static inline floats load_scales(const char * w, size_t row_bytes) {
    alignas(32) uint16_t scales[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        scales[r] = ((const block *) (w + r*row_bytes))->d;
    }
    return load_f16(scales);
}

struct tile_mxfp4 {
    using block = block_mxfp4;
    static constexpr ggml_type type = GGML_TYPE_MXFP4;

    OSTINATO_TILES_TARGET static inline void decode(const char * w, size_t row_bytes, decoded_tile & t) {
        const ints values = repeat(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        ints dwords[4];
        transpose_rows(w + offsetof(block, qs), row_bytes, dwords);
        alignas(64) float scales[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            scales[r] = E8M0.half[((const block *) (w + r*row_bytes))->e];
        }
        for (int d = 0; d < 4; ++d) {
            t.codes[d]     = V(shuffle_epi8)(values, low_nibbles(dwords[d]));
            t.codes[4 + d] = V(shuffle_epi8)(values, high_nibbles(dwords[d]));
        }
        t.scales = V(load_ps)(scales);
    }
};

struct tile_q4_0 {
    using block = block_q4_0;
    static constexpr ggml_type type = GGML_TYPE_Q4_0;

    OSTINATO_TILES_TARGET static inline void decode(const char * w, size_t row_bytes, decoded_tile & t) {
        ints dwords[4];
        transpose_rows(w + offsetof(block, qs), row_bytes, dwords);
        for (int d = 0; d < 4; ++d) {
            t.codes[d]     = low_nibbles(dwords[d]);
            t.codes[4 + d] = high_nibbles(dwords[d]);
        }
        t.scales = load_scales<block>(w, row_bytes);
    }
};

struct tile_q8_0 {
    using block = block_q8_0;
    static constexpr ggml_type type = GGML_TYPE_Q8_0;

    OSTINATO_TILES_TARGET static inline void decode(const char * w, size_t row_bytes, decoded_tile & t) {
        transpose_rows(w + offsetof(block, qs), row_bytes, t.codes);
        transpose_rows(w + offsetof(block, qs) + 16, row_bytes, t.codes + 4);
        for (int d = 0; d < 8; ++d) {
            t.codes[d] = SI(xor)(t.codes[d], V(set1_epi8)((char) 0x80));
        }
        t.scales = load_scales<block>(w, row_bytes);
    }
};

OSTINATO_TILES_TARGET static inline void store_rows(const floats * sums, float (*out)[16], int n_x) {
    for (int i = 0; i < n_x; ++i) {
        alignas(64) float lanes[ROWS];
        V(store_ps)(lanes, sums[i]);
        for (int r = 0; r < ROWS; ++r) {
            out[r][i] = lanes[r];
        }
    }
}

// A cache line of each row.
static inline void prefetch_rows(const char * ahead, size_t row_bytes) {
    for (int r = 0; r < ROWS; ++r) {
        prefetch(ahead + r*row_bytes, 64);
    }
}

template <typename tile>
OSTINATO_TILES_TARGET static inline void split_rows(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const OSTINATO_TILES_INPUTS & inputs, int n_x) {
    constexpr size_t BLOCK = sizeof(typename tile::block);
    floats sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = V(setzero_ps)();
    }
    size_t prefetched = 0;
    for (int64_t b = 0; b < n/SPLIT_BLOCK; ++b) {
        if (b*BLOCK >= prefetched) {
            prefetch_rows(ahead + prefetched, row_bytes);
            prefetched += 64;
        }
        decoded_tile t;
        tile::decode(w + b*BLOCK, row_bytes, t);
        for (int i = 0; i < n_x; ++i) {
            const char * q = inputs.quants(i, b);
            ints sum = V(set1_epi32)(inputs.start(i, b));
            for (int j = 0; j < 8; ++j) {
                sum = OSTINATO_TILES_DOT(sum, t.codes[j], V(set1_epi32)(dword_at(q + 4*j)));
            }
            const floats scale = V(mul_ps)(t.scales, V(set1_ps)(inputs.scale(i, b)));
            sums[i] = V(fmadd_ps)(V(cvtepi32_ps)(sum), scale, sums[i]);
        }
    }
    store_rows(sums, out, n_x);
}

OSTINATO_TILES_TARGET static inline void q4_K_rows(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    floats sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = V(setzero_ps)();
    }
    for (int64_t b = 0; b < n/QK_K; ++b) {
        const char * blocks = w + b*sizeof(block_q4_K);
        for (size_t line = 0; line < sizeof(block_q4_K); line += 64) {
            prefetch_rows(ahead + b*sizeof(block_q4_K) + line, row_bytes);
        }
        const auto block = [&](int r) -> const block_q4_K & { return *(const block_q4_K *) (blocks + r*row_bytes); };
        __m128i factors[ROWS]; // eight scales, then eight mins, of each row
        alignas(32) uint16_t d[ROWS];
        alignas(32) uint16_t dmin[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            factors[r] = scales_and_mins(block(r));
            d[r]    = block(r).d;
            dmin[r] = block(r).dmin;
        }
        transpose_bytes(factors);
        const floats scale_w = load_f16(d);
        const floats min_w   = load_f16(dmin);
        floats block_sums[16];
        for (int i = 0; i < n_x; ++i) {
            block_sums[i] = V(setzero_ps)();
        }
        for (int j = 0; j < 4; ++j) { // 64 columns: two sub-blocks
            ints dwords[8];
            transpose_rows(blocks + offsetof(block_q4_K, qs) + 32*j, row_bytes, dwords);
            transpose_rows(blocks + offsetof(block_q4_K, qs) + 32*j + 16, row_bytes, dwords + 4);
            for (int half = 0; half < 2; ++half) {
                const int s = 2*j + half;
                ints codes[8];
                for (int c = 0; c < 8; ++c) {
                    codes[c] = half == 0 ? low_nibbles(dwords[c]) : high_nibbles(dwords[c]);
                }
                const floats scale = V(mul_ps)(scale_w, V(cvtepi32_ps)(V(cvtepu8_epi32)(load_column(factors, s))));
                const floats min   = V(mul_ps)(min_w, V(cvtepi32_ps)(V(cvtepu8_epi32)(load_column(factors, 8 + s))));
                for (int i = 0; i < n_x; ++i) {
                    const auto & row = ((const block_q8_K *) x[i])[b];
                    ints sum = V(set1_epi32)(0);
                    for (int c = 0; c < 8; ++c) {
                        sum = OSTINATO_TILES_DOT(sum, codes[c], V(set1_epi32)(dword_at(row.qs + 32*s + 4*c)));
                    }
                    block_sums[i] = V(fmadd_ps)(V(cvtepi32_ps)(sum), scale, block_sums[i]);
                    block_sums[i] = V(fnmadd_ps)(min, V(set1_ps)((float) (row.bsums[2*s] + row.bsums[2*s + 1])), block_sums[i]);
                }
            }
        }
        for (int i = 0; i < n_x; ++i) {
            sums[i] = V(fmadd_ps)(block_sums[i], V(set1_ps)(((const block_q8_K *) x[i])[b].d), sums[i]);
        }
    }
    store_rows(sums, out, n_x);
}

OSTINATO_TILES_TARGET static inline void q6_K_rows(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    floats sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = V(setzero_ps)();
    }
    for (int64_t b = 0; b < n/QK_K; ++b) {
        const char * blocks = w + b*sizeof(block_q6_K);
        for (size_t line = 0; line < sizeof(block_q6_K); line += 64) {
            prefetch_rows(ahead + b*sizeof(block_q6_K) + line, row_bytes);
        }
        __m128i factors[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            factors[r] = _mm_loadu_si128((const __m128i *) ((const block_q6_K *) (blocks + r*row_bytes))->scales);
        }
        transpose_bytes(factors);
        const floats scale_w = load_scales<block_q6_K>(blocks, row_bytes);
        floats block_sums[16];
        for (int i = 0; i < n_x; ++i) {
            block_sums[i] = V(setzero_ps)();
        }
        for (int part = 0; part < 4; ++part) { // 64 columns of each half in which two sixteens of ql meet the same of qh
            const int half = part/2;
            const int at   = part % 2*16; // columns l = at .. at + 15 of each run of 32
            ints low[2][4];               // ql of l and l + 32
            ints high[4];
            const char * ql = blocks + offsetof(block_q6_K, ql) + 64*half + at;
            transpose_rows(ql, row_bytes, low[0]);
            transpose_rows(ql + 32, row_bytes, low[1]);
            transpose_rows(blocks + offsetof(block_q6_K, qh) + 32*half + at, row_bytes, high);
            for (int run = 0; run < 4; ++run) { // of 32 columns
                ints codes[4];
                for (int c = 0; c < 4; ++c) {
                    const ints nibbles = run < 2 ? low_nibbles(low[run][c]) : high_nibbles(low[run - 2][c]);
                    const ints bits    = SI(and)(V(srl_epi16)(high[c], _mm_cvtsi32_si128(2*run)), V(set1_epi8)(0x03));
                    codes[c] = SI(or)(nibbles, V(slli_epi16)(bits, 4));
                }
                const int s = 8*half + 2*run + part % 2; // of sixteen columns
                const floats scale = V(mul_ps)(scale_w, V(cvtepi32_ps)(V(cvtepi8_epi32)(load_column(factors, s))));
                for (int i = 0; i < n_x; ++i) {
                    const auto & row = ((const block_q8_K *) x[i])[b];
                    ints sum = V(set1_epi32)(-32*row.bsums[s]); // quants are stored with 32 added
                    for (int c = 0; c < 4; ++c) {
                        sum = OSTINATO_TILES_DOT(sum, codes[c], V(set1_epi32)(dword_at(row.qs + 16*s + 4*c)));
                    }
                    block_sums[i] = V(fmadd_ps)(V(cvtepi32_ps)(sum), scale, block_sums[i]);
                }
            }
        }
        for (int i = 0; i < n_x; ++i) {
            sums[i] = V(fmadd_ps)(block_sums[i], V(set1_ps)(((const block_q8_K *) x[i])[b].d), sums[i]);
        }
    }
    store_rows(sums, out, n_x);
}

// Sixteen rows of a weight with blocks of 32 columns.
template <typename tile>
OSTINATO_TILES_TARGET static void split_tile(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    const OSTINATO_TILES_INPUTS inputs(x, n_x, n, weight_offset(tile::type));
    for (int r = 0; r < OSTINATO_TILE; r += ROWS) {
        split_rows<tile>(n, out + r, w + r*row_bytes, row_bytes, ahead + r*row_bytes, inputs, n_x);
    }
}

// Sixteen rows of a weight with blocks of 256 columns.
template <void (*rows)(int64_t, float (*)[16], const char *, size_t, const char *, const char * const *, int)>
OSTINATO_TILES_TARGET static void tile_of_rows(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    for (int r = 0; r < OSTINATO_TILE; r += ROWS) {
        rows(n, out + r, w + r*row_bytes, row_bytes, ahead + r*row_bytes, x, n_x);
    }
}

// ostinato_row_kernel::tile of a weight type, or nullptr.
static decltype(ostinato_row_kernel::tile) tile_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_MXFP4: return split_tile<tile_mxfp4>;
        case GGML_TYPE_Q4_0:  return split_tile<tile_q4_0>;
        case GGML_TYPE_Q8_0:  return split_tile<tile_q8_0>;
        case GGML_TYPE_Q4_K:  return tile_of_rows<q4_K_rows>;
        case GGML_TYPE_Q6_K:  return tile_of_rows<q6_K_rows>;
        default:              return nullptr;
    }
}

} // namespace OSTINATO_TILES

#undef SI
#undef V
#undef OSTINATO_TILES_NAME
#undef OSTINATO_TILES_PASTE
#undef OSTINATO_TILES
#undef OSTINATO_TILES_TARGET
#undef OSTINATO_TILES_BITS
#undef OSTINATO_TILES_INPUTS
#undef OSTINATO_TILES_DOT
