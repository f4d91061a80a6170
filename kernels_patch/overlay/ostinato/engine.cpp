// Registry, hooks into the llama library, and the C interface of ostinato.h.

#include "ostinato.h"

#include "engine.h"
#include "hooks.h"
#include "ops.h"

#include "llama-cparams.h"
#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace {

struct layer_entry {
    std::shared_ptr<ostinato_model> model;
    int32_t index; // among the counted layers
};

struct registry {
    std::shared_mutex mutex;
    std::unordered_map<const llama_model *, std::shared_ptr<ostinato_model>> models;
    std::unordered_map<const ggml_tensor *, layer_entry> layers; // by up or merged gate and up weight
};

registry & get_registry() {
    static registry instance;
    return instance;
}

std::atomic<bool> count_routes { false };

thread_local std::string last_error;

ostinato_status fail(ostinato_status status, std::string message) {
    last_error = std::move(message);
    return status;
}

const ggml_tensor * expert_weight(const llama_layer & layer) {
    return layer.ffn_gate_up_exps ? layer.ffn_gate_up_exps : layer.ffn_up_exps;
}

// Our operators run on the CPU and on CUDA; elsewhere the scheduler would move them, and their inputs, to the CPU at every layer.
bool device_runs_our_operators(ggml_backend_dev_t dev) {
    if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        return true;
    }
    return strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev)), "CUDA") == 0;
}

} // namespace

std::shared_ptr<ostinato_model> ostinato_find_model(const llama_model * model) {
    registry & reg = get_registry();
    std::shared_lock<std::shared_mutex> lock(reg.mutex);
    const auto it = reg.models.find(model);
    return it == reg.models.end() ? nullptr : it->second;
}

bool ostinato_counts_routes() {
    return count_routes.load();
}

//
// hooks
//

void ostinato_model_loaded(const llama_model & model) {
    // a model without memory is a measuring pass that never computes
    if (!count_routes.load() || model.hparams.no_alloc) {
        return;
    }

    auto entry = std::make_shared<ostinato_model>();
    std::vector<ostinato_counted_layer> counted;
    std::vector<const ggml_tensor *>    weights;
    for (size_t il = 0; il < model.layers.size(); ++il) {
        const ggml_tensor * weight = expert_weight(model.layers[il]);
        if (!weight) {
            continue;
        }
        ggml_backend_dev_t dev = model.dev_layer((int) il);
        if (!device_runs_our_operators(dev)) {
            entry->reason = std::string("layer ") + std::to_string(il) + " is on " + ggml_backend_dev_name(dev) +
                ", and Ostinato's operators run on the CPU and on CUDA only";
            break;
        }
        counted.push_back({ (int32_t) il, (int32_t) weight->ne[2], ggml_backend_dev_buffer_type(dev) });
        weights.push_back(weight);
    }
    if (counted.empty() && entry->reason.empty()) {
        entry->reason = "the model has no experts";
    }

    if (entry->reason.empty()) {
        try {
            entry->counts = std::make_unique<ostinato_route_counts>(std::move(counted));
        } catch (const std::exception & err) {
            entry->reason = std::string("no memory for the route counters: ") + err.what();
        }
    }
    if (entry->counts) {
        LLAMA_LOG_INFO("%s: counting routes of %d layers of up to %d experts\n", __func__, entry->counts->n_layers(), entry->counts->n_experts());
    } else {
        LLAMA_LOG_WARN("%s: routes are not counted: %s\n", __func__, entry->reason.c_str());
    }

    registry & reg = get_registry();
    std::unique_lock<std::shared_mutex> lock(reg.mutex);
    if (entry->counts) {
        for (size_t i = 0; i < weights.size(); ++i) {
            reg.layers[weights[i]] = { entry, (int32_t) i };
        }
    }
    reg.models[&model] = std::move(entry);
}

void ostinato_model_freed(const llama_model & model) {
    registry & reg = get_registry();
    std::unique_lock<std::shared_mutex> lock(reg.mutex);
    if (reg.models.erase(&model) == 0) {
        return;
    }
    for (const llama_layer & layer : model.layers) {
        reg.layers.erase(expert_weight(layer));
    }
}

