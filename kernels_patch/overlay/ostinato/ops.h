// Ostinato's graph operators. They ride on GGML_OP_CUSTOM, so ggml.h and its tables of operators stay untouched: a node is
// ours when its op_params carry OSTINATO_OP_TAG behind ggml's own custom-op parameters (function, n_tasks, userdata).
//
// The CPU backend runs a custom node through its function pointer; that function is the reference for the CUDA kernel.
// The CUDA backend knows nothing of llama or of this library's state: all a kernel needs is in op_params and in src.
//
//   operator   src                                 dst                                effect
//   PUBLISH    0 ids          [k, n_tokens] i32    i32 words of handoff.h,            counts[ids] += 1 in row `phase` of src 1; with an
//              1 counts       [n_experts, 2] i32   or [1] without an index table      index table, slot ids and the list of cold routes
//              2 index table  [n_experts] i32
//   JOIN       0 gpu branch   [n_embd, n_tokens]   f32: [n_embd, n_tokens] of         the cold routes' weighted sum per token, added
//              1 PUBLISH's dst                     result, then scratch               to the GPU branch's output
//              2 layer input  [n_embd, n_tokens]
//              3 weights      [1, k, n_tokens]
//
// ids may be a strided view (top-k gives one). Ids outside 0 .. n_experts - 1 are neither counted nor computed.

#pragma once

#include "cpu-branch.h"

#include "ggml.h"

#include <cstdint>

constexpr int32_t OSTINATO_OP_TAG          = 0x54534f4f; // "OOST" in memory
constexpr int     OSTINATO_PARAM_TAG       = 8;          // index into op_params; ggml's custom parameters end before it
constexpr int     OSTINATO_PARAM_OP        = 9;
constexpr int     OSTINATO_PARAM_PHASE     = 10;
constexpr int     OSTINATO_PARAM_ZERO_SLOT = 11;

static_assert(GGML_MAX_OP_PARAMS / sizeof(int32_t) > OSTINATO_PARAM_ZERO_SLOT, "op_params are too small for Ostinato's operators");

enum ostinato_op : int32_t {
    OSTINATO_OP_NONE    = 0,
    OSTINATO_OP_PUBLISH = 1,
    OSTINATO_OP_JOIN    = 2,
};

// OSTINATO_OP_NONE for every node that is not ours.
static inline ostinato_op ostinato_op_of(const ggml_tensor * node) {
    if (node->op != GGML_OP_CUSTOM || node->op_params[OSTINATO_PARAM_TAG] != OSTINATO_OP_TAG) {
        return OSTINATO_OP_NONE;
    }
    return (ostinato_op) node->op_params[OSTINATO_PARAM_OP];
}

// Counts the routes of `ids` into row `phase` of `counts`. Has to be expanded into the graph by hand, since nothing consumes it.
ggml_tensor * ostinato_publish_counts(ggml_context * ctx, ggml_tensor * ids, ggml_tensor * counts, int32_t phase);

// The same, and translates ids: `slot_ids` becomes a view [k, n_tokens] of the node, for the products over the pool.
ggml_tensor * ostinato_publish(
        ggml_context * ctx, ggml_tensor * ids, ggml_tensor * counts, ggml_tensor * index_table, int32_t zero_slot, int32_t phase,
        ggml_tensor ** slot_ids);

// [n_embd, n_tokens]: `gpu` plus the cold routes that `published` lists. `ffn` must outlive the graph.
ggml_tensor * ostinato_join(
        ggml_context * ctx, ggml_tensor * gpu, ggml_tensor * published, ggml_tensor * x, ggml_tensor * weights,
        const ostinato_expert_ffn * ffn);
