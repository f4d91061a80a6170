// CUDA implementation of the operators in ops.h.

#include "ostinato/mailbox.h"
#include "ostinato/mailbox-words.cuh"
#include "ostinato/ops-cuda.h"
#include "ostinato/skip.cuh"

#include "common.cuh"

#include <algorithm>
#include <limits>

static constexpr int BLOCK = 256;

// A step of up to so many routes and input floats is published and joined by few, fused kernels: launches cost more than the work.
static constexpr int64_t SMALL_ROUTES = 1024;
static constexpr int64_t SMALL_INPUTS = 64*1024;

static __device__ __forceinline__ uint32_t micros_between(const uint64_t begin_ns, const uint64_t end_ns) {
    return end_ns > begin_ns ? (uint32_t) min((end_ns - begin_ns)/1000, (uint64_t) 1000000000) : 0;
}

struct publish_args {
    const int32_t * ids;     // (n_routes) with strides in elements
    int64_t stride_id;
    int64_t stride_token;
    int32_t * counts;        // (n_experts) of one phase
    const int32_t * table;   // (n_experts), nullptr: count only
    int32_t * slot_ids;      // (n_routes)
    const int32_t * link_table; // (n_experts), nullptr: the link has no share
    int32_t * link_ids;         // (n_routes)
    const float * x;         // (n_inputs)
    const float * weights;   // (n_routes)
    int64_t n_inputs;
    int n_experts;
    int k;
    int n_routes;
    int zero_slot;
    int layer;
    int is_staged;
    int is_followed;
    int is_sparse;
    int link_columns;
    ostinato_mailbox mailbox;
};

// One route: counted, translated, and where it is cold, listed at the place that `n_found` gives.
static __device__ __forceinline__ void publish_route(const publish_args & a, const int route, uint32_t * n_found) {
    const int position = route % a.k;
    const int32_t id   = a.ids[(route / a.k)*a.stride_token + position*a.stride_id];
    const bool is_valid = id >= 0 && id < a.n_experts;
    if (is_valid) {
        atomicAdd(a.counts + id, 1);
    }
    if (!a.table) {
        return;
    }
    const int32_t slot = is_valid ? a.table[id] : -1;
    a.slot_ids[route] = slot >= 0 ? slot : a.zero_slot == OSTINATO_NO_ZERO_SLOT ? OSTINATO_SKIPPED_SLOT : a.zero_slot + position;
    if (a.link_table) {
        const int32_t link = is_valid && slot < 0 ? a.link_table[id] : -1;
        a.link_ids[route] = link >= 0 ? link : OSTINATO_SKIPPED_SLOT;
        if (link >= 0) {
            atomicAdd((unsigned long long *) &a.mailbox.state->n_linked, 1ull);
        }
    }
    if (is_valid && slot < 0 && !a.mailbox.state->failed) {
        const uint32_t i = atomicAdd(n_found, 1);
        a.mailbox.cold[2*i + 0] = id;
        a.mailbox.cold[2*i + 1] = route;
        a.mailbox.weights[route] = a.weights[route];
        if (a.is_sparse) {
            a.mailbox.cold_tokens[route / a.k] = a.mailbox.state->sequence + 1; // the number that the step is about to have
        }
    }
}

// The step's last act, by one thread, after everything else of it is visible to this thread's device.
static __device__ __forceinline__ void publish_signal(const publish_args & a, const uint32_t n_cold) {
    ostinato_mailbox_state * state = a.mailbox.state;
    state->n_cold = n_cold;
    if (n_cold == 0) {
        return;
    }
    ostinato_request * request = a.mailbox.request;
    store_volatile(&request->layer,    a.layer);
    store_volatile(&request->n_tokens, a.n_routes / a.k);
    store_volatile(&request->k,        a.k);
    store_volatile(&request->n_cold,   n_cold);
    store_volatile(&request->is_staged,    a.is_staged);
    store_volatile(&request->is_followed,  a.is_followed);
    store_volatile(&request->is_sparse,    a.is_sparse);
    const uint64_t now = now_ns();
    store_volatile(&request->rest_us,      micros_between(state->copied_ns, now));
    store_volatile(&request->copy_us,      micros_between(state->decided_ns, state->copied_ns));
    store_volatile(&request->hot_us,       micros_between(state->published_ns, state->hot_ns));
    store_volatile(&request->chain_us,     micros_between(max(state->copied_ns, state->hot_ns), state->joined_ns));
    store_volatile(&request->link_columns, a.link_columns);
    state->published_ns  = now;
    state->n_published  += 1;
    state->n_cold_total += n_cold;
    const uint32_t sequence = state->sequence + 1;
    state->sequence = sequence;
    __threadfence_system(); // the host sees the request before its number
    store_volatile(&request->sequence, sequence);
}

