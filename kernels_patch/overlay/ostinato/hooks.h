// Every function that a patch in ../../patches calls inside the llama library (those of ggml-cuda are in ops-cuda.h, that of the server in
// server-routes.h).
//
//   function                     called from                                               inert when
//   ostinato_model_loaded        llama_model_load, after all tensors are in place           nothing is counted or configured
//   ostinato_model_freed         ~llama_model, first                                        the model was never registered
//   ostinato_context_ready       llama_init_from_model, when a context has all its memory   the model has no placement
//   ostinato_graph_nodes         llama_context::graph_max_nodes, added to it                the model was never registered
//   ostinato_check_answers       llama_context::synchronize, when the devices are done      the model has no placement
//   ostinato_pass                llama_context::process_ubatch, around it                   the model has no placement
//   ostinato_publish_layer       build_moe_ffn, after the router's nodes are in the graph   the layer was never registered
//   ostinato_join_layer          build_moe_ffn, before its output is named                  the layer has no placement
//
// A hook is one call; all logic is on this side. None of them throws.

#pragma once

#include "llama-graph.h"

#include <memory>

struct llama_model;
struct ostinato_model;

// Registers the MoE layers of a model and allocates what counts their routes. Called once per model by the loading thread.
void ostinato_model_loaded(const llama_model & model);

// Frees what ostinato_model_loaded allocated. No context of the model may be computing.
void ostinato_model_freed(const llama_model & model);

// Takes what memory the GPUs have left for the model's expert pools, when its first context is made.
void ostinato_context_ready(const llama_model & model);

// Nodes that a graph of the model has beyond the stock ones, at most.
uint32_t ostinato_graph_nodes(const llama_model & model);

// Around the submission of one pass: experts do not move meanwhile, and the CPU branch is awake.
class ostinato_pass {
public:
    ostinato_pass(const llama_model & model, const void * context, int64_t n_tokens);
    ~ostinato_pass();

    ostinato_pass(const ostinato_pass &) = delete;
    ostinato_pass & operator=(const ostinato_pass &) = delete;

    bool has_changed = false; // experts have moved since the context's last pass: its graph is void

private:
    std::shared_ptr<ostinato_model> entry;
};

// Passes have ended. One whose results are void, since the CPU branch did not answer in time, ends the process before they are read.
void ostinato_check_answers(const llama_model & model);

// The variables of build_moe_ffn that name its expert tensors and the ids that address them.
struct ostinato_moe_variables {
    ggml_tensor *& ids; // [k, n_tokens]
    ggml_tensor *& up;
    ggml_tensor *& up_b;
    ggml_tensor *& up_s;
    ggml_tensor *& gate;
    ggml_tensor *& gate_b;
    ggml_tensor *& gate_s;
    ggml_tensor *& down;
    ggml_tensor *& down_b;
    ggml_tensor *& down_s;
    ggml_tensor *& gate_up;
    ggml_tensor *& gate_up_b;
};

struct ostinato_layer;

// What ostinato_join_layer needs to know of the layer that was published.
struct ostinato_published {
    const ostinato_layer * layer = nullptr; // nullptr: stock nodes, nothing to join
    ggml_tensor * ids     = nullptr; // of experts, [k, n_tokens]: the last layer may compute fewer tokens than the pass has
    ggml_tensor * handoff = nullptr;
    ggml_tensor * x       = nullptr; // [n_embd, n_tokens]
    ggml_tensor * weights = nullptr; // [1, k, n_tokens]
};

// Counts the layer's routes. With a residency set, also points the variables at the expert pool: the stock nodes that follow are then
// the GPU branch.
ostinato_published ostinato_publish_layer(
        const llm_graph_context & graph, int il, llm_ffn_op_type type_op, ggml_tensor * x, ggml_tensor * weights, ostinato_moe_variables vars);

// `gpu` [n_embd, n_tokens] plus the layer's cold routes, or `gpu` itself.
ggml_tensor * ostinato_join_layer(const llm_graph_context & graph, ggml_tensor * gpu, const ostinato_published & published);
