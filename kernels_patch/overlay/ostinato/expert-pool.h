// The expert pool of one device: its layers' hot experts, a slot each (paper 3.1, 3.4).
//
// A layer's slots are one contiguous tensor per weight, [columns, rows, n_slots]. The product kernels are given this tensor and nothing larger,
// since their cost grows with the number of experts they see. Where the kernels cannot skip a cold expert's routes, k zero slots follow the
// hot ones. Biases and scales are gathered alike, so that one id addresses weight, bias and scale; a zero slot's are zero too.
//
// The memory is allocated once. Another set of hot experts moves and loads only what differs; the tensors then change their addresses and
// numbers of slots, so graphs built before must not be used again.

#pragma once

#include "cpu-branch.h"
#include "cuda-functions.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdint>
#include <functional>
#include <vector>

// What the pool needs to know of one layer.
struct ostinato_pool_layer {
    const ostinato_expert_ffn * ffn;
    int32_t n_experts;
    int32_t n_zero_slots; // 0 where the kernels skip routes
};

// Memory of one device, and how it is written.
struct ostinato_pool_memory {
    ggml_backend_buffer_type_t buft;
    const ostinato_cuda_functions * cuda = nullptr; // nullptr: host memory
    int device = 0;

    // Throw std::runtime_error when the device fails.
    void copy(void * dst, const void * src, size_t bytes) const;
    void fill(void * dst, int value, size_t bytes) const;
};

class ostinato_expert_pool {
public:
    using hot_sets = std::vector<std::vector<int32_t>>; // per layer, without repetition
    using source   = std::function<ostinato_host_expert(size_t layer, int32_t expert)>;

    struct change {
        size_t n_loaded  = 0; // experts read from host memory
        size_t n_dropped = 0;
    };

    // Bytes that the sets take.
    static size_t bytes_for(const std::vector<ostinato_pool_layer> & layers, const hot_sets & hot, const ostinato_pool_memory & memory);

    // Without hot experts. Throws std::bad_alloc when the device has no `capacity` bytes left.
    ostinato_expert_pool(std::vector<ostinato_pool_layer> layers, ostinato_pool_memory memory, size_t capacity);

    // Makes exactly the experts of `hot` hot, which fit. No graph over the pool may be computing. Throws std::runtime_error when the device
    // fails; the pool is then unusable.
    change set_hot(const hot_sets & hot, const source & read);

    // The layer's slots in place of its experts; a member is nullptr where the layer has no such tensor.
    const ostinato_expert_ffn & slots(size_t layer) const { return entries[layer].slots; }

    // [n_experts] i32: slot of a hot expert, -1 of a cold one.
    ggml_tensor * index_table(size_t layer) const { return entries[layer].index_table; }

    int32_t zero_slot(size_t layer) const { return (int32_t) entries[layer].expert_of.size(); } // the first of them

    size_t capacity() const { return size; }
    size_t used() const { return bytes_used; }

private:
    struct entry {
        ostinato_expert_ffn slots;
        ggml_tensor * index_table = nullptr;
        std::vector<int32_t> expert_of; // by slot
    };

    // Where every tensor of every layer starts, and where the last one ends.
    struct layout {
        std::vector<size_t> offsets; // [layer * number of members]
        size_t end = 0;
    };

    static layout plan(const std::vector<ostinato_pool_layer> & layers, const std::vector<size_t> & n_hot, const ostinato_pool_memory & memory);

    ggml_tensor * tensor(size_t layer, size_t member) const;
    char * base() const { return (char *) ggml_backend_buffer_get_base(buffer.get()); }
    void move(size_t to, size_t from, size_t bytes);
    void place_tensors(const layout & where);
    void write_table(size_t layer);

    std::vector<ostinato_pool_layer> layers;
    ostinato_pool_memory memory;
    size_t size;
    size_t bytes_used = 0;
    layout current;
    std::vector<entry> entries;

    ggml_context_ptr        tables_ctx;
    ggml_backend_buffer_ptr tables_buffer;
    ggml_context_ptr        ctx;
    ggml_backend_buffer_ptr buffer;
};
