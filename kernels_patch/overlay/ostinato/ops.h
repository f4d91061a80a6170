// Ostinato's graph operators. They ride on GGML_OP_CUSTOM, so ggml.h and its tables of operators stay untouched: a node is
// ours when its op_params carry OSTINATO_OP_TAG behind ggml's own custom-op parameters (function, n_tasks, userdata).
//
// The CPU backend runs a custom node through its function pointer; that function is the reference for the CUDA kernel.
// The CUDA backend knows nothing of llama or of this library's state: all a kernel needs is in op_params and in src.
//
//   operator   src                                 dst                                effect
//   PUBLISH    0 ids          [k, n_tokens] i32    i32: slot ids [k, n_tokens], on    counts[ids] += 1 in row `phase` of src 1; with an
//              1 counts       [n_experts, 2] i32   the CPU also the rest of           index table, slot ids, and the cold routes: on the
//              2 index table  [n_experts] i32      handoff.h; [1] without an index    CPU into dst, on a GPU into its mailbox, with
//              3 layer input  [n_embd, n_tokens]   table                              their weights and the layer's input
//              4 weights      [1, k, n_tokens]
//              5 link table   [n_experts] i32      behind them in dst, when there is a link table: link ids [k, n_tokens] of the
//                                                  cold routes that the link has a share of, skipped else. On GPUs only
//   STAGE      0 ids          [k, n_tokens] i32    i32 [k, n_tokens]                  waits for the uploads of the step: staging slots of
//              1 PUBLISH's dst                     routes whose expert was uploaded, skipped else. On GPUs only
//              2 index table  [n_experts] i32
//              3 the GPU branch's output, which is computed before
//   MASK       0 weights      [1, k, n_tokens]     f32 [1, k, n_tokens]               the weights, 0 for routes that src 1 skips. On GPUs only
//              1 STAGE's dst  [k, n_tokens] i32
//   JOIN       0 gpu branch   [n_embd, n_tokens]   f32: [n_embd, n_tokens] of         the cold routes' weighted sum per token, added
//              1 PUBLISH's dst                     result, on the CPU then scratch    to the GPU branch's output
//              2 layer input  [n_embd, n_tokens]
//              3 weights      [1, k, n_tokens]
//
// ids may be a strided view (top-k gives one). Ids outside 0 .. n_experts - 1 are neither counted nor computed.

#pragma once

#include "cpu-branch.h"
#include "handoff.h"
#include "mailbox.h"

#include "ggml.h"

#include <cstdint>
#include <cstring>

constexpr int32_t OSTINATO_OP_TAG          = 0x54534f4f; // "OOST" in memory
constexpr int     OSTINATO_PARAM_TAG       = 8;          // index into op_params; ggml's custom parameters end before it
constexpr int     OSTINATO_PARAM_OP        = 9;
constexpr int     OSTINATO_PARAM_PHASE     = 10;
constexpr int     OSTINATO_PARAM_ZERO_SLOT = 11;         // the first zero slot, or OSTINATO_NO_ZERO_SLOT
constexpr int     OSTINATO_PARAM_LAYER     = 12;         // what the mailbox calls the layer
constexpr int     OSTINATO_PARAM_SHARE     = 13;         // of PUBLISH: OSTINATO_STAGED or _FOLLOWED, or the link's columns, or 0
constexpr int     OSTINATO_PARAM_MAILBOX   = 14;         // a pointer, in two words; nullptr on the CPU

constexpr int32_t OSTINATO_NO_ZERO_SLOT    = -1;         // routes of cold experts are skipped instead; see skip.h
constexpr int32_t OSTINATO_STAGED          = -1;         // a STAGE node follows,
constexpr int32_t OSTINATO_FOLLOWED        = -2;         // and one of the next layer after it

static_assert(GGML_MAX_OP_PARAMS / sizeof(int32_t) >= OSTINATO_PARAM_MAILBOX + sizeof(void *)/sizeof(int32_t),
    "op_params are too small for Ostinato's operators");