static __global__ void publish_small(const publish_args a) {
    __shared__ uint32_t n_found;
    if (threadIdx.x == 0) {
        n_found = 0;
    }
    __syncthreads();
    for (int route = threadIdx.x; route < a.n_routes; route += blockDim.x) {
        publish_route(a, route, &n_found);
    }
    __syncthreads();
    if (n_found > 0) {
        for (int64_t i = threadIdx.x; i < a.n_inputs; i += blockDim.x) {
            a.mailbox.x[i] = a.x[i];
        }
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        publish_signal(a, n_found);
    }
}

static __global__ void publish_routes(const publish_args a) {
    const int route = blockIdx.x*blockDim.x + threadIdx.x;
    if (route < a.n_routes) {
        publish_route(a, route, a.table ? &a.mailbox.state->n_found : nullptr);
    }
    if (a.table) {
        __threadfence_system(); // the list is on its way to the host before the kernel that sends its number
    }
}

static __global__ void publish_inputs(const publish_args a) {
    if (a.mailbox.state->n_found == 0) {
        return;
    }
    if (a.is_sparse) {
        const int n_tokens = a.n_routes / a.k;
        const int64_t n_in = a.n_inputs / n_tokens;
        const uint32_t sequence = a.mailbox.state->sequence + 1;
        for (int token = blockIdx.x; token < n_tokens; token += gridDim.x) {
            if (a.mailbox.cold_tokens[token] != sequence) {
                continue;
            }
            for (int64_t i = token*n_in + threadIdx.x; i < (token + 1)*n_in; i += blockDim.x) {
                a.mailbox.x[i] = a.x[i];
            }
        }
    } else {
        for (int64_t i = (int64_t) blockIdx.x*blockDim.x + threadIdx.x; i < a.n_inputs; i += (int64_t) gridDim.x*blockDim.x) {
            a.mailbox.x[i] = a.x[i];
        }
    }
    __threadfence_system();
}

static __global__ void publish_done(const publish_args a) {
    const uint32_t n_cold = a.mailbox.state->n_found;
    a.mailbox.state->n_found = 0;
    publish_signal(a, n_cold);
}

// Few blocks, so that the product chain beside it has the GPU to itself: the link is busy with far fewer bytes in flight than these ask for. Where the
// mailbox names a number, that one, and half of it beside attention.
static constexpr int COPY_BLOCKS     = 8;
static constexpr int PREFETCH_BLOCKS = 4; // beside attention
static constexpr int COPY_THREADS = 512;
static constexpr int COPIES_AT_ONCE = 48; // in shared memory

// One thread's part of a copy.
static __device__ __forceinline__ void copy_pieces(const ostinato_copy & copy, const int64_t thread, const int64_t stride) {
    const uint4 * src = (const uint4 *) copy.src;
    uint4 * dst       = (uint4 *) copy.dst;
    const int64_t n   = copy.bytes/16;
    int64_t i = thread;
    for (; i + 3*stride < n; i += 4*stride) {
        const uint4 w0 = src[i];
        const uint4 w1 = src[i + stride];
        const uint4 w2 = src[i + 2*stride];
        const uint4 w3 = src[i + 3*stride];
        dst[i] = w0;
        dst[i + stride]   = w1;
        dst[i + 2*stride] = w2;
        dst[i + 3*stride] = w3;
    }
    for (; i < n; i += stride) {
        dst[i] = src[i];
    }
}

