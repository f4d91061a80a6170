// Implementation of expert-tiles.cuh.

#include "ostinato/expert-tiles.cuh"
#include "ostinato/ops.h"

#include <algorithm>
#include <atomic>
#include <climits>

static std::atomic<uint64_t> n_products { 0 };

uint64_t ostinato_tiled_products() {
    return n_products.load();
}

// A tile's expert and its number among the expert's tiles.
struct expert_tile {
    int32_t expert; // -1: none
    int32_t number;
};

static constexpr int LISTING_THREADS = 256;

// Lists the tiles of experts in order, `n_columns` rows each, and -1 behind them.
static __global__ void list_tiles(const int32_t * __restrict__ expert_bounds, const int n_experts, const int n_columns, expert_tile * __restrict__ tiles, const int n_tiles) {
    __shared__ int sums[LISTING_THREADS];
    int n_before = 0;
    for (int first = 0; first < n_experts; first += LISTING_THREADS) {
        const int expert = first + threadIdx.x;
        const int n = expert < n_experts ? (expert_bounds[expert + 1] - expert_bounds[expert] + n_columns - 1)/n_columns : 0;
        sums[threadIdx.x] = n;
        __syncthreads();
        for (int distance = 1; distance < LISTING_THREADS; distance *= 2) {
            const int other = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
            __syncthreads();
            sums[threadIdx.x] += other;
            __syncthreads();
        }
        const int begin = n_before + sums[threadIdx.x] - n;
        for (int i = 0; i < n; ++i) {
            tiles[begin + i] = { expert, i };
        }
        n_before += sums[LISTING_THREADS - 1];
        __syncthreads(); // everybody has read the sums
    }
    for (int i = n_before + threadIdx.x; i < n_tiles; i += LISTING_THREADS) {
        tiles[i] = { -1, 0 };
    }
}

// One block per tile of `I` weight rows and `J` of an expert's rows, over all of K.
template <ggml_type type, int J, bool fallback, int occupancy>
__launch_bounds__(ggml_cuda_mmq_get_nthreads(type, J, fallback, GGML_PREC_Q8), occupancy)
static __global__ void multiply_tiles(
        const char * __restrict__ x, const int * __restrict__ y, const int32_t * __restrict__ ids_dst, const int32_t * __restrict__ expert_bounds,
        const expert_tile * __restrict__ tiles, float * __restrict__ dst, const int blocks_per_row, const int n_weight_rows, const int stride_row_x,
        const int n_rows, const int stride_col_dst, const int stride_expert_x) {
    if (ggml_cuda_mmq_get_config(type, J, fallback).type == GGML_TYPE_COUNT) { // a width that stock does not have for this GPU is never launched
        NO_DEVICE_CODE;
        return;
    }
    constexpr int I         = ggml_cuda_mmq_get_I(type, J, fallback, GGML_PREC_Q8);
    constexpr int n_threads = ggml_cuda_mmq_get_nthreads(type, J, fallback, GGML_PREC_Q8);

    const expert_tile tile = tiles[blockIdx.y];
    if (tile.expert < 0) {
        return;
    }
    const int first = expert_bounds[tile.expert] + tile.number*J;
    const int last  = expert_bounds[tile.expert + 1] - 1;
    const int it    = blockIdx.x;

    extern __shared__ int ids_dst_shared[]; // before what the tile's function keeps there
    for (int j = threadIdx.y*blockDim.x + threadIdx.x; j < J; j += n_threads) {
        ids_dst_shared[j] = ids_dst[min(first + j, last)];
    }
    __syncthreads();

    mul_mat_q_process_tile<type, J, fallback, false>(
        x, tile.expert*stride_expert_x + it*I*stride_row_x, y + first*(int) (sizeof(block_q8_1_mmq)/sizeof(int)), ids_dst_shared, dst + it*I, nullptr, nullptr,
        stride_row_x, n_rows, stride_col_dst, n_weight_rows - it*I - 1, last - first, 0, blocks_per_row);
}

