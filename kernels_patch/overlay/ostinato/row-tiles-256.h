// Tiles of row-kernels.h for processors with vectors of 256 bits: eight rows at once, one in each lane, twice. Included by row-kernels.cpp once for each
// instruction set, with OSTINATO_TILES naming a namespace, OSTINATO_TILES_TARGET the set, and
// OSTINATO_TILES_DOT(sum, u, s) the products of four unsigned and four signed bytes in each lane, added to it.
//
// No include guard, and no includes.

namespace OSTINATO_TILES {

static constexpr int ROWS = 8;
static constexpr int64_t MAX_BLOCKS = MAX_COLUMNS/SPLIT_BLOCK;

// dwords[d], lane r: dword d of the 16 bytes at w + r*row_bytes.
OSTINATO_TILES_TARGET static inline void transpose_rows(const char * w, size_t row_bytes, __m256i * dwords) {
    __m256i rows[4]; // number i: rows i and i + 4
    for (int i = 0; i < 4; ++i) {
        const __m128i low  = _mm_loadu_si128((const __m128i *) (w + i*row_bytes));
        const __m128i high = _mm_loadu_si128((const __m128i *) (w + (i + 4)*row_bytes));
        rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]);
    const __m256i b = _mm256_unpackhi_epi32(rows[0], rows[1]);
    const __m256i c = _mm256_unpacklo_epi32(rows[2], rows[3]);
    const __m256i d = _mm256_unpackhi_epi32(rows[2], rows[3]);
    dwords[0] = _mm256_unpacklo_epi64(a, c);
    dwords[1] = _mm256_unpackhi_epi64(a, c);
    dwords[2] = _mm256_unpacklo_epi64(b, d);
    dwords[3] = _mm256_unpackhi_epi64(b, d);
}

OSTINATO_TILES_TARGET static inline __m256i low_nibbles(__m256i v) {
    return _mm256_and_si256(v, _mm256_set1_epi8(0x0f));
}

OSTINATO_TILES_TARGET static inline __m256i high_nibbles(__m256i v) {
    return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(0x0f));
}

// A value of each row's block, `get` of it.
template <typename block, typename F>
OSTINATO_TILES_TARGET static inline __m256 of_rows(const char * w, size_t row_bytes, F get) {
    alignas(32) float values[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        values[r] = get(*(const block *) (w + r*row_bytes));
    }
    return _mm256_load_ps(values);
}

struct decoded_tile {
    __m256i codes[8]; // columns 4*j .. 4*j + 3 of the rows
    __m256  scales;
};

struct tile_mxfp4 {
    using block = block_mxfp4;
    static constexpr int32_t offset = weight_offset(GGML_TYPE_MXFP4);

    OSTINATO_TILES_TARGET static inline void decode(const char * w, size_t row_bytes, decoded_tile & t) {
        const __m256i values = _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        __m256i dwords[4];
        transpose_rows(w + offsetof(block, qs), row_bytes, dwords);
        for (int d = 0; d < 4; ++d) {
            t.codes[d]     = _mm256_shuffle_epi8(values, low_nibbles(dwords[d]));
            t.codes[4 + d] = _mm256_shuffle_epi8(values, high_nibbles(dwords[d]));
        }
        t.scales = of_rows<block>(w, row_bytes, [](const block & b) { return E8M0.half[b.e]; });
    }
};

struct tile_q4_0 {
    using block = block_q4_0;
    static constexpr int32_t offset = weight_offset(GGML_TYPE_Q4_0);

    OSTINATO_TILES_TARGET static inline void decode(const char * w, size_t row_bytes, decoded_tile & t) {
        __m256i dwords[4];
        transpose_rows(w + offsetof(block, qs), row_bytes, dwords);
        for (int d = 0; d < 4; ++d) {
            t.codes[d]     = low_nibbles(dwords[d]);
            t.codes[4 + d] = high_nibbles(dwords[d]);
        }
        t.scales = of_rows<block>(w, row_bytes, [](const block & b) { return ggml_fp16_to_fp32(b.d); });
    }
};

struct tile_q8_0 {
    using block = block_q8_0;
    static constexpr int32_t offset = weight_offset(GGML_TYPE_Q8_0);

    OSTINATO_TILES_TARGET static inline void decode(const char * w, size_t row_bytes, decoded_tile & t) {
        transpose_rows(w + offsetof(block, qs), row_bytes, t.codes);
        transpose_rows(w + offsetof(block, qs) + 16, row_bytes, t.codes + 4);
        for (int d = 0; d < 8; ++d) {
            t.codes[d] = _mm256_xor_si256(t.codes[d], _mm256_set1_epi8((char) 0x80));
        }
        t.scales = of_rows<block>(w, row_bytes, [](const block & b) { return ggml_fp16_to_fp32(b.d); });
    }
};

