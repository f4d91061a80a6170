// Tiles of row-kernels.h whose integer products tile registers add up: one instruction multiplies 16 weight rows with up to 16 inputs over a block of
// columns. What is left to vectors is to decode the weights and to scale a block's sums, one vector of 16 weight rows per input, in the order and with the
// roundings of row-tiles.h: the same bits.
//
// Blocks go in groups of four, one tile register of sums each. Sums go through the L1 cache and are scaled one group later: while a group is being
// multiplied, the processor decodes the next one. Measured on a Xeon, this pays with weights of four bits from about eight inputs on; Q8_0 and Q6_K were
// faster with vectors alone (docs/engine.md).
//
// Included with
//   OSTINATO_AMX          a namespace,
//   OSTINATO_AMX_TARGET   the attribute that names the instruction set,
//   OSTINATO_AMX_MACHINE  a class with the operations that plain vectors lack, and the tile registers (see amx-machine.h),
// all undefined again at the end: by row-kernels.cpp with the instructions, by the tests with a model of them that runs anywhere. No include guard, and no
// includes.

namespace OSTINATO_AMX {

using machine = OSTINATO_AMX_MACHINE;

// 64 bytes, as in a row of a tile register.
using ints      = int32_t __attribute__((vector_size(64)));
using floats    = float __attribute__((vector_size(64)));
using unaligned = int32_t __attribute__((vector_size(64), aligned(1), may_alias));

static constexpr int BLOCK_COLUMNS = 32;
static constexpr int GROUP         = 4; // blocks
static constexpr int COLUMNS       = GROUP*BLOCK_COLUMNS;

// Tile registers: sums (inputs x weight rows), inputs (inputs x columns), weights (fours of columns x weight rows x four columns).
enum { SUMS = 0, INPUTS = 4, WEIGHTS = 6 };

struct tile_config {
    uint8_t  palette = 0;
    uint8_t  start_row = 0;
    uint8_t  reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t  rows[16] = {};

    tile_config() = default;

    // For so many inputs.
    explicit tile_config(int n_x) : palette(1) {
        for (int t = SUMS; t < INPUTS; ++t) {
            set(t, n_x, 64);
        }
        for (int t = INPUTS; t < WEIGHTS; ++t) {
            set(t, n_x, BLOCK_COLUMNS);
        }
        for (int t = WEIGHTS; t < 8; ++t) {
            set(t, BLOCK_COLUMNS/4, 64);
        }
    }

    bool operator==(const tile_config & other) const { return memcmp(this, &other, sizeof(*this)) == 0; }

private:
    void set(int tile, int n_rows, int bytes) {
        rows[tile]      = (uint8_t) n_rows;
        row_bytes[tile] = (uint16_t) bytes;
    }
};

static_assert(sizeof(tile_config) == 64, "the processor reads 64 bytes");

// This thread's tile registers in the shape that a kernel needs. Loading a shape takes hundreds of cycles, so ours stays when the kernel ends; that of other
// code comes back.
class tile_registers {
public:
    OSTINATO_AMX_TARGET explicit tile_registers(int n_x) {
        machine::store_config(&before);
        const tile_config wanted(n_x);
        if (!(before == wanted)) {
            is_foreign = before.palette != 0 && !(before == tile_config(before.rows[INPUTS]));
            machine::load_config(&wanted);
        }
    }

    OSTINATO_AMX_TARGET ~tile_registers() {
        if (is_foreign) {
            machine::load_config(&before);
        }
    }

