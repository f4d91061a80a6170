// The slot id of a route that the GPU branch leaves out, because its expert is cold.
//
// Beyond every expert, not below: llama.cpp's sorting of routes by expert counts the ids that are smaller.

#pragma once

#include "ostinato/ops.h"

constexpr int32_t OSTINATO_SKIPPED_SLOT = INT32_MAX;

// True where `ids` are slot ids of a STAGE node, or of a PUBLISH node whose layer skips routes.
static inline bool ostinato_has_skipped(const ggml_tensor * ids) {
    const ggml_tensor * node = ostinato_maker_of(ids);
    const ostinato_op op = ostinato_op_of(node);
    return op == OSTINATO_OP_STAGE ||
        (op == OSTINATO_OP_PUBLISH && node->src[2] && node->op_params[OSTINATO_PARAM_ZERO_SLOT] == OSTINATO_NO_ZERO_SLOT);
}
