// The C interface of ostinato.h.

#include "ostinato.h"

#include "engine.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <string>

static thread_local std::string last_error;

static ostinato_status fail(ostinato_status status, std::string message) {
    last_error = std::move(message);
    return status;
}

// Finds a model whose routes are counted, or says why there is none.
static ostinato_status find(const llama_model * model, std::shared_ptr<ostinato_model> & entry) {
    entry = ostinato_find_model(model);
    if (!entry) {
        return fail(OSTINATO_UNKNOWN_MODEL, "the model was loaded while route counting was off");
    }
    if (!entry->counts) {
        return fail(OSTINATO_NOT_COUNTING, entry->reason);
    }
    return OSTINATO_OK;
}

static ostinato_status expect_size(const char * what, size_t expected, size_t found) {
    if (expected == found) {
        return OSTINATO_OK;
    }
    return fail(OSTINATO_INVALID_ARGUMENT, "expected " + std::to_string(expected) + " " + what + ", found " + std::to_string(found));
}

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
    ostinato_register_models(enabled);
}

enum ostinato_status ostinato_get_route_shape(const struct llama_model * model, struct ostinato_route_shape * shape) {
    std::shared_ptr<ostinato_model> entry;
    const ostinato_status status = find(model, entry);
    if (status == OSTINATO_OK) {
        *shape = { entry->counts->n_layers(), entry->counts->n_experts() };
    }
    return status;
}

enum ostinato_status ostinato_get_route_layers(const struct llama_model * model, int32_t * il, size_t n) {
    std::shared_ptr<ostinato_model> entry;
    ostinato_status status = find(model, entry);
    if (status == OSTINATO_OK) {
        status = expect_size("layers", entry->layers.size(), n);
    }
    if (status == OSTINATO_OK) {
        for (size_t i = 0; i < n; ++i) {
            il[i] = entry->layers[i]->il;
        }
    }
    return status;
}

enum ostinato_status ostinato_get_route_counts(
        const struct llama_model * model, enum ostinato_phase phase, uint64_t * counts, size_t n) {
    std::shared_ptr<ostinato_model> entry;
    ostinato_status status = find(model, entry);
    if (status == OSTINATO_OK && (phase < 0 || phase >= OSTINATO_PHASE_COUNT)) {
        status = fail(OSTINATO_INVALID_ARGUMENT, "unknown phase " + std::to_string((int) phase));
    }
    if (status == OSTINATO_OK) {
        status = expect_size("counts", (size_t) entry->counts->n_layers()*entry->counts->n_experts(), n);
    }
    if (status == OSTINATO_OK) {
        entry->counts->read(phase, counts);
    }
    return status;
}

static std::string text_of(const char * text) {
    return text ? text : "";
}

// Nothing may be thrown at a caller in C: a residency file of some MiB is the largest thing that is allocated here.
template <typename F>
static ostinato_status guarded(F && f) {
    try {
        return f();
    } catch (const std::exception & err) {
        return fail(OSTINATO_NO_MEMORY, err.what());
    }
}

static ostinato_status refuse_or_ok(const std::string & reason) {
    return reason.empty() ? OSTINATO_OK : fail(OSTINATO_REFUSED, reason);
}

