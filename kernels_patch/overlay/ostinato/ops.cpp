// Construction and CPU implementation of the operators in ops.h.

#include "ops.h"

static_assert(sizeof(ostinato_team) == (ostinato_handoff::HEADER_WORDS - ostinato_handoff::TEAM)*sizeof(int32_t), "the header holds a team");

#include <algorithm>

static int32_t id_at(const ggml_tensor * ids, int64_t token, int64_t position) {
    return *(const int32_t *) ((const char *) ids->data + token*ids->nb[1] + position*ids->nb[0]);
}

// Fills the hand-off of one step: slot ids, and the cold routes grouped by expert in ascending order, routes of one expert in
// ascending order too.
static void translate(const ggml_tensor * ids, const ggml_tensor * table, int32_t zero_slot, int32_t * words) {
    const int64_t k         = ids->ne[0];
    const int64_t n_tokens  = ids->ne[1];
    const int64_t n_experts = table->ne[0];
    const int32_t * slot_of = (const int32_t *) table->data;

    ostinato_handoff handoff(words, (int32_t) (k*n_tokens));
    int32_t n_cold = 0;
    for (int64_t t = 0; t < n_tokens; ++t) {
        for (int64_t i = 0; i < k; ++i) {
            const int32_t route = (int32_t) (t*k + i);
            const int32_t id    = id_at(ids, t, i);
            const bool is_valid = id >= 0 && id < n_experts;
            const int32_t slot  = is_valid ? slot_of[id] : -1;
            handoff.slot_ids[route] = slot >= 0 ? slot : zero_slot + (int32_t) i;
            if (is_valid && slot < 0) {
                handoff.cold[n_cold++] = route;
            }
        }
    }
    const auto expert_of = [&](int32_t route) { return id_at(ids, route/k, route % k); };
    std::sort(handoff.cold, handoff.cold + n_cold, [&](int32_t a, int32_t b) {
        const int32_t ea = expert_of(a);
        const int32_t eb = expert_of(b);
        return ea != eb ? ea < eb : a < b;
    });
    int32_t n_groups = 0;
    for (int32_t r = 0; r < n_cold; ++r) {
        const int32_t expert = expert_of(handoff.cold[r]);
        if (n_groups == 0 || handoff.groups[2*(n_groups - 1)] != expert) {
            handoff.groups[2*n_groups++] = expert;
        }
        handoff.groups[2*(n_groups - 1) + 1] = r + 1;
    }
    handoff.header[ostinato_handoff::N_COLD]   = n_cold;
    handoff.header[ostinato_handoff::N_GROUPS] = n_groups;
    *(ostinato_team *) (handoff.header + ostinato_handoff::TEAM) = {};
}

// Runs on one thread: a layer has at most a few thousand routes per forward pass. The counters are read by other threads while a
// pass runs, hence the relaxed atomic additions.
static void publish_cpu(ggml_tensor * dst, int ith, int nth, void * userdata) {
    GGML_UNUSED(nth);
    GGML_UNUSED(userdata);
    if (ith != 0) {
        return;
    }
    const ggml_tensor * ids    = dst->src[0];
    const ggml_tensor * counts = dst->src[1];
    const ggml_tensor * table  = dst->src[2];

    int32_t * row = (int32_t *) ((char *) counts->data + dst->op_params[OSTINATO_PARAM_PHASE]*counts->nb[1]);
    for (int64_t t = 0; t < ids->ne[1]; ++t) {
        for (int64_t i = 0; i < ids->ne[0]; ++i) {
            const int32_t id = id_at(ids, t, i);
            if (id >= 0 && id < counts->ne[0]) {
                __atomic_fetch_add(row + id, 1, __ATOMIC_RELAXED);
            }
        }
    }
    if (table) {
        translate(ids, table, dst->op_params[OSTINATO_PARAM_ZERO_SLOT], (int32_t *) dst->data);
    }
}

