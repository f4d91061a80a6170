// Dot products of one weight row with several input rows: what the CPU branch spends its time in.
//
// The inputs are quantised by ggml's own from_float of the weight type's vec_dot_type, so a product has the integers that ggml's has; only
// the order in which blocks are summed differs. Where this CPU has no kernel of ours for a type, ggml's vec_dot runs once per input row.
// Ours decode a weight block once for up to four input rows, which matters where an expert has several routes, and keep up with the
// memory where it has one.

#pragma once

#include "ggml.h"
#include "ggml-cpu.h"

#include <cstddef>
#include <cstdint>

struct ostinato_row_kernel {
    ggml_type input;       // what from_float quantises an input row to
    ggml_vec_dot_t vec_dot;

    void (*dot)(int64_t n, float * out, const char * w, const char * const * x, int n_x) = nullptr; // ours, or nullptr
    bool is_split = false; // input rows are all quants, then all scales as floats: quants load 64 at a time, no f16 is converted in a product
};

// The kernel for rows of `columns` columns of a weight type that has a vec_dot. With `plain`, ggml's own.
ostinato_row_kernel ostinato_find_row_kernel(ggml_type type, int64_t columns, bool plain = false);

// Bytes of an input row of `n` columns, a multiple of 64.
size_t ostinato_input_row_bytes(const ostinato_row_kernel & kernel, int64_t n);

// Quantises a row of floats for the kernel. `dst` has ostinato_input_row_bytes() bytes and is aligned to 64.
void ostinato_input_row(const ostinato_row_kernel & kernel, const float * src, char * dst, int64_t n);

// The same for columns begin .. end - 1 of `columns`, which `src` starts with.
void ostinato_input_columns(const ostinato_row_kernel & kernel, const float * src, char * dst, int64_t begin, int64_t end, int64_t columns);

// out[i] = the product of the weight row `w` and the input row x[i], each of so many columns.
void ostinato_dot_rows(const ostinato_row_kernel & kernel, int64_t columns, float * out, const char * w, const char * const * x, int n_x);
