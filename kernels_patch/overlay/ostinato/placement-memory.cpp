// Implementation of placement.h: the GPUs' memory, what of it is lent, and how fast experts are reached.

#include "placement.h"

#include "ostinato.h"

#include "llama-impl.h"

#include <algorithm>
#include <iterator>
#include <new>

using hot_sets = ostinato_expert_pool::hot_sets;

// The copying kernel moves 16 bytes at a time.
static bool is_copied_whole(const ostinato_expert_ffn & ffn) {
    for (const ggml_tensor * weight : { ffn.gate, ffn.up, ffn.gate_up, ffn.down }) {
        if (weight && weight->nb[2] % 16 != 0) {
            return false;
        }
    }
    return true;
}

bool ostinato_placement::needs_memory() const {
    return arena && !is_claimed;
}

void ostinato_placement::claim_memory() {
    for (auto & g : groups) {
        if (!g->is_gpu()) {
            continue;
        }
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        ggml_backend_dev_memory(g->device, &free_bytes, &total_bytes);
        size_t all_hot = 0;
        {
            hot_sets all;
            for (const size_t i : g->layers) {
                all.emplace_back(layers[i].n_experts);
            }
            all_hot = ostinato_expert_pool::bytes_for(g->pool_layers, all, g->memory);
        }
        const size_t available = std::min(free_bytes - std::min(free_bytes, limits.margin_bytes), limits.pool_bytes);
        const size_t least    = g->pool->capacity(); // with nothing hot
        const bool is_all_hot = available >= all_hot;
        size_t least_lent = 0;
        size_t lent = 0;
        if (!is_all_hot && may_stage()) {
            const size_t left   = available - std::min(available, least);
            const size_t wanted = limits.staging_experts > 0 ? lent_for(*g, limits.staging_experts) : 0;
            const size_t most   = lent_for(*g, std::numeric_limits<int32_t>::max());
            least_lent = ostinato_expert_pool::least_lent(g->pool_layers);
            lent = std::clamp(std::max((size_t) (left*limits.staging_share), wanted), least_lent, std::max(least_lent, std::min(left, most)));
        }
        size_t capacity = std::max(least, is_all_hot ? all_hot : available - std::min(available, lent));
        g->pool.reset(); // before the next one: memory may be short
        while (!g->pool) {
            try {
                g->pool = std::make_unique<ostinato_expert_pool>(g->pool_layers, g->memory, capacity, lent);
            } catch (const std::bad_alloc &) { // less than was free a moment ago
                GGML_ASSERT((capacity > least || lent > least_lent) && "the memory that the pool had before is gone");
                lent     = capacity > least ? lent : std::max(least_lent, lent/8*7);
                capacity = std::max(least, capacity/8*7);
            }
        }
        connect_staging(*g);
        add_borrower(*g);
        LLAMA_LOG_INFO("%s: %s: expert pool of %.2f MiB, %.2f MiB were free\n", __func__, ggml_backend_dev_name(g->device),
            g->pool->capacity()/1024.0/1024.0, free_bytes/1024.0/1024.0);
    }
    is_claimed = true;
}

bool ostinato_placement::may_stage() const {
    return limits.upload.choice_tokens < std::numeric_limits<int64_t>::max();
}

// Room for so many experts of any layer, but at most for all of them: one layer computes at a time.
size_t ostinato_placement::lent_for(const group & g, int32_t n_experts) const {
    size_t most = 0;
    for (const size_t i : g.layers) {
        most = std::max(most, ostinato_record(*layers[i].ffn).stride*(std::min(n_experts, layers[i].n_experts) + 1));
    }
    return most + ostinato_expert_pool::least_lent(g.pool_layers);
}

// Experts of layers whose products skip routes, since STAGE gives ids to skip, are staged in the pool's lent places.
void ostinato_placement::connect_staging(group & g) {
    g.client.uploads.forget();
    g.staging.resize(g.layers.size());
    for (size_t i = 0; i < g.layers.size(); ++i) {
        const ostinato_expert_ffn * places = g.is_skipping[i] && is_copied_whole(*layers[g.layers[i]].ffn) ? g.pool->staging(i) : nullptr;
        g.staging[i] = places ? *places : ostinato_expert_ffn {};
        if (places && !g.biases.empty()) {
            g.staging[i].gate_b    = g.biases[i].gate_b;
            g.staging[i].up_b      = g.biases[i].up_b;
            g.staging[i].gate_up_b = g.biases[i].gate_up_b;
            g.staging[i].down_b    = g.biases[i].down_b;
        }
        g.client.layers[i].staging = places ? &g.staging[i] : nullptr;
    }
}

