// Tiles of row-kernels.h: one weight row in each lane of 32 bits, so 16 rows at once with vectors of 512 bits, twice eight with vectors of 256. Four
// columns of a row fill its lane, and their products with four columns of an input, which all lanes share, are added at once. Weights are made unsigned
// by adding weight_offset(type); sums begin with what that adds too much.
//
// Included by row-kernels.cpp once for each instruction set, with
//   OSTINATO_TILES                a namespace,
//   OSTINATO_TILES_TARGET         the attribute that names the set,
//   OSTINATO_TILES_BITS           of a vector: 256 or 512,
//   OSTINATO_TILES_INPUTS         a class that reads blocks of 32 columns of inputs,
//   OSTINATO_TILES_DOT(sum, u, s) the products of each lane's four unsigned bytes and the four signed ones at s, added to the lane,
// all undefined again at the end. No include guard, and no includes.

#define OSTINATO_TILES_PASTE(prefix, bits, suffix) prefix##bits##suffix
#define OSTINATO_TILES_NAME(prefix, bits, suffix) OSTINATO_TILES_PASTE(prefix, bits, suffix)
#define V(operation) OSTINATO_TILES_NAME(_mm, OSTINATO_TILES_BITS, _##operation) // V(mul_ps): _mm256_mul_ps or _mm512_mul_ps
#define SI(operation) OSTINATO_TILES_NAME(V(operation), _si, OSTINATO_TILES_BITS) // SI(and): _mm256_and_si256 or _mm512_and_si512
#define SI_TO_PS OSTINATO_TILES_NAME(V(castsi), OSTINATO_TILES_BITS, _ps) // _mm256_castsi256_ps or _mm512_castsi512_ps

// add<M>(i, …) for inputs i .. i + M - 1 until all n_x have had their turn. No lambda: it would not have the instruction set.
#define OSTINATO_TILES_EACH(add, ...)                    \
    do {                                                 \
        int i = 0;                                       \
        for (; i + AT_ONCE <= n_x; i += AT_ONCE) {       \
            add<AT_ONCE>(i, __VA_ARGS__);                \
        }                                                \
        if (AT_ONCE > 2 && i + 2 <= n_x) {               \
            add<2>(i, __VA_ARGS__);                      \
            i += 2;                                      \
        }                                                \
        if (i < n_x) {                                   \
            add<1>(i, __VA_ARGS__);                      \
        }                                                \
    } while (false)

namespace OSTINATO_TILES {

using ints   = OSTINATO_TILES_NAME(__m, OSTINATO_TILES_BITS, i);
using floats = OSTINATO_TILES_NAME(__m, OSTINATO_TILES_BITS, );

static constexpr int ROWS = OSTINATO_TILES_BITS/32;

static constexpr int AT_ONCE = OSTINATO_TILES_BITS == 512 ? 4 : 1; // inputs whose sums are in registers beside the codes

// The rows of a tile from some column on. Compilers would keep a pointer to each of 16 rows and run out of registers; these are pointers to four, and the
// others lie multiples of row_bytes behind them, which addresses can say.
class tile_rows {
public:
    tile_rows(const char * w, size_t row_bytes) : fourth(4*row_bytes), twelfth(12*row_bytes) {
        for (int i = 0; i < 4; ++i) {
            firsts[i] = w + i*row_bytes;
        }
    }

    // To be called in every turn of a loop, which would else hold sums of strides and offsets in registers.
    void hide() {
        OSTINATO_HIDE(fourth);
        OSTINATO_HIDE(twelfth);
    }

    void advance(size_t bytes) {
        for (const char * & first : firsts) {
            first += bytes;
        }
    }

    // Byte `offset` of row i + 4*j.
    template <int j>
    const char * at(int i, size_t offset) const { return firsts[i] + (j == 3 ? twelfth : j*fourth) + offset; }

    // A word of each row at `offset`. One by one: as a vector of words that were inserted one after the other it would take as long as the products.
    template <typename word>
    void copy_words(size_t offset, word * to) const {
        for (int i = 0; i < 4; ++i) {
            copy_word(at<0>(i, offset), to + i);
            copy_word(at<1>(i, offset), to + i + 4);
            if (ROWS == 16) {
                copy_word(at<2>(i, offset), to + i + 8);
                copy_word(at<3>(i, offset), to + i + 12);
            }
        }
    }

private:
    template <typename word>
    static void copy_word(const char * from, word * to) {
        word value;
        memcpy(&value, from, sizeof(value));
        uint32_t hidden = value;
        OSTINATO_HIDE(hidden);
        *to = (word) hidden;
    }

