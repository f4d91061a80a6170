// Implementation of speed-kinds.h.

#include "speed-kinds.h"

#include <algorithm>

static constexpr const char * WEIGHT_NAMES[] = { "gate", "up", "gate_up", "down" };
static_assert(std::size(WEIGHT_NAMES) == std::size(ostinato_record_weights), "every weight of a record has a name");

ostinato_weight_types ostinato_types_of(const ostinato_expert_ffn & ffn) {
    ostinato_weight_types types;
    for (size_t w = 0; w < types.size(); ++w) {
        const ggml_tensor * weight = ffn.*ostinato_record_weights[w].member;
        types[w] = weight ? weight->type : GGML_TYPE_COUNT;
    }
    return types;
}

std::string ostinato_type_names(const ostinato_weight_types & types) {
    std::string names;
    for (size_t w = 0; w < types.size(); ++w) {
        if (types[w] != GGML_TYPE_COUNT) {
            names += std::string(names.empty() ? "" : ", ") + WEIGHT_NAMES[w] + " " + ggml_type_name(types[w]);
        }
    }
    return names;
}

std::vector<ostinato_speed_kind> ostinato_speed_kinds(const std::vector<const ostinato_expert_ffn *> & layers) {
    const std::vector<size_t> kind_of = ostinato_record_kinds(layers);
    std::vector<ostinato_speed_kind> kinds;
    for (size_t i = 0; i < layers.size(); ++i) {
        const ostinato_expert_ffn & ffn = *layers[i];
        if (kind_of[i] == kinds.size()) {
            ostinato_speed_kind & kind = kinds.emplace_back();
            kind.types        = ostinato_types_of(ffn);
            kind.expert_bytes = (int64_t) ostinato_expert_bytes(ffn);
        }
        ostinato_speed_kind & kind = kinds[kind_of[i]];
        kind.bytes += ffn.down->ne[2]*kind.expert_bytes;
        kind.layers.push_back(i);
    }
    return kinds;
}

size_t ostinato_main_kind(const std::vector<ostinato_speed_kind> & kinds) {
    return std::max_element(kinds.begin(), kinds.end(), [](const ostinato_speed_kind & a, const ostinato_speed_kind & b) {
        return a.bytes < b.bytes;
    }) - kinds.begin();
}

static size_t n_alike(const ostinato_weight_types & a, const ostinato_weight_types & b) {
    size_t n = 0;
    for (size_t w = 0; w < a.size(); ++w) {
        n += a[w] == b[w] && a[w] != GGML_TYPE_COUNT;
    }
    return n;
}

ostinato_measuring_plan ostinato_plan_measuring(const std::vector<ostinato_kind_facts> & kinds) {
    ostinato_measuring_plan plan;
    for (size_t k = 0; k < kinds.size(); ++k) {
        if (kinds[k].is_measurable) {
            plan.order.push_back(k);
        }
    }
    std::stable_sort(plan.order.begin(), plan.order.end(), [&](size_t a, size_t b) { return kinds[a].cold_bytes > kinds[b].cold_bytes; });
    plan.order.resize(std::min(plan.order.size(), OSTINATO_MAX_MEASURED_KINDS));
    for (size_t k = 0; k < kinds.size(); ++k) {
        const bool is_measured = std::find(plan.order.begin(), plan.order.end(), k) != plan.order.end();
        const auto nearest = std::max_element(plan.order.begin(), plan.order.end(), [&](size_t a, size_t b) {
            return n_alike(kinds[a].types, kinds[k].types) < n_alike(kinds[b].types, kinds[k].types);
        });
        plan.measured.push_back(is_measured ? (int32_t) k : nearest == plan.order.end() ? -1 : (int32_t) *nearest);
    }
    return plan;
}
