// The registry of models that Ostinato serves in this process, and what each of them has: counters and, where experts are divided between two
// branches, their placement. Entered by the thread that loads or frees a model, by every thread that builds a graph or submits a pass, and
// by callers of the C interface.

#pragma once

#include "cpu-branch.h"
#include "placement.h"
#include "residency.h"
#include "route-counts.h"

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
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
    ostinato_placement * placement = nullptr; // of the model; nullptr: stock nodes
    size_t index = 0;                         // in the model's layers
};

// What Ostinato keeps for one model. What residency concerns changes under the registry's lock: see ostinato_view_residency.
struct ostinato_model {
    std::string reason; // why routes are not counted, "" when they are
    std::vector<std::unique_ptr<ostinato_layer>> layers; // in the order of the counts
    std::unique_ptr<ostinato_route_counts> counts;       // nullptr when routes are not counted

    std::string fingerprint; // as configured when the model was loaded, "" where it is not known
    std::unique_ptr<ostinato_placement> placement;       // nullptr: the layers keep the stock nodes
    std::shared_ptr<const ostinato_residency> residency; // nullptr without one
    std::shared_ptr<const ostinato_residency> wanted;    // to apply when the GPUs' memory is claimed
    std::string refusal;     // the last reason why a residency set was refused, "" where none was

    // Held while a pass is submitted and while experts move. A graph built at another epoch may point at slots that have moved.
    std::mutex pass_mutex;
    std::mutex move_mutex; // while experts move only: who looks at them does not wait for passes
    uint64_t epoch = 0;
    std::unordered_map<const void *, uint64_t> epoch_of; // by context: the epoch of its last graph
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
    bool two_branches = false; // divide experts between two branches also without a residency file
    ostinato_limits limits;
};

void ostinato_configure_models(ostinato_model_config config);

// Why the set does not fit the model, or "". Throws std::bad_alloc only.
std::string ostinato_fit_residency(const ostinato_model & model, const ostinato_residency & residency);

// What applying a set did.
struct ostinato_applied {
    ostinato_expert_pool::change change;
    double ms = 0.0;
};

// Makes exactly the experts of the set hot, between two passes. Where the model's GPU memory is not claimed yet, the set waits for that. A model
// without a placement gets one; no context of it may exist then, since graphs reserved without the two branches would be too small for them.
// Returns "" or why it was refused, which the model then remembers; nothing else has changed.
std::string ostinato_apply_residency(
    ostinato_model & model, std::shared_ptr<const ostinato_residency> residency, ostinato_applied * applied = nullptr);

// The same with a file.
std::string ostinato_apply_residency_file(ostinato_model & model, const std::string & path, ostinato_applied * applied = nullptr);

// Lends staging memory to exactly these cold experts, between two passes. Returns to how many.
size_t ostinato_borrow(ostinato_model & model, const ostinato_expert_pool::hot_sets & experts);

// By layer: what the last pass that used borrowed memory found there.
ostinato_expert_pool::hot_sets ostinato_borrowed(ostinato_model & model);

// What a model runs with at this moment.
struct ostinato_residency_view {
    std::shared_ptr<const ostinato_residency> residency; // nullptr without one
    size_t pool_bytes   = 0;
    size_t pinned_bytes = 0;
    std::string pin_refusal;
    std::string refusal;
    bool has_placement  = false;
    std::vector<ostinato_memory_view> devices;
};

ostinato_residency_view ostinato_view_residency(ostinato_model & model);
