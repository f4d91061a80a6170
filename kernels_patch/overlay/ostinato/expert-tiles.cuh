// llama.cpp's tiled products of quantised experts, launched for the tiles that have rows, and with tiles as wide as an expert's rows are many.
// Included by mmq.cu through its hook line. Inert when: the ids are neither of an operator of ours nor counted by one.
//
// Stock launches as many tiles per expert as all tokens would fill, as wide as they allow (128 columns from 128 tokens on). Of 256 experts with six routes per
// token, an expert has 2 % of the tokens' rows on average: most blocks find nothing to do, and the others multiply columns that nobody reads. Here the
// GPU lists the tiles that have rows. How long the list can be, the host knows: one tile per expert, and one for every full tile of rows.
//
// The work on a tile is stock's own function, over all of K in the same order whatever the tile's width. So the results are stock's, bit for bit, where
// stock gives every block whole tiles. Where it divides K between blocks (few and small experts), PUBLISH's products are left to stock. STAGE's
// never are, but for native FP4 (Blackwell), and types and widths that are not there: there a result would depend on the place that an expert was copied to.

#pragma once

#include "common.cuh"
#include "mmq.cuh"

// Launches the products, or returns false where stock has to. `ids` are those that `args.expert_bounds` was made from.
bool ostinato_multiply_tiles(
        ggml_backend_cuda_context & ctx, const mmq_args & args, const ggml_tensor * ids, ggml_prec prec_src1, cudaStream_t stream);

// How many it launched since the process began; of a replayed CUDA graph, its capture counts.
uint64_t ostinato_tiled_products();