enum ostinato_status ostinato_configure(const struct ostinato_config * config) {
    return guarded([&] {
        ostinato_model_config wanted = { text_of(config->fingerprint), text_of(config->residency_file), config->two_branches, {} };
        const auto set = [](auto & limit, uint64_t value, uint64_t unit = 1) {
            if (value > 0) {
                limit = value*unit;
            }
        };
        set(wanted.limits.pool_bytes,   config->pool_bytes);
        set(wanted.limits.margin_bytes, config->margin_bytes);
        set(wanted.limits.pin_bytes,    config->pin_bytes);
        set(wanted.limits.timeout_ns,   config->timeout_ms, 1'000'000);
        set(wanted.limits.upload.choice_tokens, config->upload_tokens);
        if (config->upload_tokens == UINT32_MAX) {
            wanted.limits.upload.choice_tokens = std::numeric_limits<int64_t>::max();
        }
        set(wanted.limits.upload.all_tokens,    config->upload_all_tokens);
        wanted.limits.upload.prefetch_us = config->prefetch_us;
        wanted.limits.staging_experts = std::max(config->staging_experts, 0);
        wanted.limits.copy_blocks  = std::max(config->copy_blocks, 0);
        wanted.limits.n_threads    = config->n_threads;
        wanted.limits.link_percent = std::min(config->link_percent, 100);
        wanted.limits.borrow_percent = config->borrow_percent == 0 ? 100 : std::clamp(config->borrow_percent, 0, 100);
        if (!wanted.fingerprint.empty() && !ostinato_is_fingerprint(wanted.fingerprint)) {
            return fail(OSTINATO_INVALID_ARGUMENT, "fingerprint: expected 64 lowercase hex digits, found '" + wanted.fingerprint + "'");
        }
        if (!wanted.residency_file.empty() && wanted.fingerprint.empty()) {
            return fail(OSTINATO_INVALID_ARGUMENT, "fingerprint: expected the model's, which its residency file is compared with, found none");
        }
        ostinato_configure_models(std::move(wanted));
        return OSTINATO_OK;
    });
}

enum ostinato_status ostinato_parse_residency(const void * bytes, size_t size, struct ostinato_residency ** residency) {
    return guarded([&] {
        auto parsed = std::make_unique<ostinato_residency>();
        const ostinato_status status = refuse_or_ok(ostinato_parse_residency_bytes(bytes, size, *parsed));
        if (status == OSTINATO_OK) {
            *residency = parsed.release();
        }
        return status;
    });
}

enum ostinato_status ostinato_read_residency(const char * path, struct ostinato_residency ** residency) {
    return guarded([&] {
        auto parsed = std::make_unique<ostinato_residency>();
        const ostinato_status status = refuse_or_ok(ostinato_read_residency_file(text_of(path), *parsed));
        if (status == OSTINATO_OK) {
            *residency = parsed.release();
        }
        return status;
    });
}

void ostinato_free_residency(struct ostinato_residency * residency) {
    delete residency;
}

struct ostinato_residency_facts ostinato_describe_residency(const struct ostinato_residency * residency) {
    return {
        residency->fingerprint.c_str(), residency->provenance.c_str(), residency->generation, residency->created_at_s,
        residency->n_hot(), (int32_t) residency->layers.size(), residency->n_experts,
    };
}

enum ostinato_status ostinato_get_residency_layers(const struct ostinato_residency * residency, int32_t * il, size_t n) {
    const ostinato_status status = expect_size("layers", residency->layers.size(), n);
    if (status == OSTINATO_OK) {
        std::copy(residency->layers.begin(), residency->layers.end(), il);
    }
    return status;
}

enum ostinato_status ostinato_get_residency_hot(const struct ostinato_residency * residency, uint8_t * hot, size_t n) {
    const ostinato_status status = expect_size("experts", residency->layers.size()*residency->n_experts, n);
    if (status == OSTINATO_OK) {
        std::fill_n(hot, n, 0);
        for (const auto & experts : residency->hot) {
            for (const int32_t e : experts) {
                hot[e] = 1;
            }
            hot += residency->n_experts;
        }
    }
    return status;
}

bool ostinato_equal_residency(const struct ostinato_residency * a, const struct ostinato_residency * b) {
    return *a == *b;
}

enum ostinato_status ostinato_check_residency(const struct llama_model * model, const struct ostinato_residency * residency) {
    return guarded([&] {
        std::shared_ptr<ostinato_model> entry;
        const ostinato_status status = find(model, entry);
        return status == OSTINATO_OK ? refuse_or_ok(ostinato_fit_residency(*entry, *residency)) : status;
    });
}

enum ostinato_status ostinato_load_residency(const struct llama_model * model, const char * path) {
    return guarded([&] {
        std::shared_ptr<ostinato_model> entry;
        const ostinato_status status = find(model, entry);
        return status == OSTINATO_OK ? refuse_or_ok(ostinato_apply_residency_file(*entry, text_of(path))) : status;
    });
}