    tile_registers(const tile_registers &) = delete;
    tile_registers & operator=(const tile_registers &) = delete;

private:
    alignas(64) tile_config before;
    bool is_foreign = false;
};

// A group on its way into the tile registers.
struct operands {
    alignas(64) int8_t inputs[16][COLUMNS];
    ints codes[GROUP][8]; // columns 4*j .. 4*j + 3 of the 16 rows in codes[block][j]
};

// A group's products, and what scales them.
struct products {
    ints   sums[GROUP][16]; // of each input
    floats scales[GROUP];
    floats mins[GROUP];
    alignas(64) float factors[16][GROUP]; // of each input
};

template <int T>
OSTINATO_AMX_TARGET static inline void multiply_block(const ints * codes, const int8_t * inputs) {
    machine::template zero<SUMS + T>();
    machine::template load<INPUTS + T % 2>(inputs, COLUMNS);
    machine::template load<WEIGHTS + T % 2>(codes, sizeof(ints));
    machine::template dot<SUMS + T, INPUTS + T % 2, WEIGHTS + T % 2>();
}

// The products of 2 or 4 blocks.
OSTINATO_AMX_TARGET static inline void multiply_group(const operands & from, int count, products & to) {
    const int8_t * inputs = from.inputs[0];
    multiply_block<0>(from.codes[0], inputs);
    multiply_block<1>(from.codes[1], inputs + BLOCK_COLUMNS);
    if (count > 2) {
        multiply_block<2>(from.codes[2], inputs + 2*BLOCK_COLUMNS);
        multiply_block<3>(from.codes[3], inputs + 3*BLOCK_COLUMNS);
    }
    machine::store<SUMS + 0>(to.sums[0], sizeof(ints));
    machine::store<SUMS + 1>(to.sums[1], sizeof(ints));
    if (count > 2) {
        machine::store<SUMS + 2>(to.sums[2], sizeof(ints));
        machine::store<SUMS + 3>(to.sums[3], sizeof(ints));
    }
}

// The quants of a group of one input.
OSTINATO_AMX_TARGET static inline void copy_columns(int8_t * to, const void * from) {
    for (int i = 0; i < COLUMNS; i += 64) {
        *(unaligned *) (to + i) = *(const unaligned *) ((const char *) from + i);
    }
}

// Each lane's byte `i`, of four.
OSTINATO_AMX_TARGET static inline ints byte_of(const ints & dwords, int i) {
    return (dwords >> 8*i) & 0xff;
}

OSTINATO_AMX_TARGET static inline ints low_nibbles(const ints & dwords) {
    return dwords & 0x0f0f0f0f;
}

OSTINATO_AMX_TARGET static inline ints high_nibbles(const ints & dwords) {
    return (dwords >> 4) & 0x0f0f0f0f;
}

// Half of what the E8M0 scale in each lane's first byte says: a denormal number where that is 0 or 1.
OSTINATO_AMX_TARGET static inline floats halved_e8m0(const ints & dwords) {
    const ints e = dwords & 0xff;
    const ints denormal = (e + 1) << 21;
    const ints normal   = (e - 1) << 23;
    return (floats) (normal > denormal ? normal : denormal);
}

OSTINATO_AMX_TARGET static inline floats to_floats(const ints & v) {
    return __builtin_convertvector(v, floats);
}

// Blocks of 32 columns: each writes a block's codes and returns the rows' scales. `offsets`: of the 16 rows.

// Codes of four bits, each of which stands for one of 16 values.
OSTINATO_AMX_TARGET static inline void decode_nibbles(const char * qs, size_t row_bytes, const int8_t * value_of, ints * codes) {
    const ints values = machine::repeat(value_of);
    ints dwords[4];
    machine::transpose_rows(qs, row_bytes, dwords);
    for (int d = 0; d < 4; ++d) {
        codes[d]     = machine::look_up(values, dwords[d]);
        codes[4 + d] = machine::look_up(values, dwords[d] >> 4);
    }
}

struct mxfp4_blocks {
    using block = block_mxfp4;

    OSTINATO_AMX_TARGET static inline floats decode(const char * w, size_t row_bytes, const ints & offsets, ints * codes) {
        static constexpr int8_t VALUES[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
        decode_nibbles(w + offsetof(block, qs), row_bytes, VALUES, codes);
        return halved_e8m0(machine::gather(w + offsetof(block, e), offsets));
    }
};

struct q4_0_blocks {
    using block = block_q4_0;

    OSTINATO_AMX_TARGET static inline floats decode(const char * w, size_t row_bytes, const ints & offsets, ints * codes) {
        static constexpr int8_t VALUES[16] = { -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7 };
        decode_nibbles(w + offsetof(block, qs), row_bytes, VALUES, codes);
        return machine::from_f16(machine::gather(w + offsetof(block, d), offsets));
    }
};

// Sixteen weight rows and what is being computed with them, for M inputs.
template <int M>
struct rows {
    const char * w;
    size_t row_bytes;
    const char * ahead;
    const char * const * x;
    ints offsets; // of the weight rows
    operands group;
    floats sums[16]; // of M inputs
    size_t prefetched = 0;

    OSTINATO_AMX_TARGET rows(const char * w, size_t row_bytes, const char * ahead, const char * const * x) :
        w(w), row_bytes(row_bytes), ahead(ahead), x(x), offsets(machine::offsets(row_bytes)), sums() {}

    // As many bytes of each of the rows ahead as have been read of these.
    void prefetch_until(size_t end) {
        for (; prefetched < end; prefetched += 64) {
            for (int r = 0; r < OSTINATO_TILE; ++r) {
                __builtin_prefetch(ahead + prefetched + r*row_bytes, 0, 2); // as row-tiles.h does
            }
        }
    }
};

// Weights in blocks of 32 columns, inputs `is_split`.
template <typename blocks, int M>
struct split_rows : rows<M> {
    static constexpr size_t BLOCK = sizeof(typename blocks::block);