enum ostinato_op : int32_t {
    OSTINATO_OP_NONE    = 0,
    OSTINATO_OP_PUBLISH = 1,
    OSTINATO_OP_JOIN    = 2,
    OSTINATO_OP_STAGE   = 3,
    OSTINATO_OP_MASK    = 4,
};

// OSTINATO_OP_NONE for every node that is not ours.
static inline ostinato_op ostinato_op_of(const ggml_tensor * node) {
    if (node->op != GGML_OP_CUSTOM || node->op_params[OSTINATO_PARAM_TAG] != OSTINATO_OP_TAG) {
        return OSTINATO_OP_NONE;
    }
    return (ostinato_op) node->op_params[OSTINATO_PARAM_OP];
}

// The node that made ids, which may be a view of its result.
static inline const ggml_tensor * ostinato_maker_of(const ggml_tensor * ids) {
    return ids->view_src ? ids->view_src : ids;
}

// True for the router's ids of a layer that keeps the stock nodes, and whose routes are counted.
static inline bool ostinato_is_counted(const ggml_tensor * ids) {
    return ids->op != GGML_OP_CUSTOM && ids->op_params[OSTINATO_PARAM_TAG] == OSTINATO_OP_TAG;
}

static inline const ostinato_mailbox * ostinato_mailbox_of(const ggml_tensor * node) {
    const ostinato_mailbox * mailbox;
    memcpy(&mailbox, &node->op_params[OSTINATO_PARAM_MAILBOX], sizeof(mailbox));
    return mailbox;
}

// Counts the routes of `ids` into row `phase` of `counts`, and marks `ids` (ostinato_is_counted). Has to be expanded into the graph by hand, since nothing consumes it.
ggml_tensor * ostinato_publish_counts(ggml_context * ctx, ggml_tensor * ids, ggml_tensor * counts, int32_t phase);

// What PUBLISH and JOIN of one layer have in common.
struct ostinato_layer_ops {
    ggml_tensor * index_table;
    int32_t zero_slot;
    const ostinato_expert_ffn * ffn;  // must outlive the graph
    const ostinato_mailbox * mailbox; // of the layer's GPU, nullptr on the CPU
    int32_t layer;                    // what the mailbox calls the layer
    bool is_staged = false;           // a STAGE node follows
    ggml_tensor * link_table = nullptr; // of the layer, where the link has a share of its cold routes
    int32_t link_columns = 0;
};

// The same, and translates ids: `slot_ids` becomes a view [k, n_tokens] of the node, for the products over the pool.
ggml_tensor * ostinato_publish(
        ggml_context * ctx, const ostinato_layer_ops & ops, ggml_tensor * ids, ggml_tensor * counts, ggml_tensor * x, ggml_tensor * weights,
        int32_t phase, ggml_tensor ** slot_ids);

// `published` stages uploads: says so to the PUBLISH node before it in `graph`, where that is one of the layer before, of the same GPU and as many tokens.
void ostinato_follow(ggml_cgraph * graph, const ggml_tensor * published);

// Ids [k, n_tokens] for the products that read in place what `published` gave to the link.
ggml_tensor * ostinato_link_ids(ggml_context * ctx, ggml_tensor * ids, ggml_tensor * published);

// Slot ids in the staging buffer [k, n_tokens], for products that follow `gpu`.
ggml_tensor * ostinato_stage(
        ggml_context * ctx, const ostinato_layer_ops & ops, ggml_tensor * ids, ggml_tensor * published, ggml_tensor * gpu);

// `weights` [1, k, n_tokens], but 0 for the routes that `ids` [k, n_tokens] skips.
ggml_tensor * ostinato_masked_weights(ggml_context * ctx, ggml_tensor * weights, ggml_tensor * ids);

// [n_embd, n_tokens]: `gpu` plus the cold routes that `published` lists.
ggml_tensor * ostinato_join(
        ggml_context * ctx, const ostinato_layer_ops & ops, ggml_tensor * gpu, ggml_tensor * published, ggml_tensor * x, ggml_tensor * weights);