// All biases of the layers, for the products over lent places and the link's, whose ids are not those of the pool's slots.
void ostinato_placement::add_biases(group & g) {
    constexpr const ggml_tensor * ostinato_expert_ffn::* MEMBERS[] = {
        &ostinato_expert_ffn::gate_b, &ostinato_expert_ffn::up_b, &ostinato_expert_ffn::gate_up_b, &ostinato_expert_ffn::down_b,
    };
    std::vector<std::pair<ggml_tensor *, const ggml_tensor *>> copies;
    g.biases_ctx.reset(ggml_init({ std::size(MEMBERS)*g.layers.size()*ggml_tensor_overhead(), nullptr, true }));
    std::vector<ostinato_expert_ffn> biases(g.layers.size());
    for (size_t i = 0; i < g.layers.size(); ++i) {
        const ostinato_expert_ffn & ffn = *layers[g.layers[i]].ffn;
        for (const auto member : MEMBERS) {
            if (const ggml_tensor * source = may_stage() ? ffn.*member : nullptr) {
                ggml_tensor * t = ggml_dup_tensor(g.biases_ctx.get(), source);
                ggml_format_name(t, "%s (all)", source->name);
                biases[i].*member = t;
                copies.emplace_back(t, source);
            }
        }
    }
    if (copies.empty()) {
        return;
    }
    g.biases_buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(g.biases_ctx.get(), g.memory.buft));
    if (!g.biases_buffer) {
        throw std::bad_alloc();
    }
    ggml_backend_buffer_set_usage(g.biases_buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (const auto & [to, from] : copies) {
        ggml_backend_tensor_set(to, from->data, 0, ggml_nbytes(from));
    }
    g.biases = std::move(biases);
}

void ostinato_placement::add_borrower(group & g) {
    if (limits.borrow_percent == 0 || g.pool->lent() == 0) {
        return;
    }
    std::vector<ostinato_borrowing_layer> borrowing;
    for (const size_t i : g.layers) {
        const ggml_tensor * counts = layers[i].counts;
        borrowing.push_back({ layers[i].n_experts, (const char *) counts->data + OSTINATO_PHASE_DECODE*counts->nb[1], host[i].data() });
    }
    g.borrower = std::make_unique<ostinato_borrower>(g.memory, std::move(borrowing), limits.borrow_percent);
    g.borrower->reset(*g.pool);
}

size_t ostinato_placement::borrow(const hot_sets & wanted) {
    size_t n = 0;
    for (const auto & g : groups) {
        n += g->borrower ? g->borrower->set(part_of(*g, wanted)) : 0;
    }
    return n;
}

hot_sets ostinato_placement::borrowed() const {
    hot_sets found(layers.size());
    for (const auto & g : groups) {
        const hot_sets part = g->borrower ? g->borrower->borrowed() : hot_sets(g->layers.size());
        for (size_t i = 0; i < part.size(); ++i) {
            found[g->layers[i]] = part[i];
        }
    }
    return found;
}

const ostinato_expert_ffn * ostinato_placement::staging(size_t layer, int64_t n_tokens) const {
    const group & g = *groups[group_of[layer]];
    return g.is_gpu() ? ostinato_staging_of(g.client.layers[index_in_group[layer]], limits.upload, n_tokens) : nullptr;
}

// Of the first layer of the kind that has a staging buffer and enough experts in page-locked memory.
ostinato_placement::measured_experts ostinato_placement::experts_to_measure(const group & g, const ostinato_speed_kind & kind) const {
    constexpr size_t FEW  = 8;
    constexpr size_t MANY = 128; // more than the processor's cache holds
    for (const size_t i : kind.layers) {
        const ostinato_cold_layer & layer = g.client.layers[i];
        measured_experts with = { i, {} };
        for (int32_t e = 0; e < layer.n_experts && with.experts.size() < MANY; ++e) {
            if (layer.pinned[e]) {
                with.experts.push_back(e);
            }
        }
        if (with.experts.size() >= FEW && layer.staging) {
            return with;
        }
    }
    return {};
}

