// The C interface of ostinato.h.

#include "ostinato.h"

#include "engine.h"

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

enum ostinato_status ostinato_set_residency(const struct llama_model * model, const uint8_t * hot, size_t n) {
    std::shared_ptr<ostinato_model> entry;
    ostinato_status status = find(model, entry);
    if (status == OSTINATO_OK) {
        status = expect_size("experts", (size_t) entry->counts->n_layers()*entry->counts->n_experts(), n);
    }
    if (status == OSTINATO_OK) {
        const std::string reason = ostinato_apply_residency(*entry, hot);
        if (!reason.empty()) {
            status = fail(OSTINATO_REFUSED, reason);
        }
    }
    return status;
}
