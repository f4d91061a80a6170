// Ostinato's graph operators. They ride on GGML_OP_CUSTOM, so ggml.h and its tables of operators stay untouched: a node is
// ours when its op_params carry OSTINATO_OP_TAG behind ggml's own custom-op parameters (function, n_tasks, userdata).
//
// The CPU backend runs a custom node through its function pointer; that function is the reference for the CUDA kernel.
// The CUDA backend knows nothing of llama or of this library's state: all a kernel needs is in op_params and in src.
//
//   operator   src                              dst        effect
//   PUBLISH    0 ids       [k, n_tokens] i32    [1] i32    counts[ids] += 1, in row `phase` of src 1; dst is never written
//              1 counts    [n_experts, 2] i32
//
// ids may be a strided view (top-k gives one). Ids outside 0 .. n_experts - 1 are not counted.

#pragma once

#include "ggml.h"

#include <cstdint>
#include <cstring>

constexpr int32_t OSTINATO_OP_TAG      = 0x5453'4f4f; // "OOST" in memory
constexpr int     OSTINATO_PARAM_TAG   = 8;           // index into op_params; ggml's custom parameters end before it
constexpr int     OSTINATO_PARAM_OP    = 9;
constexpr int     OSTINATO_PARAM_PHASE = 10;

static_assert(GGML_MAX_OP_PARAMS / sizeof(int32_t) > OSTINATO_PARAM_PHASE, "op_params are too small for Ostinato's operators");

enum ostinato_op : int32_t {
    OSTINATO_OP_NONE    = 0,
    OSTINATO_OP_PUBLISH = 1,
};

// OSTINATO_OP_NONE for every node that is not ours.
static inline ostinato_op ostinato_op_of(const ggml_tensor * node) {
    if (node->op != GGML_OP_CUSTOM || node->op_params[OSTINATO_PARAM_TAG] != OSTINATO_OP_TAG) {
        return OSTINATO_OP_NONE;
    }
    return (ostinato_op) node->op_params[OSTINATO_PARAM_OP];
}

// A node that counts the routes of `ids` into row `phase` of `counts`. It has to be expanded into the graph by hand, since
// nothing consumes it.
ggml_tensor * ostinato_publish(ggml_context * ctx, ggml_tensor * ids, ggml_tensor * counts, int32_t phase);