static __global__ void copy_experts(const ostinato_mailbox mailbox) {
    ostinato_mailbox_state * state = mailbox.state;
    __shared__ bool is_decided;
    if (threadIdx.x == 0) {
        is_decided = false;
        if (state->n_cold > 0 && !state->failed) {
            const uint32_t sequence = state->sequence;
            const uint64_t begin    = now_ns();
            is_decided = true;
            while (load_volatile(&mailbox.request->decided) != sequence) {
                if (now_ns() - begin > mailbox.timeout_ns || load_volatile(&mailbox.request->failed)) {
                    is_decided = false;
                    state->failed = 1;
                    store_volatile(&mailbox.request->failed, 1);
                    break;
                }
            }
            __threadfence_system();
            if (blockIdx.x == 0) {
                state->decided_ns = now_ns();
            }
        }
    }
    __syncthreads();
    const int64_t thread = (int64_t) blockIdx.x*blockDim.x + threadIdx.x;
    const int64_t stride = (int64_t) gridDim.x*blockDim.x;
    if (!is_decided) {
        if (thread == 0) {
            state->n_prefetched = 0;
        }
        return;
    }
    // Lists and slots come over the link once per block. Volatile: the host wrote them while the kernel ran.
    __shared__ ostinato_copy copies[COPIES_AT_ONCE];
    const int n_copies     = *(const volatile int32_t *) &mailbox.request->n_copies;
    const int n_prefetched = *(const volatile int32_t *) &mailbox.request->n_prefetched;
    if (thread == 0) {
        state->n_prefetched = n_prefetched;
    }
    for (int64_t w = thread; w < n_prefetched*(int64_t) (sizeof(ostinato_copy)/sizeof(uint64_t)); w += stride) {
        ((uint64_t *) mailbox.prefetched)[w] = ((const volatile uint64_t *) (mailbox.copies + n_copies))[w];
    }
    for (int64_t e = thread; e < mailbox.n_experts; e += stride) {
        mailbox.staged_slots[e] = *(const volatile int32_t *) (mailbox.decided_slots + e);
    }
    for (int first = 0; first < n_copies; first += COPIES_AT_ONCE) {
        const int n_listed = min(COPIES_AT_ONCE, n_copies - first);
        const int n_words  = n_listed*(int) (sizeof(ostinato_copy)/sizeof(uint64_t));
        __syncthreads(); // everybody is through with the last part of the list
        for (int w = threadIdx.x; w < n_words; w += blockDim.x) {
            ((uint64_t *) copies)[w] = ((const volatile uint64_t *) (mailbox.copies + first))[w];
        }
        __syncthreads();
        for (int listed = 0; listed < n_listed; ++listed) {
            copy_pieces(copies[listed], thread, stride);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicMax((unsigned long long *) &state->copied_ns, (unsigned long long) now_ns());
    }
}

// The decision's second list. Whoever stages next waits for it, since the stream keeps the order.
static __global__ void prefetch_experts(const ostinato_mailbox mailbox) {
    const int64_t thread = (int64_t) blockIdx.x*blockDim.x + threadIdx.x;
    const int64_t stride = (int64_t) gridDim.x*blockDim.x;
    const int n_prefetched = mailbox.state->n_prefetched;
    for (int i = 0; i < n_prefetched; ++i) {
        copy_pieces(mailbox.prefetched[i], thread, stride);
    }
}

static void fork_upload(const ostinato_mailbox & mailbox, const bool is_followed, cudaStream_t stream) {
    cudaStream_t second = (cudaStream_t) mailbox.stream;
    CUDA_CHECK(cudaEventRecord((cudaEvent_t) mailbox.forked, stream));
    CUDA_CHECK(cudaStreamWaitEvent(second, (cudaEvent_t) mailbox.forked, 0));
    const bool is_chosen      = mailbox.copy_blocks > 0;
    const int copy_blocks     = is_chosen ? mailbox.copy_blocks : COPY_BLOCKS;
    const int prefetch_blocks = is_chosen ? std::max(1, mailbox.copy_blocks/2) : PREFETCH_BLOCKS;
    copy_experts<<<copy_blocks, COPY_THREADS, 0, second>>>(mailbox);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaEventRecord((cudaEvent_t) mailbox.joined, second));
    if (is_followed) {
        prefetch_experts<<<prefetch_blocks, COPY_THREADS, 0, second>>>(mailbox);
        CUDA_CHECK(cudaGetLastError());
    }
}