    const char * firsts[4];
    size_t fourth;
    size_t twelfth;
};

#if OSTINATO_TILES_BITS == 512

// 16 bytes of rows i, i + 4, i + 8, i + 12.
OSTINATO_TILES_TARGET static inline ints load_each_fourth(const tile_rows & w, size_t offset, int i) {
    ints rows = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *) w.at<0>(i, offset)));
    rows = _mm512_inserti32x4(rows, _mm_loadu_si128((const __m128i *) w.at<1>(i, offset)), 1);
    rows = _mm512_inserti32x4(rows, _mm_loadu_si128((const __m128i *) w.at<2>(i, offset)), 2);
    return _mm512_inserti32x4(rows, _mm_loadu_si128((const __m128i *) w.at<3>(i, offset)), 3);
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

OSTINATO_TILES_TARGET static inline __m128i load_bytes(const uint8_t * bytes) {
    return _mm_load_si128((const __m128i *) bytes);
}

// Of sixteen bytes, repeated, those that the low and the high four bits of each byte number. What lies above four bits chooses one of the repetitions or
// is ignored.
OSTINATO_TILES_TARGET static inline ints look_up_low_nibbles(ints values, ints v) {
    return _mm512_permutexvar_epi8(v, values);
}

OSTINATO_TILES_TARGET static inline ints look_up_high_nibbles(ints values, ints v) {
    return _mm512_permutexvar_epi8(_mm512_srli_epi16(v, 4), values);
}

#else

// 16 bytes of rows i and i + 4.
OSTINATO_TILES_TARGET static inline ints load_each_fourth(const tile_rows & w, size_t offset, int i) {
    const __m128i row = _mm_loadu_si128((const __m128i *) w.at<0>(i, offset));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(row), _mm_loadu_si128((const __m128i *) w.at<1>(i, offset)), 1);
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

OSTINATO_TILES_TARGET static inline __m128i load_bytes(const uint8_t * bytes) {
    return _mm_loadl_epi64((const __m128i *) bytes);
}

// Of sixteen bytes, repeated, those that the low and the high four bits of each byte number.
OSTINATO_TILES_TARGET static inline ints look_up_low_nibbles(ints values, ints v) {
    return _mm256_shuffle_epi8(values, _mm256_and_si256(v, _mm256_set1_epi8(0x0f)));
}

OSTINATO_TILES_TARGET static inline ints look_up_high_nibbles(ints values, ints v) {
    return _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(0x0f)));
}

#endif

