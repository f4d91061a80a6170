// The registry of models that Ostinato serves in this process, and what each of them has: counters and, with a residency set, the expert
// pool. Entered by the thread that loads or frees a model, by every thread that builds a graph, and by callers of the C interface.

#pragma once

#include "cpu-branch.h"
#include "expert-pool.h"
#include "residency.h"
#include "route-counts.h"

#include <memory>
#include <string>
#include <vector>

struct llama_model;
struct llama_layer;

// One MoE layer of a registered model. Its address is stable: graph nodes keep it.
struct ostinato_layer {
    int32_t il;        // the model's layer index
    int32_t n_experts;
    int32_t k;
    ggml_backend_dev_t device;
    ostinato_expert_ffn ffn; // the layer's experts where the loader put them

    ostinato_expert_ffn cold;           // what the CPU branch computes: written once, by the first graph that is built with a residency set
    bool is_described = false;          // whether it was
    const char * stock_reason = nullptr; // why a graph kept the stock nodes in spite of a residency set

    ggml_tensor * counts = nullptr;
    const ostinato_expert_ffn * slots = nullptr; // in the pool; nullptr without a residency set
    ggml_tensor * index_table = nullptr;
    int32_t zero_slot = 0;
};

// What Ostinato keeps for one model. What residency concerns changes under the registry's lock: see ostinato_view_residency.
struct ostinato_model {
    std::string reason; // why routes are not counted, "" when they are
    std::vector<std::unique_ptr<ostinato_layer>> layers; // in the order of the counts
    std::unique_ptr<ostinato_route_counts> counts;       // nullptr when routes are not counted

    std::string fingerprint; // as configured when the model was loaded, "" where it is not known
    std::unique_ptr<ostinato_expert_pool> pool;          // nullptr without a residency set
    std::shared_ptr<const ostinato_residency> residency; // nullptr without one
    std::string refusal;     // the last reason why a residency set was refused, "" where none was
};

// The entry of a registered model, or nullptr. Valid until the model is freed.
std::shared_ptr<ostinato_model> ostinato_find_model(const llama_model * model);

// The layer that the weight `experts` (up, or merged gate and up) belongs to, or nullptr.
ostinato_layer * ostinato_find_layer(const ggml_tensor * experts);

// Count the routes of models loaded from now on.
void ostinato_register_models(bool enabled);

// What is asked of models loaded from now on.
struct ostinato_model_config {
    std::string fingerprint;
    std::string residency_file;
};

void ostinato_configure_models(ostinato_model_config config);

// Why the set does not fit the model, or "". Throws std::bad_alloc only.
std::string ostinato_fit_residency(const ostinato_model & model, const ostinato_residency & residency);

// Makes exactly the experts of the set hot. No context of the model may exist yet: graphs that were reserved without the two branches would
// be too small for them. Returns "" or why it was refused, which the model then remembers; nothing else has changed.
std::string ostinato_apply_residency(ostinato_model & model, std::shared_ptr<const ostinato_residency> residency);

// The same with a file.
std::string ostinato_apply_residency_file(ostinato_model & model, const std::string & path);

// What a model runs with at this moment.
struct ostinato_residency_view {
    std::shared_ptr<const ostinato_residency> residency; // nullptr without one
    size_t pool_bytes = 0;
    std::string refusal;
};

ostinato_residency_view ostinato_view_residency(const ostinato_model & model);