// By layer, the experts whose flag is set in flags[n_layers * n_experts].
static std::vector<std::vector<int32_t>> experts_of(const ostinato_model & model, const uint8_t * flags) {
    std::vector<std::vector<int32_t>> sets;
    for (const auto & layer : model.layers) {
        std::vector<int32_t> & experts = sets.emplace_back();
        for (int32_t e = 0; e < layer->n_experts; ++e) {
            if (flags[e]) {
                experts.push_back(e);
            }
        }
        flags += model.counts->n_experts();
    }
    return sets;
}

// A model whose routes are counted, and as many flags as it has experts.
static ostinato_status find_with_flags(const llama_model * model, size_t n, std::shared_ptr<ostinato_model> & entry) {
    const ostinato_status status = find(model, entry);
    return status == OSTINATO_OK ? expect_size("experts", (size_t) entry->counts->n_layers()*entry->counts->n_experts(), n) : status;
}

enum ostinato_status ostinato_set_residency(const struct llama_model * model, const uint8_t * hot, size_t n) {
    return guarded([&] {
        std::shared_ptr<ostinato_model> entry;
        const ostinato_status status = find_with_flags(model, n, entry);
        if (status != OSTINATO_OK) {
            return status;
        }
        auto residency = std::make_shared<ostinato_residency>();
        residency->fingerprint = entry->fingerprint;
        residency->provenance  = "{}";
        residency->n_experts   = entry->counts->n_experts();
        residency->hot         = experts_of(*entry, hot);
        for (const auto & layer : entry->layers) {
            residency->layers.push_back(layer->il);
        }
        return refuse_or_ok(ostinato_apply_residency(*entry, std::move(residency)));
    });
}

enum ostinato_status ostinato_set_borrowed(const struct llama_model * model, const uint8_t * borrowing, size_t n, size_t * n_lent) {
    return guarded([&] {
        std::shared_ptr<ostinato_model> entry;
        const ostinato_status status = find_with_flags(model, n, entry);
        if (status == OSTINATO_OK) {
            *n_lent = ostinato_borrow(*entry, experts_of(*entry, borrowing));
        }
        return status;
    });
}

enum ostinato_status ostinato_get_borrowed(const struct llama_model * model, uint8_t * borrowing, size_t n) {
    return guarded([&] {
        std::shared_ptr<ostinato_model> entry;
        const ostinato_status status = find_with_flags(model, n, entry);
        if (status == OSTINATO_OK) {
            const auto borrowed = ostinato_borrowed(*entry);
            std::fill_n(borrowing, n, (uint8_t) 0);
            for (size_t i = 0; i < borrowed.size(); ++i) {
                for (const int32_t expert : borrowed[i]) {
                    borrowing[i*(n/borrowed.size()) + expert] = 1;
                }
            }
        }
        return status;
    });
}

enum ostinato_status ostinato_get_residency(const struct llama_model * model, struct ostinato_residency ** residency) {
    return guarded([&] {
        const auto entry = ostinato_find_model(model);
        const auto current = entry ? ostinato_view_residency(*entry).residency : nullptr;
        if (!current) {
            return fail(OSTINATO_NO_RESIDENCY, "the model has no residency set");
        }
        *residency = new ostinato_residency(*current);
        return OSTINATO_OK;
    });
}

enum ostinato_status ostinato_get_residency_status(const struct llama_model * model, struct ostinato_residency_status * status) {
    return guarded([&] {
        *status = { OSTINATO_RESIDENCY_NONE, 0, 0, 0 };
        const auto entry = ostinato_find_model(model);
        if (!entry) {
            return fail(OSTINATO_OK, "");
        }
        const ostinato_residency_view view = ostinato_view_residency(*entry);
        if (view.residency) {
            *status = { OSTINATO_RESIDENCY_APPLIED, view.residency->generation, view.residency->n_hot(), view.pool_bytes };
        } else if (!view.refusal.empty()) {
            status->state = OSTINATO_RESIDENCY_REFUSED;
        }
        return fail(OSTINATO_OK, view.refusal);
    });
}

