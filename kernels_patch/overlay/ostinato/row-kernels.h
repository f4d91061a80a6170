// Dot products of one weight row with several input rows: what the CPU branch spends its time in.
//
// The inputs are quantised by ggml's own from_float of the weight type's vec_dot_type, so a product has the integers that ggml's has; only
// the order in which blocks are summed differs. Where this CPU has no kernel of ours for a type, ggml's vec_dot runs once per input row.
// Ours decode a weight block once for up to four input rows, which matters where an expert has several routes, and keep up with the
// memory where it has one. Where it has many, tiles decode 16 weight rows once for up to 16 input rows.

#pragma once

#include "ggml.h"
#include "ggml-cpu.h"

#include <cstddef>
#include <cstdint>

struct ostinato_row_kernel {
    ggml_type type;        // of the weight
    ggml_type input;       // what from_float quantises an input row to
    ggml_vec_dot_t vec_dot;

    void (*dot)(int64_t n, float * out, const char * w, const char * ahead, const char * const * x, int n_x) = nullptr; // ours, or nullptr
    bool is_split = false; // input rows are all quants, then all scales as floats, then what `tile` starts the blocks' sums with: quants load 64 at a
                           // time, no f16 is converted in a product

    // OSTINATO_TILE neighbouring rows, `row_bytes` apart, at once: out[row][i]; what follows the inputs there is undefined. nullptr: there is none
    void (*tile)(int64_t n, float (*out)[16], const char * w, size_t row_bytes, const char * ahead, const char * const * x, int n_x) = nullptr;
    int tile_from = 3; // inputs from which it is faster than row by row
};

constexpr int OSTINATO_TILE        = 16;
constexpr int OSTINATO_TILE_INPUTS = 16; // at most

// The kernel for rows of `columns` columns of a weight type that has a vec_dot, with registers of at most so many bits: 256 for no AVX-512, 0 for ggml's own.
ostinato_row_kernel ostinato_find_row_kernel(ggml_type type, int64_t columns, int most_bits = 512);

// Bytes of an input row of `n` columns, a multiple of 64.
size_t ostinato_input_row_bytes(const ostinato_row_kernel & kernel, int64_t n);

// Quantises a row of floats for the kernel. `dst` has ostinato_input_row_bytes() bytes and is aligned to 64.
void ostinato_input_row(const ostinato_row_kernel & kernel, const float * src, char * dst, int64_t n);

// The same for columns begin .. end - 1 of `columns`, which `src` starts with.
void ostinato_input_columns(const ostinato_row_kernel & kernel, const float * src, char * dst, int64_t begin, int64_t end, int64_t columns);

// out[i] = the product of the weight row `w` and the input row x[i], each of so many columns. `ahead` is a row that will be read some products later:
// it is brought into the cache meanwhile. Any address.
void ostinato_dot_rows(
        const ostinato_row_kernel & kernel, int64_t columns, float * out, const char * w, const char * ahead, const char * const * x, int n_x);

// out[row][i] = the product of the weight row at w + row*row_bytes and the input row x[i], for OSTINATO_TILE rows and up to OSTINATO_TILE_INPUTS inputs.
// What is decoded of the weights serves all inputs, so that from a few inputs on this is faster than row by row. The kernel has a `tile`.
void ostinato_dot_tile(
        const ostinato_row_kernel & kernel, int64_t columns, float (*out)[OSTINATO_TILE_INPUTS], const char * w, size_t row_bytes, const char * ahead,
        const char * const * x, int n_x);

// Brings memory into the cache.
void ostinato_prefetch(const char * data, size_t bytes);