// dwords[d], lane r: dword d of the 16 bytes at `offset` of row r.
OSTINATO_TILES_TARGET static inline void transpose_rows(const tile_rows & w, size_t offset, ints * dwords) {
    ints rows[4];
    for (int i = 0; i < 4; ++i) {
        rows[i] = load_each_fourth(w, offset, i);
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

// A block of 32 columns: columns 4*j .. 4*j + 3 in codes[j].
struct tile_mxfp4 {
    using block = block_mxfp4;
    using scale = uint8_t; // the first word of a block, as are the others'
    static constexpr ggml_type type = GGML_TYPE_MXFP4;

    OSTINATO_TILES_TARGET static inline void decode(const tile_rows & w, ints * codes) {
        const ints values = repeat(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        ints dwords[4];
        transpose_rows(w, offsetof(block, qs), dwords);
        for (int d = 0; d < 4; ++d) {
            codes[d]     = look_up_low_nibbles(values, dwords[d]);
            codes[4 + d] = look_up_high_nibbles(values, dwords[d]);
        }
    }

    // Half of what E8M0 says: a denormal number where that is 0 or 1.
    OSTINATO_TILES_TARGET static inline floats scales(const scale * words) {
        const ints e        = V(cvtepu8_epi32)(load_bytes(words));
        const ints denormal = V(slli_epi32)(V(add_epi32)(e, V(set1_epi32)(1)), 21);
        const ints normal   = V(slli_epi32)(V(sub_epi32)(e, V(set1_epi32)(1)), 23);
        return SI_TO_PS(V(max_epi32)(denormal, normal));
    }
};

struct tile_q4_0 {
    using block = block_q4_0;
    using scale = uint16_t;
    static constexpr ggml_type type = GGML_TYPE_Q4_0;

    OSTINATO_TILES_TARGET static inline void decode(const tile_rows & w, ints * codes) {
        ints dwords[4];
        transpose_rows(w, offsetof(block, qs), dwords);
        for (int d = 0; d < 4; ++d) {
            codes[d]     = low_nibbles(dwords[d]);
            codes[4 + d] = high_nibbles(dwords[d]);
        }
    }

    OSTINATO_TILES_TARGET static inline floats scales(const scale * words) { return load_f16(words); }
};

struct tile_q8_0 {
    using block = block_q8_0;
    using scale = uint16_t;
    static constexpr ggml_type type = GGML_TYPE_Q8_0;

    OSTINATO_TILES_TARGET static inline void decode(const tile_rows & w, ints * codes) {
        transpose_rows(w, offsetof(block, qs), codes);
        transpose_rows(w, offsetof(block, qs) + 16, codes + 4);
        for (int d = 0; d < 8; ++d) {
            codes[d] = SI(xor)(codes[d], V(set1_epi8)((char) 0x80));
        }
    }

    OSTINATO_TILES_TARGET static inline floats scales(const scale * words) { return load_f16(words); }
};

// sums[i] += the products of the codes of n vectors and the bytes at q[i], of M inputs. Where there are registers, each sum is added up in two halves that
// do not wait for each other.
template <int M, int n>
OSTINATO_TILES_TARGET static inline void add_products(const ints * codes, const char * const * q, ints * sums) {
    constexpr int HALF = OSTINATO_TILES_BITS == 512 ? n/2 : n;
    ints others[M];
    for (int i = 0; i < M; ++i) {
        others[i] = V(set1_epi32)(0);
    }
    for (int c = 0; c < HALF; ++c) {
        for (int i = 0; i < M; ++i) {
            sums[i] = OSTINATO_TILES_DOT(sums[i], codes[c], q[i] + 4*c);
        }
        for (int i = 0; i < M && HALF < n; ++i) {
            others[i] = OSTINATO_TILES_DOT(others[i], codes[HALF + c], q[i] + 4*(HALF + c));
        }
    }
    for (int i = 0; i < M && HALF < n; ++i) {
        sums[i] = V(add_epi32)(sums[i], others[i]);
    }
}

OSTINATO_TILES_TARGET static inline void store_rows(const floats * sums, float (*out)[16], int n_x) {
    for (int i = 0; i < n_x; ++i) {
        alignas(64) float lanes[ROWS];
        V(store_ps)(lanes, sums[i]);
        for (int r = 0; r < ROWS; ++r) {
            out[r][i] = lanes[r];
        }
    }
}

// A cache line of each row, into the second level: the tile that comes next has no room in the first beside this one.
static inline void prefetch_rows(const char * ahead, size_t row_bytes) {
    for (int r = 0; r < ROWS; ++r) {
        __builtin_prefetch(ahead + r*row_bytes, 0, 2);
    }
}

// Of a block of 256 columns whose rows are read in quarters, that quarter's line; asked for at once, they would wait for each other.
static inline void prefetch_quarter(const char * ahead, size_t row_bytes, size_t block_bytes, int quarter) {
    if (quarter*64 < (int) block_bytes) {
        prefetch_rows(ahead + quarter*64, row_bytes);
    }
}

// A block with inputs first .. first + M - 1.
template <int M>
OSTINATO_TILES_TARGET static inline void add_split_block(
        int first, const ints * codes, floats scales, const OSTINATO_TILES_INPUTS & inputs, int64_t b, floats * sums) {
    const char * q[M];
    const float * scale[M];
    ints dots[M];
    for (int i = 0; i < M; ++i) {
        const input_block input = inputs.at(first + i, b);
        q[i]     = input.quants;
        scale[i] = input.scale;
        dots[i]  = V(set1_epi32)(*input.start);
    }
    add_products<M, 8>(codes, q, dots);
    for (int i = 0; i < M; ++i) {
        sums[first + i] = V(fmadd_ps)(V(cvtepi32_ps)(dots[i]), V(mul_ps)(scales, V(set1_ps)(*scale[i])), sums[first + i]);
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
    tile_rows rows(w, row_bytes);
    // With wide vectors a turn before they are needed: words that were stored one by one can be loaded as a vector only when they have reached the cache.
    constexpr int EARLY = OSTINATO_TILES_BITS == 512 ? 1 : 0;
    alignas(32) typename tile::scale scales[2][ROWS];
    if (EARLY > 0) {
        rows.copy_words(0, scales[0]);
    }
    const int64_t n_blocks = n/SPLIT_BLOCK;
    size_t prefetched = 0;
    for (int64_t b = 0; b < n_blocks; ++b) {
        if (b*BLOCK >= prefetched) {
            prefetch_rows(ahead + prefetched, row_bytes);
            prefetched += 64;
        }
        rows.hide();
        rows.copy_words(b + EARLY < n_blocks ? EARLY*BLOCK : 0, scales[(b + EARLY) % 2]);
        ints codes[8];
        tile::decode(rows, codes);
        const floats block_scales = tile::scales(scales[b % 2]);
        OSTINATO_TILES_EACH(add_split_block, codes, block_scales, inputs, b, sums);
        rows.advance(BLOCK);
    }
    store_rows(sums, out, n_x);
}

// Two sixteens' sums of a row of Q8_K at a time, as floats: what the mins of Q4_K multiply.
OSTINATO_TILES_TARGET static inline void load_pair_sums(const block_q8_K & row, float * sums) {
    const __m256i pairs = _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *) row.bsums), _mm256_set1_epi16(1));
    _mm256_store_ps(sums, _mm256_cvtepi32_ps(pairs));
}

// A sub-block s of block b with inputs first .. first + M - 1.
template <int M>
OSTINATO_TILES_TARGET static inline void add_q4_K_block(
        int first, const ints * codes, floats scale, floats min, const char * const * x, int64_t b, int s, const float (*pair_sums)[8], floats * sums) {
    const char * q[M];
    ints dots[M];
    for (int i = 0; i < M; ++i) {
        q[i] = (const char *) ((const block_q8_K *) x[first + i])[b].qs + 32*s;
        OSTINATO_HIDE(q[i]);
        dots[i] = V(set1_epi32)(0);
    }
    add_products<M, 8>(codes, q, dots);
    for (int i = 0; i < M; ++i) {
        const floats sum = V(fmadd_ps)(V(cvtepi32_ps)(dots[i]), scale, sums[first + i]);
        sums[first + i]  = V(fnmadd_ps)(min, V(set1_ps)(pair_sums[first + i][s]), sum);
    }
}

OSTINATO_TILES_TARGET static inline void q4_K_rows(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    floats sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = V(setzero_ps)();
    }
    tile_rows rows(w, row_bytes);
    for (int64_t b = 0; b < n/QK_K; ++b) {
        const char * blocks = w + b*sizeof(block_q4_K);
        const auto block = [&](int r) -> const block_q4_K & { return *(const block_q4_K *) (blocks + r*row_bytes); };
        __m128i factors[ROWS]; // eight scales, then eight mins, of each row
        alignas(32) uint16_t d[ROWS];
        alignas(32) uint16_t dmin[ROWS];
        rows.hide();
        rows.copy_words(offsetof(block_q4_K, d), d);
        rows.copy_words(offsetof(block_q4_K, dmin), dmin);
        for (int r = 0; r < ROWS; ++r) {
            factors[r] = scales_and_mins(block(r));
        }
        transpose_bytes(factors);
        const floats scale_w = load_f16(d);
        const floats min_w   = load_f16(dmin);
        floats block_sums[16];
        alignas(32) float pair_sums[16][8];
        for (int i = 0; i < n_x; ++i) {
            block_sums[i] = V(setzero_ps)();
            load_pair_sums(((const block_q8_K *) x[i])[b], pair_sums[i]);
        }
        for (int j = 0; j < 4; ++j) { // 64 columns: two sub-blocks
            prefetch_quarter(ahead + b*sizeof(block_q4_K), row_bytes, sizeof(block_q4_K), j);
            ints dwords[8];
            rows.hide();
            transpose_rows(rows, offsetof(block_q4_K, qs) + 32*j, dwords);
            transpose_rows(rows, offsetof(block_q4_K, qs) + 32*j + 16, dwords + 4);
            for (int half = 0; half < 2; ++half) {
                const int s = 2*j + half;
                ints codes[8];
                for (int c = 0; c < 8; ++c) {
                    codes[c] = half == 0 ? low_nibbles(dwords[c]) : high_nibbles(dwords[c]);
                }
                const floats scale = V(mul_ps)(scale_w, V(cvtepi32_ps)(V(cvtepu8_epi32)(load_column(factors, s))));
                const floats min   = V(mul_ps)(min_w, V(cvtepi32_ps)(V(cvtepu8_epi32)(load_column(factors, 8 + s))));
                OSTINATO_TILES_EACH(add_q4_K_block, codes, scale, min, x, b, s, pair_sums, block_sums);
            }
        }
        for (int i = 0; i < n_x; ++i) {
            sums[i] = V(fmadd_ps)(block_sums[i], V(set1_ps)(((const block_q8_K *) x[i])[b].d), sums[i]);
        }
        rows.advance(sizeof(block_q4_K));
    }
    store_rows(sums, out, n_x);
}

