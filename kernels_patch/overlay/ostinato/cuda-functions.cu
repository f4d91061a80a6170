// Implementation of cuda-functions.h, and the counting of passes.

#include "ostinato/cuda-functions.h"
#include "ostinato/expert-tiles.cuh"
#include "ostinato/ops-cuda.h"

#include "common.cuh"
#include "mmq.cuh"

#include <atomic>
#include <cstring>

static struct {
    std::atomic<uint64_t> captures { 0 };
    std::atomic<uint64_t> replays { 0 };
    std::atomic<uint64_t> direct_passes { 0 };
} passes_of[GGML_CUDA_MAX_DEVICES];

void ostinato_count_pass(const ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, const bool is_graph, const bool is_captured) {
    if (!ostinato_graph_key(graph)) {
        return;
    }
    auto & passes = passes_of[ctx.device];
    passes.captures      += is_graph && is_captured;
    passes.replays       += is_graph;
    passes.direct_passes += !is_graph;
}

static ostinato_graph_counts graph_counts(int device) {
    const auto & passes = passes_of[device];
    return { passes.captures.load(), passes.replays.load(), passes.direct_passes.load() };
}

static void * allocate_host(size_t bytes) {
    void * data = nullptr;
    if (cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
        (void) cudaGetLastError();
        return nullptr;
    }
    return data;
}

static void free_host(void * data) {
    CUDA_CHECK(cudaFreeHost(data));
}

static bool lock_pages(void * data, size_t bytes) {
    const cudaError_t status = cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    (void) cudaGetLastError();
    return status == cudaSuccess;
}

static void unlock_pages(void * data) {
    CUDA_CHECK(cudaHostUnregister(data));
}

static bool copy(int device, void * dst, const void * src, size_t bytes) {
    ggml_cuda_set_device(device);
    const bool is_done = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cudaStreamPerThread) == cudaSuccess &&
        cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess;
    (void) cudaGetLastError();
    return is_done;
}

static bool fill(int device, void * dst, int value, size_t bytes) {
    ggml_cuda_set_device(device);
    const bool is_done = cudaMemsetAsync(dst, value, bytes, cudaStreamPerThread) == cudaSuccess &&
        cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess;
    (void) cudaGetLastError();
    return is_done;
}

static void * make_stream(int device) {
    ggml_cuda_set_device(device);
    cudaStream_t stream = nullptr;
    const bool is_made = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
    (void) cudaGetLastError();
    return is_made ? stream : nullptr;
}

static void free_stream(int device, void * stream) {
    ggml_cuda_set_device(device);
    CUDA_CHECK(cudaStreamDestroy((cudaStream_t) stream));
}

static void * make_event(int device) {
    ggml_cuda_set_device(device);
    cudaEvent_t event = nullptr;
    const bool is_made = cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess;
    (void) cudaGetLastError();
    return is_made ? event : nullptr;
}

static void free_event(int device, void * event) {
    ggml_cuda_set_device(device);
    CUDA_CHECK(cudaEventDestroy((cudaEvent_t) event));
}

static void synchronize(int device) {
    ggml_cuda_set_device(device);
    CUDA_CHECK(cudaDeviceSynchronize());
}

static bool skips_routes(int device, ggml_type type, int64_t n_experts) {
    ggml_cuda_set_device(device);
    const int cc = ggml_cuda_info().devices[device].cc;
    // from one token to the largest batch: a type that ever takes another kernel keeps its zero slots
    return ggml_is_quantized(type) && ggml_cuda_should_use_mmq(type, cc, 1, n_experts) && ggml_cuda_should_use_mmq(type, cc, 1 << 20, n_experts);
}

void * ostinato_cuda_get_proc_address(const char * name) {
    static const ostinato_cuda_functions functions = {
        allocate_host, free_host, lock_pages, unlock_pages, copy, fill, make_stream, free_stream, make_event, free_event,
        synchronize, skips_routes, graph_counts, ostinato_tiled_products,
    };
    return strcmp(name, OSTINATO_CUDA_FUNCTIONS) == 0 ? (void *) &functions : nullptr;
}
