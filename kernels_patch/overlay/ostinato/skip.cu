// Implementation of skip.cuh.

#include "ostinato/skip.cuh"

static __global__ void fill_skipped(int32_t * ids_src1, int32_t * ids_dst, const int n, const int value) {
    const int i = blockIdx.x*blockDim.x + threadIdx.x;
    if (i < n) {
        ids_src1[i] = value;
        ids_dst [i] = 0;
    }
}

static __global__ void zero_skipped(
        const int32_t * ids, float * dst, const int k, const int64_t n_rows, const int64_t stride_ids, const int64_t stride_k, const int64_t stride_token) {
    const int route = blockIdx.x;
    if (ids[(route / k)*stride_ids + route % k] != OSTINATO_SKIPPED_SLOT) {
        return;
    }
    float * row = dst + (route / k)*stride_token + (route % k)*stride_k;
    for (int64_t i = threadIdx.x; i < n_rows; i += blockDim.x) {
        row[i] = 0.0f;
    }
}

void ostinato_prepare_skipping(
        const ggml_tensor * ids, ggml_tensor * dst, int32_t * ids_src1, int32_t * ids_dst, const bool is_inverse, cudaStream_t stream) {
    if (!ostinato_has_skipped(ids)) {
        return;
    }
    const int n = ids->ne[0]*ids->ne[1];
    fill_skipped<<<(n + 255)/256, 256, 0, stream>>>(ids_src1, ids_dst, n, is_inverse ? n - 1 : 0);
    CUDA_CHECK(cudaGetLastError());
    zero_skipped<<<n, 256, 0, stream>>>(
        (const int32_t *) ids->data, (float *) dst->data, ids->ne[0], dst->ne[0], ids->nb[1]/sizeof(int32_t), dst->nb[1]/sizeof(float),
        dst->nb[2]/sizeof(float));
    CUDA_CHECK(cudaGetLastError());
}