static void publish(ggml_backend_cuda_context & ctx, const ggml_tensor * dst) {
    const ggml_tensor * ids    = dst->src[0]; // [k, n_tokens]
    const ggml_tensor * counts = dst->src[1]; // [n_experts, 2]
    const ggml_tensor * table  = dst->src[2];

    publish_args a = {};
    a.ids          = (const int32_t *) ids->data;
    a.stride_id    = ids->nb[0]/sizeof(int32_t);
    a.stride_token = ids->nb[1]/sizeof(int32_t);
    a.counts       = (int32_t *) ((char *) counts->data + dst->op_params[OSTINATO_PARAM_PHASE]*counts->nb[1]);
    a.n_experts    = counts->ne[0];
    a.k            = ids->ne[0];
    a.n_routes     = ids->ne[0]*ids->ne[1];
    if (a.n_routes == 0) {
        return;
    }
    const int n_blocks = (a.n_routes + BLOCK - 1)/BLOCK;
    cudaStream_t stream = ctx.stream();
    if (!table) {
        publish_routes<<<n_blocks, BLOCK, 0, stream>>>(a);
        CUDA_CHECK(cudaGetLastError());
        return;
    }
    const ggml_tensor * x       = dst->src[3]; // [n_embd, n_tokens]
    const ggml_tensor * weights = dst->src[4]; // [1, k, n_tokens]
    a.table     = (const int32_t *) table->data;
    a.slot_ids  = (int32_t *) dst->data;
    a.x         = (const float *) x->data;
    a.weights   = (const float *) weights->data;
    a.n_inputs  = ggml_nelements(x);
    a.zero_slot = dst->op_params[OSTINATO_PARAM_ZERO_SLOT];
    a.layer     = dst->op_params[OSTINATO_PARAM_LAYER];
    a.mailbox   = *ostinato_mailbox_of(dst);
    a.is_staged   = dst->op_params[OSTINATO_PARAM_SHARE] <= OSTINATO_STAGED;
    a.is_followed = dst->op_params[OSTINATO_PARAM_SHARE] == OSTINATO_FOLLOWED;
    a.is_sparse   = ids->ne[1] >= OSTINATO_SPARSE_TOKENS;
    GGML_ASSERT(a.n_routes <= a.mailbox.max_routes && a.n_inputs <= a.mailbox.max_inputs);
    if (const ggml_tensor * link_table = dst->src[5]) {
        a.link_table   = (const int32_t *) link_table->data;
        a.link_ids     = a.slot_ids + a.n_routes;
        a.link_columns = dst->op_params[OSTINATO_PARAM_SHARE];
    }

    if (a.n_routes <= SMALL_ROUTES && a.n_inputs <= SMALL_INPUTS) { // all inputs, also of a sparse step
        publish_small<<<1, 1024, 0, stream>>>(a);
    } else {
        publish_routes<<<n_blocks, BLOCK, 0, stream>>>(a);
        publish_inputs<<<128, BLOCK, 0, stream>>>(a);
        publish_done<<<1, 1, 0, stream>>>(a);
    }
    CUDA_CHECK(cudaGetLastError());
    if (a.is_staged) {
        fork_upload(a.mailbox, a.is_followed, stream);
    }
}

// True when the answer to the step is there, false when there is nothing to wait for or waiting has failed. One thread of a block.
static __device__ bool join_wait(const ostinato_mailbox & mailbox, const bool is_counted, const bool is_decode) {
    ostinato_mailbox_state * state = mailbox.state;
    if (state->n_cold == 0 || state->failed) {
        return false;
    }
    const uint32_t sequence = state->sequence;
    const uint64_t begin    = now_ns();
    uint64_t now = begin;
    if (is_counted) {
        state->joined_ns = begin;
    }
    while (load_volatile(&mailbox.request->answer) != sequence) {
        now = now_ns();
        if (now - begin > mailbox.timeout_ns || load_volatile(&mailbox.request->failed)) {
            state->failed = 1;
            store_volatile(&mailbox.request->failed, 1);
            __threadfence_system();
            return false;
        }
    }
    __threadfence_system(); // what the host wrote before its answer is read after it
    if (is_counted) {
        state->waited_ns        += now - begin;
        state->decode_waited_ns += is_decode ? now - begin : 0;
    }
    return true;
}

static __global__ void join_waiting(const ostinato_mailbox mailbox, const bool is_decode) {
    join_wait(mailbox, true, is_decode);
}

