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
    ostinato_model_config config;
    std::unordered_map<const llama_model *, std::shared_ptr<ostinato_model>> models;
    std::unordered_map<const ggml_tensor *, ostinato_layer *> layers; // by up or merged gate and up weight
    const llama_model * configured_model = nullptr; // the one that took the configured residency file
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

std::string refuse(const std::string & field, const std::string & expected, const std::string & found) {
    return field + ": expected " + expected + ", found " + found;
}

// Divides the model's experts between two branches, none of them hot. Returns why that cannot be, or "".
std::string place(ostinato_model & model, const ostinato_limits & limits) {
    if (!model.counts) {
        return model.reason;
    }
    std::vector<ostinato_placed_layer> layers;
    for (const auto & layer : model.layers) {
        layers.push_back({ layer->il, layer->n_experts, layer->k, layer->device, &layer->ffn, &layer->cold, layer->counts });
    }
    std::unique_ptr<ostinato_placement> placement;
    try {
        placement = std::make_unique<ostinato_placement>(std::move(layers), limits);
    } catch (const std::bad_alloc &) {
        return "no memory for the expert pool";
    } catch (const std::exception & err) {
        return err.what();
    }
    std::unique_lock<std::shared_mutex> lock(get_registry().mutex);
    for (size_t i = 0; i < model.layers.size(); ++i) {
        model.layers[i]->placement = placement.get();
        model.layers[i]->index     = i;
    }
    model.placement = std::move(placement);
    return "";
}

// What is hot until somebody says what should be: everything, of which what fits is taken, the same share of every layer.
std::shared_ptr<const ostinato_residency> evenly_spread(const ostinato_model & model) {
    auto all = std::make_shared<ostinato_residency>();
    all->fingerprint = model.fingerprint;
    all->provenance  = "{\"source\": \"spread evenly\"}";
    all->n_experts   = model.counts->n_experts();
    for (const auto & layer : model.layers) {
        all->layers.push_back(layer->il);
        std::vector<int32_t> & experts = all->hot.emplace_back();
        const bool is_on_gpu = ggml_backend_dev_type(layer->device) != GGML_BACKEND_DEVICE_TYPE_CPU;
        for (int32_t e = 0; is_on_gpu && e < layer->n_experts; ++e) {
            experts.push_back(e);
        }
    }
    return all;
}

// With the pass lock held, and a set that fits.
ostinato_applied move_experts(ostinato_model & model, std::shared_ptr<const ostinato_residency> residency) {
    const int64_t begin = ggml_time_us();
    ostinato_applied applied;
    model.placement->synchronize();
    model.epoch++; // also when moving fails half way
    applied.change = model.placement->apply(residency->hot);
    applied.ms     = (ggml_time_us() - begin)/1000.0;
    LLAMA_LOG_INFO("%s: residency generation %llu: %zu experts hot, %zu loaded, %zu dropped in %.1f ms, pools of %.2f MiB, %.2f MiB of cold experts page-locked\n",
        __func__, (unsigned long long) residency->generation, residency->n_hot(), applied.change.n_loaded, applied.change.n_dropped, applied.ms,
        model.placement->pool_bytes()/1024.0/1024.0, model.placement->pinned_bytes()/1024.0/1024.0);
    if (const std::string refusal = model.placement->pin_refusal(); !refusal.empty()) {
        LLAMA_LOG_WARN("%s: not all cold experts are page-locked, the CPU branch alone computes the others: %s\n", __func__, refusal.c_str());
    }

    std::unique_lock<std::shared_mutex> lock(get_registry().mutex);
    model.residency = std::move(residency);
    model.wanted    = nullptr;
    model.refusal.clear();
    return applied;
}

std::string remember_refusal(ostinato_model & model, std::string reason) {
    if (!reason.empty()) {
        std::unique_lock<std::shared_mutex> lock(get_registry().mutex);
        model.refusal = reason;
    }
    return reason;
}

// A process loads the model it serves before a draft model, but only the layout tells them apart for certain: the configured file goes to
// the first model that it fits, and to no other while that one is loaded.
void apply_configured_file(const llama_model & model, ostinato_model & entry) {
    registry & reg = get_registry();
    std::string path;
    {
        std::shared_lock<std::shared_mutex> lock(reg.mutex);
        if (reg.config.residency_file.empty()) {
            return;
        }
        if (reg.configured_model) {
            LLAMA_LOG_WARN("%s: the residency file belongs to a model loaded before this one, which keeps the stock nodes\n", __func__);
            return;
        }
        path = reg.config.residency_file;
    }
    const std::string reason = ostinato_apply_residency_file(entry, path);
    if (!reason.empty()) {
        LLAMA_LOG_WARN("%s: residency file refused, the model keeps the %s: %s\n", __func__,
            entry.placement ? "experts where they are" : "stock nodes", reason.c_str());
        return;
    }
    std::unique_lock<std::shared_mutex> lock(reg.mutex);
    reg.configured_model = &model;
}

