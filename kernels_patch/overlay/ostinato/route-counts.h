// Route counters of one model: how often each expert of each MoE layer was selected, prefill and decode apart (paper 3.1: the
// residency set is chosen from these counts).
//
// A layer's counters live in memory of the layer's own device, as a tensor that the PUBLISH operator adds to, so counting costs one
// small kernel and no transfer. They are 32-bit and wrap; read() widens them. Everything is allocated once, when the model is loaded.

#pragma once

#include "ostinato.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

struct ostinato_counted_layer {
    int32_t il;                      // the model's layer index
    int32_t n_experts;
    ggml_backend_buffer_type_t buft; // memory of the layer's device
};

class ostinato_route_counts {
public:
    // Throws std::bad_alloc when a device has no memory left for the counters (8 bytes per expert).
    explicit ostinato_route_counts(std::vector<ostinato_counted_layer> layers);

    int32_t n_layers () const { return (int32_t) layers.size(); }
    int32_t n_experts() const { return n_experts_max; }

    ggml_tensor * counters(int32_t i) const { return tensors[i]; } // [n_experts, OSTINATO_PHASE_COUNT] i32

    // counts[n_layers * n_experts]. Safe beside a running forward pass and beside other readers.
    void read(ostinato_phase phase, uint64_t * counts);

private:
    std::vector<ostinato_counted_layer> layers;
    int32_t n_experts_max = 0;

    std::vector<ggml_context_ptr>        contexts; // one per buffer type
    std::vector<ggml_backend_buffer_ptr> buffers;
    std::vector<ggml_tensor *>           tensors;  // one per layer

    std::mutex mutex; // guards seen and totals
    std::array<std::vector<uint32_t>, OSTINATO_PHASE_COUNT> seen;   // counters at the last read
    std::array<std::vector<uint64_t>, OSTINATO_PHASE_COUNT> totals;
};