// is_waiting: every block waits for itself; else join_waiting did before.
static __global__ void join_add(
        const ostinato_mailbox mailbox, const float * gpu, float * dst, const int64_t n, const bool is_waiting, const bool is_decode) {
    __shared__ bool has_answer;
    if (threadIdx.x == 0) {
        has_answer = is_waiting ? join_wait(mailbox, blockIdx.x == 0, is_decode) : mailbox.state->n_cold > 0 && !mailbox.state->failed;
    }
    __syncthreads();
    const bool is_added = has_answer;
    for (int64_t i = (int64_t) blockIdx.x*blockDim.x + threadIdx.x; i < n; i += (int64_t) gridDim.x*blockDim.x) {
        dst[i] = is_added ? gpu[i] + __ldcv(mailbox.out + i) : gpu[i];
    }
}

// Of a sparse step, behind join_waiting: a block has a token at a time, whose row it reads over the link where there is one.
static __global__ void join_tokens(const ostinato_mailbox mailbox, const float * gpu, float * dst, const int n_tokens, const int n_out) {
    const ostinato_mailbox_state * state = mailbox.state;
    const bool has_answer   = state->n_cold > 0 && !state->failed;
    const uint32_t sequence = state->sequence;
    for (int token = blockIdx.x; token < n_tokens; token += gridDim.x) {
        const bool is_added = has_answer && load_volatile(mailbox.answered + token) == sequence; // one read for a warp
        for (int64_t i = (int64_t) token*n_out + threadIdx.x; i < (int64_t) (token + 1)*n_out; i += blockDim.x) {
            dst[i] = is_added ? gpu[i] + __ldcv(mailbox.out + i) : gpu[i];
        }
    }
}

static void join(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * gpu = dst->src[0]; // [n_embd, n_tokens]
    const ostinato_mailbox & mailbox = *ostinato_mailbox_of(dst);
    const int64_t n = ggml_nelements(gpu);
    GGML_ASSERT(n <= mailbox.max_outputs);
    if (n == 0) {
        return;
    }
    const bool is_decode = gpu->ne[1] == 1;
    cudaStream_t stream  = ctx.stream();
    if (gpu->ne[1] >= OSTINATO_SPARSE_TOKENS) {
        join_waiting<<<1, 1, 0, stream>>>(mailbox, is_decode);
        join_tokens<<<(int) std::min<int64_t>(gpu->ne[1], 1024), BLOCK, 0, stream>>>(
            mailbox, (const float *) gpu->data, (float *) dst->data, (int) gpu->ne[1], (int) gpu->ne[0]);
    } else if (n <= SMALL_INPUTS/8) {
        join_add<<<(n + 1023)/1024, 1024, 0, stream>>>(mailbox, (const float *) gpu->data, (float *) dst->data, n, true, is_decode);
    } else {
        join_waiting<<<1, 1, 0, stream>>>(mailbox, is_decode);
        join_add<<<(int) std::min<int64_t>((n + BLOCK - 1)/BLOCK, 1024), BLOCK, 0, stream>>>(
            mailbox, (const float *) gpu->data, (float *) dst->data, n, false, is_decode);
    }
    CUDA_CHECK(cudaGetLastError());
}

static __global__ void note_hot(ostinato_mailbox_state * state) {
    state->hot_ns = now_ns();
}

static __global__ void stage_routes(
        const ostinato_mailbox mailbox, const int32_t * ids, int32_t * staged_ids, const int n_experts, const int k, const int n_routes,
        const int64_t stride_id, const int64_t stride_token) {
    const int route = blockIdx.x*blockDim.x + threadIdx.x;
    if (route >= n_routes) {
        return;
    }
    const int32_t id = ids[(route / k)*stride_token + (route % k)*stride_id];
    const bool is_cold = mailbox.state->n_cold > 0 && !mailbox.state->failed && id >= 0 && id < n_experts;
    const int32_t slot = is_cold ? mailbox.staged_slots[id] : -1;
    staged_ids[route] = slot >= 0 ? slot : OSTINATO_SKIPPED_SLOT;
}

static void stage(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * ids = dst->src[0]; // [k, n_tokens]
    const ostinato_mailbox & mailbox = *ostinato_mailbox_of(dst);
    const int n_experts = dst->src[2]->ne[0];
    const int k         = ids->ne[0];
    const int n_routes  = ids->ne[0]*ids->ne[1];
    if (n_routes == 0) {
        return;
    }
    cudaStream_t stream = ctx.stream();
    note_hot<<<1, 1, 0, stream>>>(mailbox.state);
    CUDA_CHECK(cudaStreamWaitEvent(stream, (cudaEvent_t) mailbox.joined, 0));
    stage_routes<<<(n_routes + BLOCK - 1)/BLOCK, BLOCK, 0, stream>>>(
        mailbox, (const int32_t *) ids->data, (int32_t *) dst->data, n_experts, k, n_routes, ids->nb[0]/sizeof(int32_t), ids->nb[1]/sizeof(int32_t));
    CUDA_CHECK(cudaGetLastError());
}