static void join_cpu(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const ggml_tensor * gpu       = dst->src[0];
    const ggml_tensor * published = dst->src[1];
    const ggml_tensor * x         = dst->src[2];
    const ggml_tensor * weights   = dst->src[3];

    const int64_t k = weights->ne[1];
    const ostinato_handoff handoff((int32_t *) published->data, (int32_t) (k*weights->ne[2]));
    const uintptr_t after_result = (uintptr_t) ((float *) dst->data + gpu->ne[0]*gpu->ne[1]);
    const ostinato_cold_step step = {
        /*.ffn      =*/ (const ostinato_expert_ffn *) userdata,
        /*.host     =*/ nullptr,
        /*.k        =*/ (int32_t) k,
        /*.n_tokens =*/ (int32_t) weights->ne[2],
        /*.n_cold   =*/ handoff.header[ostinato_handoff::N_COLD],
        /*.n_groups =*/ handoff.header[ostinato_handoff::N_GROUPS],
        /*.cold     =*/ handoff.cold,
        /*.groups   =*/ handoff.groups,
        /*.x        =*/ (const float *) x->data,
        /*.weights  =*/ (const float *) weights->data,
        /*.gpu      =*/ (const float *) gpu->data,
        /*.out      =*/ (float *) dst->data,
        /*.scratch  =*/ (char *) ((after_result + 63) & ~(uintptr_t) 63),
        /*.team     =*/ (ostinato_team *) (handoff.header + ostinato_handoff::TEAM),
    };
    ostinato_compute_cold(step, ith, nth);
}

static void unsupported_cpu(ggml_tensor *, int, int, void *) {
    GGML_ABORT("an operator for GPUs was scheduled on the CPU");
}

static ggml_tensor * custom(
        ggml_context * ctx, ostinato_op op, ggml_type type, int64_t ne0, ggml_tensor ** args, int n_args, ggml_custom_op_t fun,
        int n_tasks, const void * userdata) {
    ggml_tensor * node = ggml_custom_4d(ctx, type, ne0, 1, 1, 1, args, n_args, fun, n_tasks, const_cast<void *>(userdata));
    node->op_params[OSTINATO_PARAM_TAG] = OSTINATO_OP_TAG;
    node->op_params[OSTINATO_PARAM_OP]  = op;
    return node;
}

ggml_tensor * ostinato_publish_counts(ggml_context * ctx, ggml_tensor * ids, ggml_tensor * counts, int32_t phase) {
    GGML_ASSERT(ids->type == GGML_TYPE_I32 && counts->type == GGML_TYPE_I32);
    GGML_ASSERT(phase >= 0 && phase < counts->ne[1]);

    ggml_tensor * args[] = { ids, counts };
    ggml_tensor * node = custom(ctx, OSTINATO_OP_PUBLISH, GGML_TYPE_I32, 1, args, 2, publish_cpu, 1, nullptr);
    node->op_params[OSTINATO_PARAM_PHASE] = phase;
    ids->op_params[OSTINATO_PARAM_TAG] = OSTINATO_OP_TAG; // see ostinato_is_counted; what makes ids has parameters in fewer words
    return node;
}

static void set_layer(ggml_tensor * node, const ostinato_layer_ops & ops) {
    node->op_params[OSTINATO_PARAM_ZERO_SLOT] = ops.zero_slot;
    node->op_params[OSTINATO_PARAM_LAYER]     = ops.layer;
    memcpy(&node->op_params[OSTINATO_PARAM_MAILBOX], &ops.mailbox, sizeof(ops.mailbox));
}

ggml_tensor * ostinato_publish(
        ggml_context * ctx, const ostinato_layer_ops & ops, ggml_tensor * ids, ggml_tensor * counts, ggml_tensor * x, ggml_tensor * weights,
        int32_t phase, ggml_tensor ** slot_ids) {
    GGML_ASSERT(ids->type == GGML_TYPE_I32 && counts->type == GGML_TYPE_I32 && ops.index_table->type == GGML_TYPE_I32);
    GGML_ASSERT(ggml_is_contiguous(x) && ggml_is_contiguous(weights));
    GGML_ASSERT(phase >= 0 && phase < counts->ne[1]);

    const int64_t k        = ids->ne[0];
    const int64_t n_tokens = ids->ne[1];
    const int64_t n_words  = !ops.mailbox ? ostinato_handoff::words(k*n_tokens) : ops.link_table ? 2*k*n_tokens : k*n_tokens;
    ggml_tensor * args[] = { ids, counts, ops.index_table, x, weights, ops.link_table };
    ggml_tensor * node = custom(ctx, OSTINATO_OP_PUBLISH, GGML_TYPE_I32, n_words, args, ops.link_table ? 6 : 5, publish_cpu, 1, nullptr);
    node->op_params[OSTINATO_PARAM_PHASE] = phase;
    node->op_params[OSTINATO_PARAM_SHARE] = ops.is_staged ? OSTINATO_STAGED : ops.link_table ? ops.link_columns : 0;
    set_layer(node, ops);

    *slot_ids = ggml_view_2d(ctx, node, k, n_tokens, k*sizeof(int32_t), 0);
    return node;
}