enum ostinato_status ostinato_get_device_status(
        const struct llama_model * model, struct ostinato_device_status * devices, size_t n, size_t * n_devices) {
    return guarded([&] {
        *n_devices = 0;
        const auto entry = ostinato_find_model(model);
        if (!entry) {
            return fail(OSTINATO_UNKNOWN_MODEL, "the model is not registered");
        }
        const auto views = ostinato_view_residency(*entry).devices;
        *n_devices = views.size();
        for (size_t i = 0; i < std::min(n, views.size()); ++i) {
            const ostinato_memory_view & v = views[i];
            const auto speed = [&](double seconds_per_byte) { return v.speeds.is_default ? 0.0 : 1.0/seconds_per_byte; };
            devices[i] = {
                {}, v.is_gpu, v.pool_capacity, v.pool_used, v.published, v.cold_routes, v.waited_ns, v.cpu_routes, v.cpu_busy_ns,
                v.uploaded, v.uploaded_bytes, v.staging_bytes, speed(v.speeds.cpu_row), speed(v.speeds.cpu_rows), speed(v.speeds.link), v.linked,
                v.link_columns, (int32_t) v.hidden_columns, v.borrowing.bytes, v.borrowing.n_uploaded, v.graphs.captures, v.graphs.replays,
                v.graphs.direct_passes, v.prefetched, v.foreseen, v.decode_waited_ns, v.decode_busy_ns, v.pool_room,
                v.link_columns > 0 ? speed(v.speeds.in_place) : 0.0, v.pool_unlearned,
            };
            v.device.copy(devices[i].name, sizeof(devices[i].name) - 1);
        }
        return OSTINATO_OK;
    });
}

enum ostinato_status ostinato_get_decode_times(
        const struct llama_model * model, struct ostinato_decode_times * layers, size_t n, size_t * n_layers) {
    static_assert(ostinato_step_times::MAX_COLD == OSTINATO_TIMED_COLD_ROUTES, "a layer's times must fit");
    return guarded([&] {
        *n_layers = 0;
        const auto entry = ostinato_find_model(model);
        if (!entry) {
            return fail(OSTINATO_UNKNOWN_MODEL, "the model is not registered");
        }
        for (const ostinato_memory_view & device : ostinato_view_residency(*entry).devices) {
            for (const ostinato_layer_times & times : device.decode) {
                if (*n_layers < n) {
                    ostinato_decode_times & out = layers[*n_layers];
                    out = { times.il, times.expert_bytes, {}, {} };
                    std::copy(times.steps.begin(), times.steps.end(), out.steps);
                    std::copy(times.ns.begin(), times.ns.end(), out.ns);
                }
                (*n_layers)++;
            }
        }
        return OSTINATO_OK;
    });
}

enum ostinato_status ostinato_get_upload_costs(
        const struct llama_model * model, size_t device, struct ostinato_learned_costs * costs, size_t n, size_t * n_costs) {
    return guarded([&] {
        *n_costs = 0;
        const auto entry = ostinato_find_model(model);
        if (!entry) {
            return fail(OSTINATO_UNKNOWN_MODEL, "the model is not registered");
        }
        const auto views = ostinato_view_residency(*entry).devices;
        if (device >= views.size()) {
            return fail(OSTINATO_INVALID_ARGUMENT,
                "device: expected less than " + std::to_string(views.size()) + ", found " + std::to_string(device));
        }
        for (const ostinato_fixed_costs & fixed : views[device].uploads.costs) {
            if (*n_costs < n) {
                costs[*n_costs] = { fixed.n_tokens, fixed.costs.link > 0.0 ? 1.0/fixed.costs.link : 0.0, fixed.costs.hot, fixed.costs.chain,
                    fixed.costs.cpu, fixed.costs.cpu_alone };
            }
            (*n_costs)++;
        }
        return OSTINATO_OK;
    });
}