    int64_t n;

    OSTINATO_AMX_TARGET split_rows(int64_t n, const char * w, size_t row_bytes, const char * ahead, const char * const * x) :
        rows<M>(w, row_bytes, ahead, x), n(n) {}

    int64_t n_groups() const { return (n/BLOCK_COLUMNS + GROUP - 1)/GROUP; }

    // 2 in the last group of some numbers of columns
    int count(int64_t g) const { return (int) std::min<int64_t>(GROUP, n/BLOCK_COLUMNS - g*GROUP); }

    OSTINATO_AMX_TARGET inline void decode(int64_t g, products & to) {
        const int64_t first = g*GROUP;
        const int n_blocks  = count(g);
        this->prefetch_until((first + n_blocks)*BLOCK);
        for (int k = 0; k < n_blocks; ++k) {
            to.scales[k] = blocks::decode(this->w + (first + k)*BLOCK, this->row_bytes, this->offsets, this->group.codes[k]);
        }
        for (int i = 0; i < M; ++i) { // what follows half a group belongs to the row, too
            copy_columns(this->group.inputs[i], this->x[i] + first*BLOCK_COLUMNS);
            memcpy(to.factors[i], this->x[i] + n + first*sizeof(float), sizeof(to.factors[i]));
        }
    }

    OSTINATO_AMX_TARGET inline void multiply(int64_t g, products & to) {
        multiply_group(this->group, count(g), to);
    }

    OSTINATO_AMX_TARGET inline void finish(int64_t g, const products & from) {
        floats sums[M];
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
            sums[i] = this->sums[i];
        }
        const int n_blocks = count(g);
        for (int k = 0; k < n_blocks; ++k) {
#pragma GCC unroll 16
            for (int i = 0; i < M; ++i) {
                sums[i] = machine::fma(to_floats(from.sums[k][i]), from.scales[k]*from.factors[i][k], sums[i]);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
            this->sums[i] = sums[i];
        }
    }
};

// Weights in blocks of 256 columns, half of which are a group.
template <int M>
struct q4_K_rows : rows<M> {
    int64_t n;
    floats first_half[M]; // sums of the block under way
    ints   factors[4];    // eight scales, then eight mins, of each weight row, a byte each
    floats scale_w;
    floats min_w;

    OSTINATO_AMX_TARGET q4_K_rows(int64_t n, const char * w, size_t row_bytes, const char * ahead, const char * const * x) :
        rows<M>(w, row_bytes, ahead, x), n(n) {}

    int64_t n_groups() const { return n/QK_K*2; }

    const block_q8_K & input(int i, int64_t b) const { return ((const block_q8_K *) this->x[i])[b]; }

    OSTINATO_AMX_TARGET inline void decode(int64_t g, products & to) {
        const int64_t b    = g/2;
        const int     half = g % 2;
        const char * block = this->w + b*sizeof(block_q4_K);
        if (half == 0) {
            this->prefetch_until((b + 1)*sizeof(block_q4_K));
            decode_factors(block);
        }
        for (int j = 0; j < 2; ++j) { // 64 columns: two blocks
            const char * qs = block + offsetof(block_q4_K, qs) + 64*half + 32*j;
            ints dwords[8];
            machine::transpose_rows(qs, this->row_bytes, dwords);
            machine::transpose_rows(qs + 16, this->row_bytes, dwords + 4);
            for (int c = 0; c < 8; ++c) {
                this->group.codes[2*j][c]     = low_nibbles(dwords[c]);
                this->group.codes[2*j + 1][c] = high_nibbles(dwords[c]);
            }
        }
        for (int k = 0; k < GROUP; ++k) {
            to.scales[k] = scale_w*to_floats(byte_of(factors[half], k));
            to.mins[k]   = min_w*to_floats(byte_of(factors[2 + half], k));
        }
        for (int i = 0; i < M; ++i) {
            const block_q8_K & row = input(i, b);
            copy_columns(this->group.inputs[i], row.qs + COLUMNS*half);
            sums_of_pairs(row.bsums + 8*half, to.factors[i]);
        }
    }

    OSTINATO_AMX_TARGET inline void multiply(int64_t, products & to) {
        multiply_group(this->group, GROUP, to);
    }

