// CUDA implementation of the operators in ops.h.

#include "ostinato/ops-cuda.h"
#include "ostinato/ops.h"

#include "common.cuh"

static constexpr int PUBLISH_BLOCK = 256;

// counts (n_experts) of one phase; ids (k * n_tokens) with strides in elements. One thread per route: k * n_tokens is at most a few
// ten thousand, and equal ids of one warp are added once per group by the hardware's reduction of same-address atomics.
static __global__ void publish_count_routes(
        const int32_t * __restrict__ ids, int32_t * __restrict__ counts,
        const int n_experts, const int k, const int n_routes, const int64_t stride_id, const int64_t stride_token) {
    const int route = blockIdx.x*blockDim.x + threadIdx.x;
    if (route >= n_routes) {
        return;
    }
    const int32_t id = ids[(route / k)*stride_token + (route % k)*stride_id];
    if (id >= 0 && id < n_experts) {
        atomicAdd(counts + id, 1);
    }
}

static void publish(ggml_backend_cuda_context & ctx, const ggml_tensor * dst) {
    const ggml_tensor * ids    = dst->src[0]; // [k, n_tokens]
    const ggml_tensor * counts = dst->src[1]; // [n_experts, 2]

    const int k        = ids->ne[0];
    const int n_routes = k*ids->ne[1];
    if (n_routes == 0) {
        return;
    }
    int32_t * row = (int32_t *) ((char *) counts->data + dst->op_params[OSTINATO_PARAM_PHASE]*counts->nb[1]);

    publish_count_routes<<<(n_routes + PUBLISH_BLOCK - 1)/PUBLISH_BLOCK, PUBLISH_BLOCK, 0, ctx.stream()>>>(
        (const int32_t *) ids->data, row, counts->ne[0], k, n_routes, ids->nb[0]/sizeof(int32_t), ids->nb[1]/sizeof(int32_t));
    CUDA_CHECK(cudaGetLastError());
}

bool ostinato_cuda_supports_op(const ggml_tensor * op) {
    // the hand-off to the CPU branch has no CUDA implementation: residency is refused for layers on a GPU
    return ostinato_op_of(op) == OSTINATO_OP_PUBLISH && !op->src[2];
}

bool ostinato_cuda_compute_forward(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    switch (ostinato_op_of(dst)) {
        case OSTINATO_OP_PUBLISH:
            publish(ctx, dst);
            return true;
        case OSTINATO_OP_JOIN:
        case OSTINATO_OP_NONE:
            break;
    }
    return false;
}
