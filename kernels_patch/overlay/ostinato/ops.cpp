// Construction and CPU implementation of the operators in ops.h.

#include "ops.h"

// Runs on one thread: a layer has at most a few thousand routes per forward pass. The counters are read by other threads while a
// pass runs, hence the relaxed atomic additions.
static void publish_cpu(ggml_tensor * dst, int ith, int nth, void * userdata) {
    GGML_UNUSED(nth);
    GGML_UNUSED(userdata);
    if (ith != 0) {
        return;
    }
    const ggml_tensor * ids    = dst->src[0]; // [k, n_tokens]
    const ggml_tensor * counts = dst->src[1]; // [n_experts, 2]

    const int64_t n_experts = counts->ne[0];
    const int32_t phase     = dst->op_params[OSTINATO_PARAM_PHASE];
    int32_t * row = (int32_t *) ((char *) counts->data + phase*counts->nb[1]);

    for (int64_t t = 0; t < ids->ne[1]; ++t) {
        for (int64_t i = 0; i < ids->ne[0]; ++i) {
            const int32_t id = *(const int32_t *) ((const char *) ids->data + t*ids->nb[1] + i*ids->nb[0]);
            if (id >= 0 && id < n_experts) {
                __atomic_fetch_add(row + id, 1, __ATOMIC_RELAXED);
            }
        }
    }
}

ggml_tensor * ostinato_publish(ggml_context * ctx, ggml_tensor * ids, ggml_tensor * counts, int32_t phase) {
    GGML_ASSERT(ids->type == GGML_TYPE_I32 && counts->type == GGML_TYPE_I32);
    GGML_ASSERT(phase >= 0 && phase < counts->ne[1]);

    ggml_tensor * args[] = { ids, counts };
    ggml_tensor * node = ggml_custom_4d(ctx, GGML_TYPE_I32, 1, 1, 1, 1, args, 2, publish_cpu, 1, nullptr);

    node->op_params[OSTINATO_PARAM_TAG]   = OSTINATO_OP_TAG;
    node->op_params[OSTINATO_PARAM_OP]    = OSTINATO_OP_PUBLISH;
    node->op_params[OSTINATO_PARAM_PHASE] = phase;
    return node;
}