ggml_tensor * ostinato_build_experts(const llm_graph_context & graph, const ggml_tensor * experts, ggml_tensor * ids) {
    registry & reg = get_registry();
    std::shared_lock<std::shared_mutex> lock(reg.mutex);
    const auto it = reg.layers.find(experts);
    // warming up selects every expert, which says nothing about routing
    if (it == reg.layers.end() || graph.cparams.warmup) {
        return nullptr;
    }
    const bool is_decode = !graph.cparams.embeddings && graph.n_outputs == graph.n_tokens;

    ggml_tensor * node = ostinato_publish(
        graph.ctx0, ids, it->second.model->counts->counters(it->second.index),
        is_decode ? OSTINATO_PHASE_DECODE : OSTINATO_PHASE_PREFILL);
    ggml_build_forward_expand(graph.gf, node);
    return nullptr;
}

//
// C interface
//

int32_t ostinato_abi_version(void) {
    return OSTINATO_ABI_VERSION;
}

const char * ostinato_llama_commit(void) {
    return OSTINATO_LLAMA_COMMIT;
}

size_t ostinato_sizeof(enum ostinato_struct s) {
    switch (s) {
        case OSTINATO_STRUCT_LLAMA_MODEL_PARAMS:   return sizeof(llama_model_params);
        case OSTINATO_STRUCT_LLAMA_CONTEXT_PARAMS: return sizeof(llama_context_params);
        case OSTINATO_STRUCT_LLAMA_BATCH:          return sizeof(llama_batch);
        case OSTINATO_STRUCT_COUNT:                break;
    }
    return 0;
}

const char * ostinato_last_error(void) {
    return last_error.c_str();
}

void ostinato_set_count_routes(bool enabled) {
    count_routes.store(enabled);
}

// Finds the counters of a model, or says why there are none.
static ostinato_status find_counts(const llama_model * model, std::shared_ptr<ostinato_model> & entry) {
    entry = ostinato_find_model(model);
    if (!entry) {
        return fail(OSTINATO_UNKNOWN_MODEL, "the model was loaded while route counting was off");
    }
    if (!entry->counts) {
        return fail(OSTINATO_NOT_COUNTING, entry->reason);
    }
    return OSTINATO_OK;
}

enum ostinato_status ostinato_get_route_shape(const struct llama_model * model, struct ostinato_route_shape * shape) {
    std::shared_ptr<ostinato_model> entry;
    const ostinato_status status = find_counts(model, entry);
    if (status == OSTINATO_OK) {
        *shape = { entry->counts->n_layers(), entry->counts->n_experts() };
    }
    return status;
}

enum ostinato_status ostinato_get_route_layers(const struct llama_model * model, int32_t * il, size_t n) {
    std::shared_ptr<ostinato_model> entry;
    const ostinato_status status = find_counts(model, entry);
    if (status != OSTINATO_OK) {
        return status;
    }
    if (n != (size_t) entry->counts->n_layers()) {
        return fail(OSTINATO_INVALID_ARGUMENT, "expected room for " + std::to_string(entry->counts->n_layers()) + " layers, found " + std::to_string(n));
    }
    for (size_t i = 0; i < n; ++i) {
        il[i] = entry->counts->il((int32_t) i);
    }
    return OSTINATO_OK;
}

enum ostinato_status ostinato_get_route_counts(
        const struct llama_model * model, enum ostinato_phase phase, uint64_t * counts, size_t n) {
    std::shared_ptr<ostinato_model> entry;
    const ostinato_status status = find_counts(model, entry);
    if (status != OSTINATO_OK) {
        return status;
    }
    if (phase < 0 || phase >= OSTINATO_PHASE_COUNT) {
        return fail(OSTINATO_INVALID_ARGUMENT, "unknown phase " + std::to_string((int) phase));
    }
    const size_t expected = (size_t) entry->counts->n_layers()*entry->counts->n_experts();
    if (n != expected) {
        return fail(OSTINATO_INVALID_ARGUMENT, "expected room for " + std::to_string(expected) + " counts, found " + std::to_string(n));
    }
    entry->counts->read(phase, counts);
    return OSTINATO_OK;
}
