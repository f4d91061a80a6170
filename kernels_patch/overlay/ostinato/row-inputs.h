// What tiles of weight rows need of input rows. Included by row-kernels.cpp and by tests/row_dots.cpp.

#pragma once

#include "ggml.h"

#include <cstdint>
#include <cstring>

static constexpr int64_t SPLIT_BLOCK = 32; // columns per scale of a Q8_0 row

// What tiles add to each weight, so that it is not negative.
static constexpr int32_t weight_offset(ggml_type type) {
    return type == GGML_TYPE_MXFP4 ? 12 : type == GGML_TYPE_Q4_0 ? 8 : 128;
}

// What a tile needs of an input row's block of 32 columns.
struct input_block {
    const char * quants;
    const int32_t * start; // what the sum of products begins with
    const float * scale;
};

// A compiler that knows what `value` is made of keeps the parts of many such values in registers, until it has none left.
#define OSTINATO_HIDE(value) asm("" : "+r"(value))

static inline int32_t dword_at(const void * data) {
    int32_t v;
    memcpy(&v, data, sizeof(v));
    return v;
}

// Input rows of `is_split`.
class split_inputs {
public:
    split_inputs(const char * const * x, int, int64_t n, int32_t) : x(x), scales(n), starts(n + n/SPLIT_BLOCK*(int64_t) sizeof(float)) {}

    input_block at(int i, int64_t b) const {
        const char * row = x[i];
        OSTINATO_HIDE(row);
        const char * quants = row + b*SPLIT_BLOCK;
        OSTINATO_HIDE(quants);
        return { quants, (const int32_t *) (row + starts) + b, (const float *) (row + scales) + b };
    }

private:
    const char * const * x;
    int64_t scales; // bytes from a row's beginning
    int64_t starts;
};