static __global__ void mask_weights(const float * weights, const int32_t * ids, float * dst, const int n) {
    const int i = blockIdx.x*blockDim.x + threadIdx.x;
    if (i < n) {
        dst[i] = ids[i] == OSTINATO_SKIPPED_SLOT ? 0.0f : weights[i];
    }
}

static void mask(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const int n = ggml_nelements(dst);
    if (n == 0) {
        return;
    }
    mask_weights<<<(n + BLOCK - 1)/BLOCK, BLOCK, 0, ctx.stream()>>>(
        (const float *) dst->src[0]->data, (const int32_t *) dst->src[1]->data, (float *) dst->data, n);
    CUDA_CHECK(cudaGetLastError());
}

bool ostinato_cuda_supports_op(const ggml_tensor * op) {
    switch (ostinato_op_of(op)) {
        case OSTINATO_OP_MASK:    return true;
        case OSTINATO_OP_PUBLISH: return !op->src[2] || ostinato_mailbox_of(op);
        case OSTINATO_OP_STAGE:
        case OSTINATO_OP_JOIN:    return ostinato_mailbox_of(op);
        case OSTINATO_OP_NONE:    break;
    }
    return false;
}

bool ostinato_cuda_compute_forward(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    switch (ostinato_op_of(dst)) {
        case OSTINATO_OP_PUBLISH:
            publish(ctx, dst);
            return true;
        case OSTINATO_OP_STAGE:
            stage(ctx, dst);
            return true;
        case OSTINATO_OP_MASK:
            mask(ctx, dst);
            return true;
        case OSTINATO_OP_JOIN:
            join(ctx, dst);
            return true;
        case OSTINATO_OP_NONE:
            break;
    }
    return false;
}

static constexpr int TOKENS_APART = 9; // passes of so many tokens and more share a CUDA graph

static const ggml_tensor * first_publish(const ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; ++i) {
        if (ostinato_op_of(graph->nodes[i]) == OSTINATO_OP_PUBLISH && graph->nodes[i]->src[2]) {
            return graph->nodes[i];
        }
    }
    return nullptr;
}

// An address within the first node, which is nobody else's, for so many tokens and this memory of the mailbox: captured arguments are frozen.
const void * ostinato_graph_key(const ggml_cgraph * graph) {
    static_assert(sizeof(ggml_tensor) >= 256, "keys lie within a node");
    const ggml_tensor * publish = first_publish(graph);
    if (!publish) {
        return nullptr;
    }
    const int64_t n_tokens = std::min<int64_t>(publish->src[0]->ne[1], TOKENS_APART);
    return (const char *) graph->nodes[0] + 1 + ostinato_mailbox_of(publish)->generation % 16*16 + n_tokens;
}

// A graph that uploads is not captured: what it copies ahead, the next graph waits for.
void ostinato_begin_graph(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, const void * key) {
#ifdef USE_CUDA_GRAPH
    if (!first_publish(graph)) {
        return;
    }
    ctx.last_graph_eviction_sweep = std::numeric_limits<int64_t>::max(); // never again: there is one graph for each number of tokens
    const auto found = ctx.cuda_graphs.find(key);
    if (found == ctx.cuda_graphs.end()) {
        return;
    }
    bool is_uploading = false;
    for (int i = 0; i < graph->n_nodes && !is_uploading; ++i) {
        const ggml_tensor * node = graph->nodes[i];
        is_uploading = ostinato_op_of(node) == OSTINATO_OP_PUBLISH && node->src[2] && node->op_params[OSTINATO_PARAM_SHARE] <= OSTINATO_STAGED;
    }
    if (is_uploading) { // without the properties of the last one it counts as another graph, which is not captured at once
        found->second->uid = 0;
        found->second->node_props.clear();
    }
#else
    GGML_UNUSED(ctx);
    GGML_UNUSED(graph);
    GGML_UNUSED(key);
#endif
}
