// The expert pool of one model: copies of its hot experts, a slot each, and the zero slots that stand in for cold ones (paper 3.1, 3.4).
//
// A layer's slots are one contiguous tensor per weight, [columns, rows, n_hot + k]: first the hot experts in ascending order, then k zero
// slots. The product kernels are given this tensor and nothing larger, since their cost grows with the number of experts they see.
// Biases and scales are gathered alike, so that one id addresses weight, bias and scale; a zero slot's are zero too.
// Allocated once, when a residency set is loaded.

#pragma once

#include "cpu-branch.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdint>
#include <vector>

// What the pool needs to know of one layer.
struct ostinato_pool_layer {
    const ostinato_expert_ffn * ffn;
    std::vector<int32_t> hot;        // hot experts, ascending
    int32_t n_experts;
    int32_t k;                       // experts selected per token
};

class ostinato_expert_pool {
public:
    // Copies the hot experts into memory of `buft`. Throws std::bad_alloc when it is short.
    ostinato_expert_pool(const std::vector<ostinato_pool_layer> & layers, ggml_backend_buffer_type_t buft);

    // The layer's slots in place of its experts; a member is nullptr where the layer has no such tensor.
    const ostinato_expert_ffn & slots(size_t layer) const { return layers[layer].slots; }

    // [n_experts] i32: slot of a hot expert, -1 of a cold one.
    ggml_tensor * index_table(size_t layer) const { return layers[layer].index_table; }

    int32_t zero_slot(size_t layer) const { return layers[layer].zero_slot; } // the first of k

    size_t bytes() const { return ggml_backend_buffer_get_size(buffer.get()); }

private:
    struct entry {
        ostinato_expert_ffn slots;
        ggml_tensor * index_table;
        int32_t zero_slot;
    };
    std::vector<entry> layers;

    ggml_context_ptr        ctx;
    ggml_backend_buffer_ptr buffer;
};