// Once: every layer counts from then on with what was found for its kind, or for the one that stands for it.
void ostinato_placement::measure_speeds(group & g, const hot_sets & hot) {
    std::vector<measured_experts> with;
    std::vector<ostinato_kind_facts> facts;
    for (const ostinato_speed_kind & kind : g.kinds) {
        size_t n_cold = 0;
        for (const size_t i : kind.layers) {
            n_cold += layers[g.layers[i]].n_experts - hot[g.layers[i]].size();
        }
        with.push_back(experts_to_measure(g, kind));
        facts.push_back({ kind.types, n_cold*kind.expert_bytes, !with.back().experts.empty() });
    }
    const ostinato_measuring_plan plan = ostinato_plan_measuring(facts);
    for (const size_t k : plan.order) {
        measure_kind(g, g.kinds[k], with[k]);
    }
    for (size_t k = 0; k < g.kinds.size(); ++k) {
        ostinato_speed_kind & kind = g.kinds[k];
        kind.measured = plan.measured[k];
        if (kind.measured >= 0) {
            kind.speeds       = g.kinds[kind.measured].speeds;
            kind.link_percent = g.kinds[kind.measured].link_percent;
        }
        for (const size_t i : kind.layers) {
            g.client.layers[i].speeds = kind.speeds;
        }
    }
}

void ostinato_placement::measure_kind(group & g, ostinato_speed_kind & kind, const measured_experts & with) {
    const std::vector<int32_t> & experts = with.experts;
    const ostinato_cold_layer & layer = g.client.layers[with.layer];
    // the graph has not told yet what is computed with the experts; for their speed, what the loader found will do
    ostinato_cold_layer plain = layer;
    plain.ffn = layers[g.layers[with.layer]].ffn;
    ostinato_cold_workers & team = ostinato_cold_team(limits.n_threads);
    ostinato_speeds & speeds = kind.speeds;
    speeds.cpu_row  = team.measure(plain, experts, 1, experts.size());
    speeds.cpu_few  = team.measure(plain, experts, 4, experts.size());
    speeds.cpu_rows = team.measure(plain, experts, 16, experts.size());

    const size_t bytes = plain.ffn->down->nb[2];
    const auto upload_all = [&] { // seconds per byte
        const int64_t begin_us = ggml_time_us();
        for (const int32_t e : experts) {
            g.memory.copy(layer.staging->down->data, layer.host[e].down, bytes);
        }
        return (ggml_time_us() - begin_us)*1e-6/((double) experts.size()*bytes);
    };
    speeds.link = std::min(upload_all(), upload_all());
    measure_sharing(g, kind, with.layer, plain, experts);
    speeds.is_default = false;
    LLAMA_LOG_INFO(
        "%s: %s: cold experts of %s at %.1f GB/s by the CPU with one row, %.1f GB/s with 4, %.1f GB/s with 16, %.1f GB/s over the link; %d threads\n",
        __func__, ggml_backend_dev_name(g.device), ostinato_type_names(kind.types).c_str(), 1e-9/speeds.cpu_row, 1e-9/speeds.cpu_few, 1e-9/speeds.cpu_rows,
        1e-9/speeds.link, team.n_threads());
}

ostinato_kind_view ostinato_placement::view_of(const group & g, const ostinato_speed_kind & kind) const {
    ostinato_kind_view v;
    v.types        = kind.types;
    v.expert_bytes = kind.expert_bytes;
    v.bytes        = kind.bytes;
    v.measured     = kind.measured;
    v.speeds       = kind.speeds;
    for (const size_t i : kind.layers) {
        v.layers.push_back(layers[g.layers[i]].il);
        if (!g.links.empty()) {
            v.link_columns   = std::max(v.link_columns, g.links[i].columns);
            v.hidden_columns = layers[g.layers[i]].ffn->n_ff();
        }
    }
    return v;
}

// What each kind's layers count with, once that is known: the speeds themselves were told when they were measured.
void ostinato_placement::tell_kinds(const group & g) const {
    for (size_t k = 0; k < g.kinds.size(); ++k) {
        const ostinato_kind_view v = view_of(g, g.kinds[k]);
        std::string il;
        for (const int32_t layer : v.layers) {
            il += (il.empty() ? "" : ",") + std::to_string(layer);
        }
        const bool is_lent = v.measured >= 0 && v.measured != (int32_t) k;
        LLAMA_LOG_INFO("%s: %s: experts of %s, %.2f MiB each, in layers %s: %d of %lld hidden columns read in place%s%s\n", __func__,
            ggml_backend_dev_name(g.device), ostinato_type_names(v.types).c_str(), v.expert_bytes/1024.0/1024.0, il.c_str(), v.link_columns,
            (long long) v.hidden_columns, is_lent ? "; not measured, they count with the speeds of " : "",
            is_lent ? ostinato_type_names(g.kinds[v.measured].types).c_str() : "");
    }
}
