// Registry of engine.h and the hooks of the model's lifetime.

#include "engine.h"
#include "hooks.h"

#include "llama-impl.h"
#include "llama-model.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace {

struct registry {
    std::shared_mutex mutex;
    std::atomic<bool> enabled { false };
    std::unordered_map<const llama_model *, std::shared_ptr<ostinato_model>> models;
    std::unordered_map<const ggml_tensor *, ostinato_layer *> layers; // by up or merged gate and up weight
};

registry & get_registry() {
    static registry instance;
    return instance;
}

const ggml_tensor * key_of(const llama_layer & layer) {
    return layer.ffn_gate_up_exps ? layer.ffn_gate_up_exps : layer.ffn_up_exps;
}

ostinato_expert_ffn ffn_of(const llama_layer & layer) {
    ostinato_expert_ffn ffn;
    ffn.gate_up = layer.ffn_gate_up_exps;
    ffn.gate    = ffn.gate_up ? nullptr : layer.ffn_gate_exps;
    ffn.up      = ffn.gate_up ? nullptr : layer.ffn_up_exps;
    ffn.down    = layer.ffn_down_exps;

    ffn.gate_up_b = layer.ffn_gate_up_exps_b;
    ffn.gate_b    = layer.ffn_gate_exps_b;
    ffn.up_b      = layer.ffn_up_exps_b;
    ffn.down_b    = layer.ffn_down_exps_b;

    ffn.gate_s = layer.ffn_gate_exps_s;
    ffn.up_s   = layer.ffn_up_exps_s;
    ffn.down_s = layer.ffn_down_exps_s;
    return ffn;
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

ostinato_layer * ostinato_find_layer(const ggml_tensor * experts) {
    registry & reg = get_registry();
    std::shared_lock<std::shared_mutex> lock(reg.mutex);
    const auto it = reg.layers.find(experts);
    return it == reg.layers.end() ? nullptr : it->second;
}

void ostinato_register_models(bool enabled) {
    get_registry().enabled.store(enabled);
}

void ostinato_model_loaded(const llama_model & model) {
    registry & reg = get_registry();
    // a model without memory is a measuring pass that never computes
    if (!reg.enabled.load() || model.hparams.no_alloc) {
        return;
    }

    auto entry = std::make_shared<ostinato_model>();
    std::vector<ostinato_counted_layer> counted;
    for (size_t il = 0; il < model.layers.size(); ++il) {
        const ggml_tensor * experts = key_of(model.layers[il]);
        if (!experts) {
            continue;
        }
        auto layer = std::make_unique<ostinato_layer>();
        layer->il        = (int32_t) il;
        layer->n_experts = (int32_t) experts->ne[2];
        layer->k         = (int32_t) model.hparams.n_expert_used((uint32_t) il);
        layer->device    = model.dev_layer((int) il);
        layer->ffn       = ffn_of(model.layers[il]);
        if (!device_runs_our_operators(layer->device)) {
            entry->reason = std::string("layer ") + std::to_string(il) + " is on " + ggml_backend_dev_name(layer->device) +
                ", and Ostinato's operators run on the CPU and on CUDA only";
            break;
        }
        counted.push_back({ layer->il, layer->n_experts, ggml_backend_dev_buffer_type(layer->device) });
        entry->layers.push_back(std::move(layer));
    }
    if (entry->layers.empty() && entry->reason.empty()) {
        entry->reason = "the model has no experts";
    }

    if (entry->reason.empty()) {
        try {
            entry->counts = std::make_unique<ostinato_route_counts>(std::move(counted));
        } catch (const std::exception & err) {
            entry->reason = std::string("no memory for the route counters: ") + err.what();
        }
    }
    if (entry->reason.empty()) {
        LLAMA_LOG_INFO("%s: counting routes of %d layers of up to %d experts\n", __func__, entry->counts->n_layers(), entry->counts->n_experts());
    } else {
        LLAMA_LOG_WARN("%s: routes are not counted: %s\n", __func__, entry->reason.c_str());
        entry->layers.clear();
    }

    std::unique_lock<std::shared_mutex> lock(reg.mutex);
    for (size_t i = 0; i < entry->layers.size(); ++i) {
        ostinato_layer * layer = entry->layers[i].get();
        layer->counts = entry->counts->counters((int32_t) i);
        reg.layers[key_of(model.layers[layer->il])] = layer;
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
        reg.layers.erase(key_of(layer));
    }
}

std::string ostinato_apply_residency(ostinato_model & model, const uint8_t * hot) {
    std::vector<ostinato_pool_layer> sources;
    const size_t stride = model.counts->n_experts();
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const ostinato_layer & layer = *model.layers[i];
        const std::string where = "layer " + std::to_string(layer.il);
        if (ggml_backend_dev_type(layer.device) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            return where + " is on " + ggml_backend_dev_name(layer.device) + ": this build computes two branches on the CPU only";
        }
        const char * reason = nullptr;
        if (!ostinato_cold_supported(layer.ffn, &reason)) {
            return where + ": " + reason;
        }
        ostinato_pool_layer source = { &layer.ffn, {}, layer.n_experts, layer.k };
        for (int32_t e = 0; e < layer.n_experts; ++e) {
            if (hot[i*stride + e]) {
                source.hot.push_back(e);
            }
        }
        sources.push_back(std::move(source));
    }

    std::unique_ptr<ostinato_expert_pool> pool;
    try {
        pool = std::make_unique<ostinato_expert_pool>(sources, ggml_backend_dev_buffer_type(model.layers[0]->device));
    } catch (const std::exception & err) {
        return std::string("no memory for the expert pool: ") + err.what();
    }

    std::unique_lock<std::shared_mutex> lock(get_registry().mutex);
    for (size_t i = 0; i < model.layers.size(); ++i) {
        model.layers[i]->slots       = &pool->slots(i);
        model.layers[i]->index_table = pool->index_table(i);
        model.layers[i]->zero_slot   = pool->zero_slot(i);
    }
    model.pool = std::move(pool);
    return "";
}
