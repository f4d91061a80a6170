// Ostinato's C interface: what the Python bindings and the engine's HTTP routes call.
//
// Every function may be called from any thread. Nothing here throws, and nothing here changes what a model computes:
// a process that calls none of it runs llama.cpp's own code paths. Functions that can fail return an ostinato_status
// and leave one sentence for the calling thread in ostinato_last_error().

#pragma once

#include "llama.h"

#include <stddef.h>
#include <stdint.h>

#define OSTINATO_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

enum ostinato_status {
    OSTINATO_OK                = 0,
    OSTINATO_UNKNOWN_MODEL     = 1, // the model has no experts, or was loaded before this library could see it
    OSTINATO_NOT_COUNTING      = 2, // routes of this model are not counted; the reason is in ostinato_last_error()
    OSTINATO_INVALID_ARGUMENT  = 3,
    OSTINATO_REFUSED           = 4, // this model cannot be placed that way; the running placement is untouched
};

enum ostinato_phase {
    OSTINATO_PHASE_PREFILL = 0, // a forward pass that needs the logits of some of its tokens only
    OSTINATO_PHASE_DECODE  = 1, // a forward pass that needs the logits of all its tokens, speculative ones included
    OSTINATO_PHASE_COUNT   = 2,
};

// Structures of llama.h that the bindings mirror by hand; their sizes are compared when the bindings are imported.
enum ostinato_struct {
    OSTINATO_STRUCT_LLAMA_MODEL_PARAMS   = 0,
    OSTINATO_STRUCT_LLAMA_CONTEXT_PARAMS = 1,
    OSTINATO_STRUCT_LLAMA_BATCH          = 2,
    OSTINATO_STRUCT_COUNT                = 3,
};

LLAMA_API int32_t      ostinato_abi_version (void);
LLAMA_API const char * ostinato_llama_commit(void);                   // the pinned llama.cpp commit, static storage
LLAMA_API size_t       ostinato_sizeof      (enum ostinato_struct s); // bytes, 0 for an unknown id
LLAMA_API const char * ostinato_last_error  (void);                   // of the calling thread, "" when none

// Count the routes of models that are loaded from now on (off by default). Counting adds one node per MoE layer to the
// graph; no node reads its result.
LLAMA_API void ostinato_set_count_routes(bool enabled);

struct ostinato_route_shape {
    int32_t n_layers;  // MoE layers, in the order of the counts
    int32_t n_experts; // experts per layer, the largest where layers differ
};

// Blocking: no. Fails with UNKNOWN_MODEL or NOT_COUNTING.
LLAMA_API enum ostinato_status ostinato_get_route_shape(const struct llama_model * model, struct ostinato_route_shape * shape);

// il[n_layers]: the model's layer index of each counted layer.
LLAMA_API enum ostinato_status ostinato_get_route_layers(const struct llama_model * model, int32_t * il, size_t n);

// Routes since the model was loaded: counts[n_layers * n_experts], row by layer. Reads device memory where a layer lives
// on a GPU, so it waits for that copy alone. A forward pass that is running may be counted in some layers and not yet in others.
LLAMA_API enum ostinato_status ostinato_get_route_counts(
        const struct llama_model * model, enum ostinato_phase phase, uint64_t * counts, size_t n);

// Makes exactly the experts with hot[layer * n_experts + expert] != 0 hot: they are computed from the expert pool in every forward pass,
// the others by the CPU branch. Call it after loading the model and before making its first context. Refused for layers on a GPU.
LLAMA_API enum ostinato_status ostinato_set_residency(const struct llama_model * model, const uint8_t * hot, size_t n);

#ifdef __cplusplus
}
#endif