void ostinato_follow(ggml_cgraph * graph, const ggml_tensor * published) {
    int n = ggml_graph_n_nodes(graph) - 1;
    while (n >= 0 && ggml_graph_node(graph, n) != published) {
        --n;
    }
    for (--n; n >= 0; --n) {
        ggml_tensor * node = ggml_graph_node(graph, n);
        if (ostinato_op_of(node) == OSTINATO_OP_PUBLISH) {
            const bool is_before = ostinato_mailbox_of(node) == ostinato_mailbox_of(published) && node->src[0]->ne[1] == published->src[0]->ne[1] &&
                node->op_params[OSTINATO_PARAM_LAYER] + 1 == published->op_params[OSTINATO_PARAM_LAYER];
            if (is_before && node->op_params[OSTINATO_PARAM_SHARE] == OSTINATO_STAGED) {
                node->op_params[OSTINATO_PARAM_SHARE] = OSTINATO_FOLLOWED;
            }
            return;
        }
    }
}

ggml_tensor * ostinato_link_ids(ggml_context * ctx, ggml_tensor * ids, ggml_tensor * published) {
    const int64_t k        = ids->ne[0];
    const int64_t n_tokens = ids->ne[1];
    return ggml_view_2d(ctx, published, k, n_tokens, k*sizeof(int32_t), k*n_tokens*sizeof(int32_t));
}

ggml_tensor * ostinato_stage(
        ggml_context * ctx, const ostinato_layer_ops & ops, ggml_tensor * ids, ggml_tensor * published, ggml_tensor * gpu) {
    GGML_ASSERT(ops.mailbox);
    ggml_tensor * args[] = { ids, published, ops.index_table, gpu };
    ggml_tensor * node = custom(ctx, OSTINATO_OP_STAGE, GGML_TYPE_I32, ids->ne[0]*ids->ne[1], args, 4, unsupported_cpu, 1, nullptr);
    set_layer(node, ops);
    return ggml_view_2d(ctx, node, ids->ne[0], ids->ne[1], ids->ne[0]*sizeof(int32_t), 0);
}

ggml_tensor * ostinato_masked_weights(ggml_context * ctx, ggml_tensor * weights, ggml_tensor * ids) {
    GGML_ASSERT(ggml_is_contiguous(weights) && ggml_is_contiguous(ids) && ggml_nelements(weights) == ggml_nelements(ids));
    ggml_tensor * args[] = { weights, ids };
    ggml_tensor * node = custom(ctx, OSTINATO_OP_MASK, GGML_TYPE_F32, ggml_nelements(weights), args, 2, unsupported_cpu, 1, nullptr);
    return ggml_reshape_3d(ctx, node, weights->ne[0], weights->ne[1], weights->ne[2]);
}

ggml_tensor * ostinato_join(
        ggml_context * ctx, const ostinato_layer_ops & ops, ggml_tensor * gpu, ggml_tensor * published, ggml_tensor * x, ggml_tensor * weights) {
    GGML_ASSERT(ggml_is_contiguous(gpu) && ggml_is_contiguous(x) && ggml_is_contiguous(weights));

    const int64_t n_embd   = gpu->ne[0];
    const int64_t n_tokens = gpu->ne[1];
    const size_t  scratch  = ops.mailbox ? 0 : 64 + ostinato_cold_scratch_bytes(*ops.ffn, weights->ne[1]*n_tokens, n_tokens);
    const int64_t n_floats = n_embd*n_tokens + (int64_t) ((scratch + sizeof(float) - 1)/sizeof(float));

    ggml_tensor * args[] = { gpu, published, x, weights };
    ggml_tensor * node = custom(ctx, OSTINATO_OP_JOIN, GGML_TYPE_F32, n_floats, args, 4, join_cpu, GGML_N_TASKS_MAX, ops.ffn);
    set_layer(node, ops);
    return ggml_view_2d(ctx, node, n_embd, n_tokens, n_embd*sizeof(float), 0);
}
