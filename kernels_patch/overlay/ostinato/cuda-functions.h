// What the llama library asks of the CUDA backend beyond ggml's interface. The backend may be loaded at run time, so these are found through its
// registry: ggml_backend_reg_get_proc_address(reg, OSTINATO_CUDA_FUNCTIONS). Device numbers are ggml's. Nothing here throws.

#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>

#define OSTINATO_CUDA_FUNCTIONS "ostinato_cuda_functions"

// How a device's passes were submitted, since the process began.
struct ostinato_graph_counts {
    uint64_t captures      = 0; // CUDA graphs captured
    uint64_t replays       = 0; // passes that replayed one, the capturing one included
    uint64_t direct_passes = 0; // operator by operator
};

struct ostinato_cuda_functions {
    // Page-locked host memory that every device addresses, or nullptr.
    void * (*allocate_host)(size_t bytes);
    void   (*free_host)(void * data);

    // Page-locks memory that exists, for every device. False where the system refuses.
    bool (*lock_pages)(void * data, size_t bytes);
    void (*unlock_pages)(void * data);

    // Host or device memory on either side; done on return. Does not wait for work of other streams.
    bool (*copy)(int device, void * dst, const void * src, size_t bytes);
    bool (*fill)(int device, void * dst, int value, size_t bytes);

    // A stream or an event of its own on a device, nullptr on failure.
    void * (*make_stream)(int device);
    void   (*free_stream)(int device, void * stream);
    void * (*make_event)(int device);
    void   (*free_event)(int device, void * event);

    // Waits for everything that was submitted to the device.
    void (*synchronize)(int device);

    // True where every product kernel that can meet experts of this type leaves out routes of a skipped expert; see skip.cuh.
    bool (*skips_routes)(int device, ggml_type type, int64_t n_experts);

    ostinato_graph_counts (*graph_counts)(int device);

    // Products of experts that were launched for the tiles that have rows, since the process began; see expert-tiles.cuh.
    uint64_t (*tiled_products)();
};
