// Leaving out routes in llama.cpp's CUDA products with experts: a route whose slot id is OSTINATO_SKIPPED_SLOT costs nothing and gives zeros.
// Included by mmvq.cu and mmq.cu through their hook lines. Inert when: no id has that value.

#pragma once

#include "ostinato/skip.h"

#include "common.cuh"

// For the vector kernels: true where the block's route is skipped; its results are then zero. `dst` is the first row of the block.
template <int n_rows>
static __device__ __forceinline__ bool ostinato_skip_route(
        const uint32_t slot, float * dst, const int lane, const uint32_t row0, const uint32_t rows) {
    if (slot != (uint32_t) OSTINATO_SKIPPED_SLOT) {
        return false;
    }
    if (lane < n_rows && row0 + lane < rows) {
        dst[lane] = 0.0f;
    }
    return true;
}

// For the tiled kernels, which sort routes by expert and never meet ids beyond the last one: gives the places in the sorted lists that no route
// takes a value that can be read, and the rows that no route writes a zero. In `ids_src1` an unsorted route (the list maps rows to inputs)
// reads input 0; where it is inverse (routes to rows), a skipped route's input goes to the last row, which no expert has.
void ostinato_prepare_skipping(
        const ggml_tensor * ids, ggml_tensor * dst, int32_t * ids_src1, int32_t * ids_dst, bool is_inverse, cudaStream_t stream);