template <ggml_type type, int J, bool fallback, int occupancy>
static bool launch_tiles(ggml_backend_cuda_context & ctx, const mmq_args & args, cudaStream_t stream) {
    const int device = ggml_cuda_get_device();
    const int cc     = ggml_cuda_info().devices[device].cc;
    const ggml_cuda_mmq_config config = ggml_cuda_mmq_get_config(type, J, fallback, cc);
    const int n_bytes_shared = config.type == GGML_TYPE_COUNT ? INT_MAX : (int) mmq_get_nbytes_shared(config, cc);
    if ((size_t) n_bytes_shared > ggml_cuda_info().devices[device].smpbo) {
        return false;
    }
    const int n_experts = (int) args.nchannels_x;
    const int n_tiles   = std::min<int64_t>(n_experts, args.ncols_y) + args.ncols_y/J;
    ggml_cuda_pool_alloc<expert_tile> tiles(ctx.pool(), n_tiles);
    list_tiles<<<1, LISTING_THREADS, 0, stream>>>(args.expert_bounds, n_experts, J, tiles.get(), n_tiles);
    CUDA_CHECK(cudaGetLastError());

    CUDA_SET_SHARED_MEMORY_LIMIT((multiply_tiles<type, J, fallback, occupancy>), n_bytes_shared);
    const int warp_size = ggml_cuda_info().devices[device].warp_size;
    const dim3 blocks((args.nrows_x + config.I - 1)/config.I, n_tiles, 1);
    const dim3 threads(warp_size, config.nthreads/warp_size, 1);
    multiply_tiles<type, J, fallback, occupancy><<<blocks, threads, n_bytes_shared, stream>>>(
        args.x, args.y, args.ids_dst, args.expert_bounds, tiles.get(), args.dst, args.ncols_x/ggml_cuda_type_traits<type>::qk, args.nrows_x,
        args.stride_row_x, args.ncols_y, args.nrows_dst, args.stride_channel_x);
    CUDA_CHECK(cudaGetLastError());
    ++n_products;
    return true;
}

// True where stock gives every block whole tiles (launch_mul_mat_q and mul_mat_q_switch_J).
template <ggml_type type, bool fallback>
static bool is_stock_whole(const mmq_args & args) {
    const int device   = ggml_cuda_get_device();
    const int cc       = ggml_cuda_info().devices[device].cc;
    const int64_t n_sm = ggml_cuda_info().devices[device].nsm;
    ggml_cuda_mmq_config best = { GGML_TYPE_COUNT, 0, 0, 0, 0, GGML_CUDA_MMQ_SRAM_LAYOUT_Q8_0, 0, false, false };
    int64_t least = INT_MAX;
    for (int J = 8; J <= 128 && least > 1; J += 8) {
        const ggml_cuda_mmq_config config = ggml_cuda_mmq_get_config(type, J, fallback, cc);
        if (config.type == GGML_TYPE_COUNT || mmq_get_nbytes_shared(config, cc) > ggml_cuda_info().devices[device].smpbo) {
            continue;
        }
        const int64_t n = (args.ncols_opt + J - 1)/J;
        if (n < least) {
            best  = config;
            least = n;
        }
    }
    if (best.J == 0 || !best.stream_k) {
        return best.J != 0;
    }
    const int64_t n_tiles = (args.nrows_x + best.I - 1)/best.I*((args.ncols_max + best.J - 1)/best.J)*args.nchannels_y;
    const bool has_block_per_tile = GGML_CUDA_CC_IS_NVIDIA(cc) && 100*n_tiles/(n_sm*((n_tiles + n_sm - 1)/n_sm)) >= 90;
    return has_block_per_tile || n_tiles % n_sm == 0;
}

// Tiles as wide as the mean expert's rows are many, as far as stock has a width; wider ones where experts have many rows, since each tile reads the weights anew.
// Measured on an H200 with DeepSeek-V4-Flash's and Qwen3-30B's shapes: benchmarks/results/README.md, "products of the tiles that have rows".
template <ggml_type type, bool fallback>
static bool multiply(ggml_backend_cuda_context & ctx, const mmq_args & args, bool is_staged, cudaStream_t stream) {
    if (!is_staged && !is_stock_whole<type, fallback>(args)) {
        return false;
    }
    const int64_t rows = std::min(args.ncols_y/args.nchannels_x, args.ncols_max); // cold routes' too
    constexpr int at_64 = type == GGML_TYPE_Q2_K || type == GGML_TYPE_Q6_K ? 1 : 2; // blocks per SM: two have too few registers there
    return rows <= 5   ? launch_tiles<type,   8, fallback, 3>(ctx, args, stream) :
           rows <= 14  ? launch_tiles<type,  16, fallback, 3>(ctx, args, stream) :
           rows <= 30  ? launch_tiles<type,  32, fallback, 2>(ctx, args, stream) :
           rows <= 120 ? launch_tiles<type,  64, fallback, at_64>(ctx, args, stream) :
                         launch_tiles<type, 128, fallback, 1>(ctx, args, stream);
}