OSTINATO_TILES_TARGET static inline void store_rows(const __m256 * sums, float (*out)[16], int n_x) {
    for (int i = 0; i < n_x; ++i) {
        alignas(32) float lanes[ROWS];
        _mm256_store_ps(lanes, sums[i]);
        for (int r = 0; r < ROWS; ++r) {
            out[r][i] = lanes[r];
        }
    }
}

static inline void prefetch_rows(const char * ahead, size_t row_bytes) {
    for (int r = 0; r < ROWS; ++r) {
        prefetch(ahead + r*row_bytes, 64);
    }
}

// What a tile needs of its inputs' blocks beyond the quants.
struct input_blocks {
    float   scales[16][MAX_BLOCKS];
    int32_t starts[16][MAX_BLOCKS]; // of sums: what `offset` adds too much

    OSTINATO_TILES_TARGET input_blocks(const char * const * x, int n_x, int64_t n_blocks, int32_t offset) {
        const __m256i ones = _mm256_set1_epi8(1);
        for (int i = 0; i < n_x; ++i) {
            const auto * blocks = (const block_q8_0 *) x[i];
            for (int64_t b = 0; b < n_blocks; ++b) {
                const __m256i q      = _mm256_loadu_si256((const __m256i *) blocks[b].qs);
                const __m256i eights = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, q), _mm256_set1_epi16(1));
                const __m128i fours  = _mm_add_epi32(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
                const __m128i twos   = _mm_add_epi32(fours, _mm_shuffle_epi32(fours, 0x4e));
                starts[i][b] = -offset*_mm_cvtsi128_si32(_mm_add_epi32(twos, _mm_shuffle_epi32(twos, 0xb1)));
                scales[i][b] = _cvtsh_ss(blocks[b].d);
            }
        }
    }
};

template <typename tile>
OSTINATO_TILES_TARGET static void split_rows(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x, const input_blocks & inputs) {
    constexpr size_t BLOCK = sizeof(typename tile::block);
    __m256 sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = _mm256_setzero_ps();
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
            const int8_t * q = ((const block_q8_0 *) x[i])[b].qs;
            __m256i sum = _mm256_set1_epi32(inputs.starts[i][b]);
            for (int j = 0; j < 8; ++j) {
                sum = OSTINATO_TILES_DOT(sum, t.codes[j], _mm256_set1_epi32(dword_at(q + 4*j)));
            }
            const __m256 scale = _mm256_mul_ps(t.scales, _mm256_set1_ps(inputs.scales[i][b]));
            sums[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, sums[i]);
        }
    }
    store_rows(sums, out, n_x);
}

// Sixteen rows.
template <typename tile>
OSTINATO_TILES_TARGET static void split_tile(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    const input_blocks inputs(x, n_x, n/SPLIT_BLOCK, tile::offset);
    split_rows<tile>(n, out, w, row_bytes, ahead, x, n_x, inputs);
    split_rows<tile>(n, out + ROWS, w + ROWS*row_bytes, row_bytes, ahead + ROWS*row_bytes, x, n_x, inputs);
}

OSTINATO_TILES_TARGET static void q4_K_rows(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    using block = block_q4_K;
    __m256 sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < n/QK_K; ++b) {
        const char * blocks = w + b*sizeof(block);
        for (size_t line = 0; line < sizeof(block); line += 64) {
            prefetch_rows(ahead + b*sizeof(block) + line, row_bytes);
        }
        alignas(32) float scales[16][ROWS]; // eight scales, then eight mins, of each row
        for (int r = 0; r < ROWS; ++r) {
            const auto & of_row = *(const block *) (blocks + r*row_bytes);
            uint8_t packed[16];
            unpack_q4_K_scales(of_row.scales, packed);
            const float d    = ggml_fp16_to_fp32(of_row.d);
            const float dmin = ggml_fp16_to_fp32(of_row.dmin);
            for (int s = 0; s < 8; ++s) {
                scales[s][r]     = d*packed[s];
                scales[8 + s][r] = dmin*packed[8 + s];
            }
        }
        __m256 block_sums[16];
        for (int i = 0; i < n_x; ++i) {
            block_sums[i] = _mm256_setzero_ps();
        }
        for (int j = 0; j < 4; ++j) { // 64 columns: two sub-blocks
            __m256i dwords[8];
            transpose_rows(blocks + offsetof(block, qs) + 32*j, row_bytes, dwords);
            transpose_rows(blocks + offsetof(block, qs) + 32*j + 16, row_bytes, dwords + 4);
            for (int half = 0; half < 2; ++half) {
                const int s = 2*j + half;
                __m256i codes[8];
                for (int c = 0; c < 8; ++c) {
                    codes[c] = half == 0 ? low_nibbles(dwords[c]) : high_nibbles(dwords[c]);
                }
                const __m256 scale = _mm256_load_ps(scales[s]);
                const __m256 min   = _mm256_load_ps(scales[8 + s]);
                for (int i = 0; i < n_x; ++i) {
                    const auto & row = ((const block_q8_K *) x[i])[b];
                    __m256i sum = _mm256_setzero_si256();
                    for (int c = 0; c < 8; ++c) {
                        sum = OSTINATO_TILES_DOT(sum, codes[c], _mm256_set1_epi32(dword_at(row.qs + 32*s + 4*c)));
                    }
                    block_sums[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, block_sums[i]);
                    block_sums[i] = _mm256_fnmadd_ps(min, _mm256_set1_ps((float) (row.bsums[2*s] + row.bsums[2*s + 1])), block_sums[i]);
                }
            }
        }
        for (int i = 0; i < n_x; ++i) {
            sums[i] = _mm256_fmadd_ps(block_sums[i], _mm256_set1_ps(((const block_q8_K *) x[i])[b].d), sums[i]);
        }
    }
    store_rows(sums, out, n_x);
}

