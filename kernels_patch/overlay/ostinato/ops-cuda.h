// What the hooks in ggml-cuda call. Inert when: no node of the graph is one of Ostinato's operators.

#pragma once

#include "ggml.h"

struct ggml_backend_cuda_context;

// True where `op` is an operator of ops.h that has a CUDA implementation.
bool ostinato_cuda_supports_op(const ggml_tensor * op);

// Launches the operator on the context's stream; never allocates, synchronises or reads device memory on the host, so it can
// be captured in a CUDA graph. False when `dst` is a custom node of somebody else.
bool ostinato_cuda_compute_forward(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// The key of its CUDA graph, nullptr for one without layers that are divided. Passes of one, two, … tokens have graphs of their own, or drafts that are
// checked between single tokens would have each captured anew.
const void * ostinato_graph_key(const ggml_cgraph * graph);

// A pass, or the part of one that lies between two splits, is about to be submitted. The CUDA graphs of its context are kept from then on, however long ago
// they were used: a conversation pauses for longer than ggml keeps a graph. A pass that uploads gets none:
// a prefill is rarely as long as the one before it, and building a graph of its two product chains takes about as long as a short one computes.
void ostinato_begin_graph(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, const void * key);

// A pass was submitted. One without layers that are divided is not counted.
void ostinato_count_pass(const ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, bool is_graph, bool is_captured);

// The table of cuda-functions.h for its name, else nullptr.
void * ostinato_cuda_get_proc_address(const char * name);
