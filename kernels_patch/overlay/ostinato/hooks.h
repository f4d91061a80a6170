// Every function that a patch in ../../patches calls inside the llama and server libraries (those of ggml-cuda are in ops-cuda.h).
//
//   function                     called from                                               inert when
//   ostinato_model_loaded        llama_model_load, after all tensors are in place           route counting is off
//   ostinato_model_freed         ~llama_model, first                                        the model was never registered
//   ostinato_build_experts       build_moe_ffn, after the router's nodes are in the graph   the layer was never registered
//   ostinato_add_server_routes   llama_server, after the last stock route                   the process is not ostinato-engine
//
// A hook is one call; all logic is on this side. None of them throws.

#pragma once

#include <cstdint>

struct ggml_tensor;
struct llama_model;
struct llm_graph_context;
struct server_context;
struct server_http_context;

// Registers the MoE layers of a model and allocates what counts their routes. Called once per model by the loading thread.
void ostinato_model_loaded(const llama_model & model);

// Frees what ostinato_model_loaded allocated. No context of the model may be computing.
void ostinato_model_freed(const llama_model & model);

// Lets Ostinato build the experts of one MoE layer. `experts` is the up (or merged gate and up) weight by which the layer was
// registered; ids [k, n_tokens] may be strided. Returns the layer's output, or nullptr: then the caller goes on with the stock nodes.
ggml_tensor * ostinato_build_experts(const llm_graph_context & graph, const ggml_tensor * experts, ggml_tensor * ids);

// Adds GET /ostinato/status and /ostinato/routes, and reports loading on standard output.
void ostinato_add_server_routes(server_http_context & http, server_context & server);