    OSTINATO_AMX_TARGET inline void finish(int64_t g, const products & from) {
        floats sums[M];
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
            sums[i] = g % 2 == 0 ? floats {} : first_half[i];
        }
        for (int k = 0; k < GROUP; ++k) {
#pragma GCC unroll 16
            for (int i = 0; i < M; ++i) {
                sums[i] = machine::fma(to_floats(from.sums[k][i]), from.scales[k], sums[i]);
                sums[i] = machine::fnma(from.mins[k], from.factors[i][k], sums[i]);
            }
        }
        if (g % 2 == 0) {
#pragma GCC unroll 16
            for (int i = 0; i < M; ++i) {
                first_half[i] = sums[i];
            }
            return;
        }
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
            this->sums[i] = machine::fma(sums[i], input(i, g/2).d, this->sums[i]);
        }
    }

private:
    OSTINATO_AMX_TARGET inline void decode_factors(const char * block) {
        const ints halves = machine::gather(block + offsetof(block_q4_K, d), this->offsets);
        scale_w = machine::from_f16(halves);
        min_w   = machine::from_f16(halves >> 16);
        ints u[3]; // see scales_and_mins, q4-k-factors.h
        for (int d = 0; d < 3; ++d) {
            u[d] = machine::gather(block + offsetof(block_q4_K, scales) + 4*d, this->offsets);
        }
        factors[0] = u[0] & 0x3f3f3f3f;
        factors[1] = low_nibbles(u[2]) | ((u[0] >> 2) & 0x30303030);
        factors[2] = u[1] & 0x3f3f3f3f;
        factors[3] = high_nibbles(u[2]) | ((u[1] >> 2) & 0x30303030);
    }

    OSTINATO_AMX_TARGET static inline void sums_of_pairs(const int16_t * values, float * sums) {
        using four_ints   = int32_t __attribute__((vector_size(16)));
        using four_floats = float __attribute__((vector_size(16)));
        four_ints pairs;
        memcpy(&pairs, values, sizeof(pairs));
        const four_floats result = __builtin_convertvector(((pairs << 16) >> 16) + (pairs >> 16), four_floats);
        memcpy(sums, &result, sizeof(result));
    }
};

// From a vector for each input to one for each weight row.
OSTINATO_AMX_TARGET static inline void store_sums(const floats * sums, float (*out)[16]) {
    for (int r = 0; r < OSTINATO_TILE; r += 4) {
        ints inputs[4];
        machine::transpose_rows((const char *) sums + r*sizeof(float), sizeof(floats), inputs);
        for (int i = 0; i < 4; ++i) {
            *(unaligned *) out[r + i] = inputs[i];
        }
    }
}

template <typename rows_of_type, int M>
OSTINATO_AMX_TARGET static void tile_of_rows(
        int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x) {
    const tile_registers registers(M);
    rows_of_type rows(n, w, row_bytes, ahead, x);
    products parts[2];
    const int64_t n_groups = rows.n_groups();
    for (int64_t g = 0; g <= n_groups; ++g) { // what is stored is read by the next stage but one: some time later
        products & now = parts[g % 2];
        if (g < n_groups) {
            rows.decode(g, now);
        }
        if (g > 0) {
            rows.finish(g - 1, parts[(g - 1) % 2]);
        }
        if (g < n_groups) {
            rows.multiply(g, now);
        }
    }
    store_sums(rows.sums, out);
}

// With as many inputs as are there, and more of the last one where there is no code for so few.
template <template <int> class rows_for>
static void tile(int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) {
    const char * inputs[OSTINATO_TILE_INPUTS];
    for (int i = 0; i < OSTINATO_TILE_INPUTS; ++i) {
        inputs[i] = x[std::min(i, n_x - 1)];
    }
    const auto tile_for = n_x > 12 ? tile_of_rows<rows_for<16>, 16> : n_x > 8 ? tile_of_rows<rows_for<12>, 12> : tile_of_rows<rows_for<8>, 8>;
    tile_for(n, out, w, row_bytes, ahead, inputs);
}

template <int M> using mxfp4_rows = split_rows<mxfp4_blocks, M>;
template <int M> using q4_0_rows  = split_rows<q4_0_blocks, M>;

// ostinato_row_kernel::amx of a weight type, or nullptr.
static decltype(ostinato_row_kernel::amx) tile_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_MXFP4: return tile<mxfp4_rows>;
        case GGML_TYPE_Q4_0:  return tile<q4_0_rows>;
        case GGML_TYPE_Q4_K:  return tile<q4_K_rows>;
        default:              return nullptr;
    }
}

} // namespace OSTINATO_AMX

#undef OSTINATO_AMX
#undef OSTINATO_AMX_TARGET
#undef OSTINATO_AMX_MACHINE