// A draft model has no part in it: the first model with experts takes the request.
void place_as_configured(ostinato_model & entry) {
    registry & reg = get_registry();
    ostinato_limits limits;
    {
        std::shared_lock<std::shared_mutex> lock(reg.mutex);
        if (!reg.config.two_branches || reg.configured_model || !entry.counts) {
            return;
        }
        limits = reg.config.limits;
    }
    const std::string reason = place(entry, limits);
    if (!reason.empty()) {
        LLAMA_LOG_WARN("%s: the model keeps the stock nodes: %s\n", __func__, reason.c_str());
        remember_refusal(entry, reason);
    }
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
    if (model.hparams.no_alloc) {
        return;
    }

    auto entry = std::make_shared<ostinato_model>();
    {
        std::shared_lock<std::shared_mutex> lock(reg.mutex);
        if (!reg.enabled.load() && reg.config.residency_file.empty() && !reg.config.two_branches) {
            return;
        }
        entry->fingerprint = reg.config.fingerprint;
    }
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

    {
        std::unique_lock<std::shared_mutex> lock(reg.mutex);
        for (size_t i = 0; i < entry->layers.size(); ++i) {
            ostinato_layer * layer = entry->layers[i].get();
            layer->counts = entry->counts->counters((int32_t) i);
            reg.layers[key_of(model.layers[layer->il])] = layer;
        }
        reg.models[&model] = entry;
    }
    place_as_configured(*entry);
    apply_configured_file(model, *entry);
}

void ostinato_context_ready(const llama_model & model) {
    const auto entry = ostinato_find_model(&model);
    if (!entry || !entry->placement) {
        return;
    }
    std::scoped_lock lock(entry->pass_mutex, entry->move_mutex);
    if (!entry->placement->needs_memory()) {
        return;
    }
    entry->placement->claim_memory();
    entry->epoch++;
    std::shared_ptr<const ostinato_residency> wanted = entry->wanted;
    const bool is_asked_for = wanted != nullptr;
    if (!is_asked_for) {
        wanted = evenly_spread(*entry);
    }
    const std::string reason = entry->placement->fit(wanted->hot);
    if (!reason.empty()) {
        auto smaller = std::make_shared<ostinato_residency>(*wanted);
        smaller->hot = entry->placement->shrink(wanted->hot, is_asked_for);
        if (is_asked_for) {
            LLAMA_LOG_WARN("%s: %zu of %zu hot experts fit the memory that is left: %s\n", __func__, smaller->n_hot(), wanted->n_hot(), reason.c_str());
        }
        wanted = smaller;
    }
    try {
        move_experts(*entry, wanted);
    } catch (const std::exception & err) {
        GGML_ABORT("the experts could not be moved to the GPU: %s", err.what());
    }
    if (is_asked_for) {
        remember_refusal(*entry, reason);
    }
}

ostinato_pass::ostinato_pass(const llama_model & model, const void * context, int64_t n_tokens) {
    const auto found = ostinato_find_model(&model);
    if (!found || !found->placement) {
        return;
    }
    entry = found;
    entry->pass_mutex.lock();
    entry->placement->begin_pass(n_tokens);
    uint64_t & epoch = entry->epoch_of[context];
    has_changed = epoch != entry->epoch;
    epoch       = entry->epoch;
}

void ostinato_check_answers(const llama_model & model) {
    const auto entry = ostinato_find_model(&model);
    if (entry && entry->placement) {
        entry->placement->end_passes();
    }
}

ostinato_pass::~ostinato_pass() {
    if (entry) {
        entry->pass_mutex.unlock();
    }
}

void ostinato_model_freed(const llama_model & model) {
    registry & reg = get_registry();
    std::unique_lock<std::shared_mutex> lock(reg.mutex);
    if (reg.models.erase(&model) == 0) {
        return;
    }
    if (reg.configured_model == &model) {
        reg.configured_model = nullptr;
    }
    for (const llama_layer & layer : model.layers) {
        reg.layers.erase(key_of(layer));
    }
}