OSTINATO_TILES_TARGET static void q6_K_rows(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    using block = block_q6_K;
    __m256 sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < n/QK_K; ++b) {
        const char * blocks = w + b*sizeof(block);
        for (size_t line = 0; line < sizeof(block); line += 64) {
            prefetch_rows(ahead + b*sizeof(block) + line, row_bytes);
        }
        alignas(32) float scales[16][ROWS];
        for (int r = 0; r < ROWS; ++r) {
            const auto & of_row = *(const block *) (blocks + r*row_bytes);
            const float d = ggml_fp16_to_fp32(of_row.d);
            for (int s = 0; s < 16; ++s) {
                scales[s][r] = d*of_row.scales[s];
            }
        }
        __m256 block_sums[16];
        for (int i = 0; i < n_x; ++i) {
            block_sums[i] = _mm256_setzero_ps();
        }
        for (int part = 0; part < 4; ++part) { // as in dot_q6_K_tile
            const int half = part/2;
            const int at   = part % 2*16;
            __m256i low[2][4];
            __m256i high[4];
            const char * ql = blocks + offsetof(block, ql) + 64*half + at;
            transpose_rows(ql, row_bytes, low[0]);
            transpose_rows(ql + 32, row_bytes, low[1]);
            transpose_rows(blocks + offsetof(block, qh) + 32*half + at, row_bytes, high);
            for (int run = 0; run < 4; ++run) {
                __m256i codes[4];
                for (int c = 0; c < 4; ++c) {
                    const __m256i nibbles = run < 2 ? low_nibbles(low[run][c]) : high_nibbles(low[run - 2][c]);
                    const __m256i bits    = _mm256_and_si256(_mm256_srl_epi16(high[c], _mm_cvtsi32_si128(2*run)), _mm256_set1_epi8(0x03));
                    codes[c] = _mm256_or_si256(nibbles, _mm256_slli_epi16(bits, 4));
                }
                const int s = 8*half + 2*run + part % 2;
                const __m256 scale = _mm256_load_ps(scales[s]);
                for (int i = 0; i < n_x; ++i) {
                    const auto & row = ((const block_q8_K *) x[i])[b];
                    __m256i sum = _mm256_set1_epi32(-32*row.bsums[s]);
                    for (int c = 0; c < 4; ++c) {
                        sum = OSTINATO_TILES_DOT(sum, codes[c], _mm256_set1_epi32(dword_at(row.qs + 16*s + 4*c)));
                    }
                    block_sums[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, block_sums[i]);
                }
            }
        }
        for (int i = 0; i < n_x; ++i) {
            sums[i] = _mm256_fmadd_ps(block_sums[i], _mm256_set1_ps(((const block_q8_K *) x[i])[b].d), sums[i]);
        }
    }
    store_rows(sums, out, n_x);
}

// Sixteen rows of a weight with blocks of 256 columns.
template <void (*rows)(int64_t, float (*)[16], const char *, size_t, const char *, const char * const *, int)>
OSTINATO_TILES_TARGET static void twice(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    rows(n, out, w, row_bytes, ahead, x, n_x);
    rows(n, out + ROWS, w + ROWS*row_bytes, row_bytes, ahead + ROWS*row_bytes, x, n_x);
}

} // namespace OSTINATO_TILES