template <ggml_type type>
static bool multiply(ggml_backend_cuda_context & ctx, const mmq_args & args, bool is_staged, cudaStream_t stream) {
    return args.nrows_x % 128 == 0 ? multiply<type, false>(ctx, args, is_staged, stream) : multiply<type, true>(ctx, args, is_staged, stream);
}

bool ostinato_multiply_tiles(
        ggml_backend_cuda_context & ctx, const mmq_args & args, const ggml_tensor * ids, ggml_prec prec_src1, cudaStream_t stream) {
    const ostinato_op op = ostinato_op_of(ostinato_maker_of(ids));
    const bool is_staged = op == OSTINATO_OP_STAGE;
    const bool is_ours   = is_staged || op == OSTINATO_OP_PUBLISH || ostinato_is_counted(ids);
    if (!is_ours || prec_src1 == GGML_PREC_Q4 || args.nsamples_y != 1) {
        return false;
    }
    switch (args.type_x) {
        case GGML_TYPE_MXFP4:   return multiply<GGML_TYPE_MXFP4>  (ctx, args, is_staged, stream);
        case GGML_TYPE_Q4_0:    return multiply<GGML_TYPE_Q4_0>   (ctx, args, is_staged, stream);
        case GGML_TYPE_Q4_1:    return multiply<GGML_TYPE_Q4_1>   (ctx, args, is_staged, stream);
        case GGML_TYPE_Q5_0:    return multiply<GGML_TYPE_Q5_0>   (ctx, args, is_staged, stream);
        case GGML_TYPE_Q5_1:    return multiply<GGML_TYPE_Q5_1>   (ctx, args, is_staged, stream);
        case GGML_TYPE_Q8_0:    return multiply<GGML_TYPE_Q8_0>   (ctx, args, is_staged, stream);
        case GGML_TYPE_Q2_K:    return multiply<GGML_TYPE_Q2_K>   (ctx, args, is_staged, stream);
        case GGML_TYPE_Q3_K:    return multiply<GGML_TYPE_Q3_K>   (ctx, args, is_staged, stream);
        case GGML_TYPE_Q4_K:    return multiply<GGML_TYPE_Q4_K>   (ctx, args, is_staged, stream);
        case GGML_TYPE_Q5_K:    return multiply<GGML_TYPE_Q5_K>   (ctx, args, is_staged, stream);
        case GGML_TYPE_Q6_K:    return multiply<GGML_TYPE_Q6_K>   (ctx, args, is_staged, stream);
        case GGML_TYPE_IQ2_XXS: return multiply<GGML_TYPE_IQ2_XXS>(ctx, args, is_staged, stream);
        case GGML_TYPE_IQ2_XS:  return multiply<GGML_TYPE_IQ2_XS> (ctx, args, is_staged, stream);
        case GGML_TYPE_IQ2_S:   return multiply<GGML_TYPE_IQ2_S>  (ctx, args, is_staged, stream);
        case GGML_TYPE_IQ3_XXS: return multiply<GGML_TYPE_IQ3_XXS>(ctx, args, is_staged, stream);
        case GGML_TYPE_IQ3_S:   return multiply<GGML_TYPE_IQ3_S>  (ctx, args, is_staged, stream);
        case GGML_TYPE_IQ4_NL:  return multiply<GGML_TYPE_IQ4_NL> (ctx, args, is_staged, stream);
        case GGML_TYPE_IQ4_XS:  return multiply<GGML_TYPE_IQ4_XS> (ctx, args, is_staged, stream);
        default:                return false;
    }
}