// Sixteen columns s of block b with inputs first .. first + M - 1.
template <int M>
OSTINATO_TILES_TARGET static inline void add_q6_K_block(
        int first, const ints * codes, floats scale, const char * const * x, int64_t b, int s, floats * sums) {
    const char * q[M];
    ints dots[M];
    for (int i = 0; i < M; ++i) {
        const block_q8_K & row = ((const block_q8_K *) x[first + i])[b];
        q[i] = (const char *) row.qs + 16*s;
        OSTINATO_HIDE(q[i]);
        dots[i] = V(set1_epi32)(-32*row.bsums[s]); // quants are stored with 32 added
    }
    add_products<M, 4>(codes, q, dots);
    for (int i = 0; i < M; ++i) {
        sums[first + i] = V(fmadd_ps)(V(cvtepi32_ps)(dots[i]), scale, sums[first + i]);
    }
}

OSTINATO_TILES_TARGET static inline void q6_K_rows(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    floats sums[16];
    for (int i = 0; i < n_x; ++i) {
        sums[i] = V(setzero_ps)();
    }
    tile_rows rows(w, row_bytes);
    for (int64_t b = 0; b < n/QK_K; ++b) {
        const char * blocks = w + b*sizeof(block_q6_K);
        alignas(32) uint16_t d[ROWS];
        rows.hide();
        rows.copy_words(offsetof(block_q6_K, d), d);
        __m128i factors[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            factors[r] = _mm_loadu_si128((const __m128i *) ((const block_q6_K *) (blocks + r*row_bytes))->scales);
        }
        transpose_bytes(factors);
        const floats scale_w = load_f16(d);
        floats block_sums[16];
        for (int i = 0; i < n_x; ++i) {
            block_sums[i] = V(setzero_ps)();
        }
        for (int part = 0; part < 4; ++part) { // 64 columns of each half in which two sixteens of ql meet the same of qh
            prefetch_quarter(ahead + b*sizeof(block_q6_K), row_bytes, sizeof(block_q6_K), part);
            const int half = part/2;
            const int at   = part % 2*16; // columns l = at .. at + 15 of each run of 32
            ints low[2][4];               // ql of l and l + 32
            ints high[4];
            const size_t ql = offsetof(block_q6_K, ql) + 64*half + at;
            rows.hide();
            transpose_rows(rows, ql, low[0]);
            transpose_rows(rows, ql + 32, low[1]);
            transpose_rows(rows, offsetof(block_q6_K, qh) + 32*half + at, high);
            for (int run = 0; run < 4; ++run) { // of 32 columns
                ints codes[4];
                for (int c = 0; c < 4; ++c) {
                    const ints nibbles = run < 2 ? low_nibbles(low[run][c]) : high_nibbles(low[run - 2][c]);
                    const ints bits    = SI(and)(V(srl_epi16)(high[c], _mm_cvtsi32_si128(2*run)), V(set1_epi8)(0x03));
                    codes[c] = SI(or)(nibbles, V(slli_epi16)(bits, 4));
                }
                const int s = 8*half + 2*run + part % 2; // of sixteen columns
                const floats scale = V(mul_ps)(scale_w, V(cvtepi32_ps)(V(cvtepi8_epi32)(load_column(factors, s))));
                OSTINATO_TILES_EACH(add_q6_K_block, codes, scale, x, b, s, block_sums);
            }
        }
        for (int i = 0; i < n_x; ++i) {
            sums[i] = V(fmadd_ps)(block_sums[i], V(set1_ps)(((const block_q8_K *) x[i])[b].d), sums[i]);
        }
        rows.advance(sizeof(block_q6_K));
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

#undef OSTINATO_TILES_EACH
#undef SI_TO_PS
#undef SI
#undef V
#undef OSTINATO_TILES_NAME
#undef OSTINATO_TILES_PASTE
#undef OSTINATO_TILES
#undef OSTINATO_TILES_TARGET
#undef OSTINATO_TILES_BITS
#undef OSTINATO_TILES_INPUTS
#undef OSTINATO_TILES_DOT
