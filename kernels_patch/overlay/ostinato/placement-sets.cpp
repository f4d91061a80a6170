// Implementation of placement.h: which experts are hot, and where the cold ones lie.

#include "placement.h"

#include "llama-impl.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <thread>

using hot_sets = ostinato_expert_pool::hot_sets;

std::string ostinato_placement::fit(const hot_sets & hot) const {
    for (const auto & g : groups) {
        const size_t bytes = ostinato_expert_pool::bytes_for(g->pool_layers, part_of(*g, hot), g->memory);
        if (g->is_gpu() && is_claimed && bytes > g->pool->capacity()) {
            return std::string("expert pool of ") + ggml_backend_dev_name(g->device) + ": expected at most " +
                std::to_string(g->pool->capacity()) + " bytes, found " + std::to_string(bytes);
        }
    }
    return "";
}

hot_sets ostinato_placement::shrink(const hot_sets & hot, bool is_learned) const {
    hot_sets result = hot;
    for (const auto & g : groups) {
        if (!g->is_gpu()) {
            continue;
        }
        const size_t room = is_learned ? g->pool->capacity() : unlearned_bytes(*g);
        const hot_sets part = part_of(*g, hot);
        hot_sets kept = part;
        // by halving: the share in 1/4096
        int32_t low = 0;
        int32_t high = 4096;
        while (low < high) {
            const int32_t share = (low + high + 1)/2;
            for (size_t i = 0; i < part.size(); ++i) {
                kept[i].assign(part[i].begin(), part[i].begin() + part[i].size()*share/4096);
            }
            const bool fits = ostinato_expert_pool::bytes_for(g->pool_layers, kept, g->memory) <= room;
            (fits ? low : high) = fits ? share : share - 1;
        }
        for (size_t i = 0; i < part.size(); ++i) {
            result[g->layers[i]].resize(part[i].size()*low/4096);
        }
    }
    return result;
}

static constexpr double LENT_UNLEARNED = 0.375; // of a GPU's memory for experts; profiles/borrowing.py has it from replays

// Without knowledge of what is used, a hot expert serves less than the same memory lent to what a session uses: as far as all layers reach half of it.
size_t ostinato_placement::unlearned_bytes(const group & g) const {
    const size_t total = g.pool->used() + g.pool->lent();
    const size_t kept  = (size_t) (total*(1.0 - LENT_UNLEARNED*limits.borrow_percent/100));
    bool is_lent = g.borrower != nullptr;
    for (size_t i = 0; i < g.layers.size(); ++i) {
        is_lent &= g.pool_layers[i].n_zero_slots == 0 && (kept + total)/2 <= g.pool->reach(i);
    }
    return is_lent ? std::min(kept, g.pool->capacity()) : g.pool->capacity();
}

// Parts of the work list run on as many threads as the machine has: copying from the page cache is bound by one thread's speed.
template <typename F>
static void in_parallel(size_t n, F && f) {
    std::atomic<size_t> next { 0 };
    std::vector<std::thread> threads;
    const auto run = [&] {
        for (size_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) {
            f(i);
        }
    };
    for (unsigned t = 1; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
        threads.emplace_back(run);
    }
    run();
    for (std::thread & t : threads) {
        t.join();
    }
}

// Cold experts of GPU layers move into the arena, hot ones leave it.
void ostinato_placement::place_cold(const hot_sets & hot) {
    if (!arena) {
        return;
    }
    struct transfer {
        size_t layer;
        int32_t expert;
    };
    std::vector<transfer> transfers;
    arena->forget_refusal();
    for (const bool is_leaving : { true, false }) { // places are free before they are asked for
        for (size_t i = 0; i < layers.size(); ++i) {
            if (kind_of[i] < 0) {
                continue;
            }
            std::vector<uint8_t> is_hot(layers[i].n_experts, 0);
            for (const int32_t e : hot[i]) {
                is_hot[e] = 1;
            }
            for (int32_t e = 0; e < layers[i].n_experts; ++e) {
                char *& place = places[i][e];
                if (is_leaving && is_hot[e] && place) {
                    arena->release(kind_of[i], place);
                    place = nullptr;
                    pinned[i][e] = 0;
                    host[i][e] = ostinato_expert_in_tensors(*layers[i].ffn, e);
                }
                if (!is_leaving && !is_hot[e] && !place && (place = arena->allocate(kind_of[i]))) {
                    transfers.push_back({ i, e });
                }
            }
        }
    }
    in_parallel(transfers.size(), [&](size_t t) {
        const auto [i, e] = transfers[t];
        const ostinato_expert_ffn & ffn = *layers[i].ffn;
        const ostinato_record record(ffn);
        ostinato_host_expert & expert = host[i][e];
        for (size_t w = 0; w < std::size(ostinato_record_weights); ++w) {
            if (const ggml_tensor * weight = ffn.*ostinato_record_weights[w].member) {
                char * to = record.at(places[i][e], 0, w);
                memcpy(to, (const char *) weight->data + e*weight->nb[2], weight->nb[2]);
                expert.*ostinato_record_weights[w].host = to;
            }
        }
        expert.record = places[i][e];
        pinned[i][e]  = 1;
    });
}

ostinato_expert_pool::change ostinato_placement::apply(const hot_sets & hot) {
    ostinato_expert_pool::change total;
    for (auto & g : groups) {
        const hot_sets part = part_of(*g, hot);
        if (!g->is_gpu()) {
            const size_t bytes = ostinato_expert_pool::bytes_for(g->pool_layers, part, g->memory);
            if (bytes > g->pool->capacity()) {
                g->pool = std::make_unique<ostinato_expert_pool>(g->pool_layers, g->memory, bytes);
            }
        }
        if (g->borrower) {
            g->borrower->stop();
        }
        const auto read = [&](size_t layer, int32_t expert) { return host[g->layers[layer]][expert]; };
        const ostinato_expert_pool::change change = g->pool->set_hot(part, read);
        connect_staging(*g);
        total.n_loaded  += change.n_loaded;
        total.n_dropped += change.n_dropped;
    }
    place_cold(hot);
    for (auto & g : groups) {
        if (!g->is_gpu() || !is_claimed) {
            continue;
        }
        if (!g->has_speeds()) {
            measure_speeds(*g, hot);
        }
        if (g->links.empty() && (g->has_speeds() || limits.link_percent > 0)) {
            add_links(*g);
            tell_kinds(*g);
        }
        write_link_tables(*g);
        if (g->borrower) {
            g->borrower->reset(*g->pool);
        }
    }
    return total;
}