void ostinato_configure_models(ostinato_model_config config) {
    registry & reg = get_registry();
    std::unique_lock<std::shared_mutex> lock(reg.mutex);
    reg.config = std::move(config);
}

std::string ostinato_fit_residency(const ostinato_model & model, const ostinato_residency & residency) {
    if (!model.counts) {
        return model.reason;
    }
    const bool is_file = residency.generation > 0; // a set made in memory is its maker's word
    if (is_file && model.fingerprint.empty()) {
        return refuse("fingerprint", "the model's own to compare with", "none: configure it before the model is loaded");
    }
    if (is_file && residency.fingerprint != model.fingerprint) {
        return refuse("fingerprint", model.fingerprint, residency.fingerprint);
    }
    if (residency.layers.size() != model.layers.size()) {
        return refuse("layers", std::to_string(model.layers.size()), std::to_string(residency.layers.size()));
    }
    if (residency.n_experts != model.counts->n_experts()) {
        return refuse("experts", std::to_string(model.counts->n_experts()), std::to_string(residency.n_experts));
    }
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const ostinato_layer & layer = *model.layers[i];
        if (residency.layers[i] != layer.il) {
            return refuse("layer entry " + std::to_string(i), "layer " + std::to_string(layer.il), "layer " + std::to_string(residency.layers[i]));
        }
        if (!residency.hot[i].empty() && residency.hot[i].back() >= layer.n_experts) {
            return refuse("layer " + std::to_string(layer.il), "experts below " + std::to_string(layer.n_experts),
                std::to_string(residency.hot[i].back()));
        }
    }
    return "";
}

std::string ostinato_apply_residency(
        ostinato_model & model, std::shared_ptr<const ostinato_residency> residency, ostinato_applied * applied) {
    std::scoped_lock moving(model.pass_mutex, model.move_mutex);
    std::string reason = ostinato_fit_residency(model, *residency);
    if (reason.empty() && !model.placement) {
        ostinato_limits limits;
        {
            std::shared_lock<std::shared_mutex> lock(get_registry().mutex);
            limits = get_registry().config.limits;
        }
        reason = place(model, limits);
    }
    if (reason.empty() && model.placement->needs_memory()) {
        std::unique_lock<std::shared_mutex> lock(get_registry().mutex);
        model.wanted = std::move(residency);
        return "";
    }
    if (reason.empty()) {
        reason = model.placement->fit(residency->hot);
    }
    if (reason.empty()) {
        try {
            const ostinato_applied done = move_experts(model, std::move(residency));
            if (applied) {
                *applied = done;
            }
        } catch (const std::bad_alloc &) {
            reason = "no memory for the expert pool";
        }
    }
    return remember_refusal(model, std::move(reason));
}

std::string ostinato_apply_residency_file(ostinato_model & model, const std::string & path, ostinato_applied * applied) {
    try {
        auto residency = std::make_shared<ostinato_residency>();
        std::string reason = ostinato_read_residency_file(path, *residency);
        if (!reason.empty()) {
            return remember_refusal(model, std::move(reason));
        }
        reason = ostinato_apply_residency(model, std::move(residency), applied);
        return reason.empty() ? "" : remember_refusal(model, path + ": " + reason);
    } catch (const std::exception & err) {
        return remember_refusal(model, path + ": " + err.what());
    }
}

size_t ostinato_borrow(ostinato_model & model, const ostinato_expert_pool::hot_sets & experts) {
    std::scoped_lock moving(model.pass_mutex, model.move_mutex);
    if (!model.placement) {
        return 0;
    }
    model.placement->synchronize();
    return model.placement->borrow(experts);
}

ostinato_expert_pool::hot_sets ostinato_borrowed(ostinato_model & model) {
    std::scoped_lock moving(model.pass_mutex, model.move_mutex);
    return model.placement ? model.placement->borrowed() : ostinato_expert_pool::hot_sets(model.layers.size());
}

ostinato_residency_view ostinato_view_residency(ostinato_model & model) {
    std::lock_guard<std::mutex> move(model.move_mutex); // nothing moves meanwhile
    std::shared_lock<std::shared_mutex> lock(get_registry().mutex);
    ostinato_residency_view view;
    view.residency = model.residency;
    view.refusal   = model.refusal;
    if (model.placement) {
        view.has_placement = true;
        view.pool_bytes    = model.placement->pool_bytes();
        view.pinned_bytes  = model.placement->pinned_bytes();
        view.pin_refusal   = model.placement->pin_refusal();
        view.devices       = model.placement->view();
    }
    return view;
}
