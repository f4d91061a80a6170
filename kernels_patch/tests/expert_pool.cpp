// A pool that went through any sequence of sets is as a new one with the last set. A part of ostinato-test-operators.

#include "checks.h"
#include "layer-fixture.h"

#include "ostinato/expert-pool.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace {

// A lent place is a slot of its layer's tensors. Layers of one kind have the same places, and no place is of two kinds or a hot expert's.
void check_lent_places(const ostinato_expert_pool & pool, const std::vector<ostinato_pool_layer> & layers, int round) {
    std::vector<std::pair<const char *, const char *>> ranges; // of kinds, and of slots
    std::vector<const char *> base_of;                         // by kind
    for (size_t i = 0; i < layers.size(); ++i) {
        const ostinato_expert_ffn & slots   = pool.slots(i);
        const ostinato_expert_ffn * staging = pool.staging(i);
        const ostinato_lent_places lent     = pool.lent_places(i);
        const ggml_tensor * first = slots.gate_up ? slots.gate_up : slots.gate;
        if (!staging || (lent.n == 0) != (layers[i].n_zero_slots > 0)) {
            fail("round %d, layer %zu: %d lent places", round, i, lent.n);
            return;
        }
        for (const auto & weight : ostinato_record_weights) {
            const ggml_tensor * slot  = slots.*weight.member;
            const ggml_tensor * stage = staging->*weight.member;
            if (slot && (slot->nb[2] != stage->nb[2] || ((const char *) stage->data - (const char *) slot->data) % (ptrdiff_t) slot->nb[2] != 0)) {
                fail("round %d, layer %zu: staging is not at a whole number of slots", round, i);
            }
        }
        if (lent.n > 0 && (lent.base != (const char *) first->data + lent.slot*first->nb[2] || lent.stride != first->nb[2])) {
            fail("round %d, layer %zu: the first lent place is not slot %d", round, i, lent.slot);
        }
        base_of.resize(std::max(base_of.size(), lent.kind + 1));
        if (lent.n > 0 && base_of[lent.kind] && base_of[lent.kind] != lent.base) {
            fail("round %d, layer %zu: its kind's places are elsewhere", round, i);
        }
        if (lent.n > 0 && !base_of[lent.kind]) {
            base_of[lent.kind] = lent.base;
            ranges.emplace_back(lent.base, lent.base + lent.n*lent.stride);
        }
        ranges.emplace_back((const char *) first->data, (const char *) first->data + first->ne[2]*first->nb[2]);
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t r = 1; r < ranges.size(); ++r) {
        if (ranges[r].first < ranges[r - 1].second) {
            fail("round %d: records overlap", round);
        }
    }
}

// The tiled kernels read past the last row of a kind's last layer.
void check_zeros_behind(const ostinato_expert_pool & pool, size_t n_layers, int round) {
    constexpr size_t TAIL = 64*1024;
    std::map<size_t, const char *> end_of; // by kind
    for (size_t i = 0; i < n_layers; ++i) {
        const ostinato_expert_ffn & slots = pool.slots(i);
        const ggml_tensor * first = slots.gate_up ? slots.gate_up : slots.gate;
        const char *& end = end_of[pool.lent_places(i).kind];
        end = std::max(end, (const char *) first->data + first->ne[2]*first->nb[2]);
    }
    for (const auto & [kind, end] : end_of) {
        if (!std::all_of(end, end + TAIL, [](char c) { return c == 0; })) {
            fail("round %d, kind %zu: no zeros behind the last slot", round, kind);
        }
    }
}

} // namespace

// Any sequence of sets leaves the pool as a new one with the last set, but for the order of slots; zeros included.
void check_pool_moves() {
    std::mt19937 random(5);
    std::vector<std::unique_ptr<fixture>> fixtures;
    std::vector<ostinato_pool_layer> layers;
    for (int i = 0; i < 6; ++i) { // the last two are of the kinds of the first and third
        shape s;
        s.n_experts = 6 + i;
        s.n_ff      = 32 << i % 4;
        s.biases    = i % 2 == 1;
        s.merged    = i == 2;
        if (i >= 4) {
            s.n_ff   = i == 4 ? 32 : 128;
            s.biases = false;
            s.merged = i == 5;
        }
        fixtures.push_back(std::make_unique<fixture>(s));
        layers.push_back({ &fixtures.back()->ffn, (int32_t) s.n_experts, i % 2 == 1 && s.biases ? (int32_t) s.k : 0 });
    }
    ostinato_expert_pool::hot_sets all;
    for (const auto & layer : layers) {
        all.emplace_back();
        for (int32_t e = 0; e < layer.n_experts; ++e) {
            all.back().push_back(e);
        }
    }
    const ostinato_pool_memory memory = { ggml_backend_cpu_buffer_type() };
    const ostinato_expert_pool::hot_sets none(layers.size());
    ostinato_expert_pool pool(layers, memory, ostinato_expert_pool::bytes_for(layers, all, memory), 4*ostinato_expert_pool::least_lent(layers));
    for (int round = 0; round < 200; ++round) {
        ostinato_expert_pool::hot_sets hot = all;
        for (auto & experts : hot) {
            std::shuffle(experts.begin(), experts.end(), random);
            experts.resize(random() % (experts.size() + 1));
        }
        size_t file_bytes = 0;
        for (size_t i = 0; i < layers.size(); ++i) {
            file_bytes += hot[i].size()*ostinato_expert_bytes(*layers[i].ffn);
        }
        const size_t needed   = ostinato_expert_pool::bytes_for(layers, hot, memory);
        const size_t capacity = needed + random() % 4096;
        if (ostinato_expert_pool::room_for(layers, needed - 1, memory) >= file_bytes && file_bytes > 0) {
            fail("round %d: room for %zu bytes of experts, which do not fit", round, file_bytes);
        }
        if (ostinato_expert_pool::room_for(layers, capacity, memory) > capacity - ostinato_expert_pool::bytes_for(layers, none, memory)) {
            fail("round %d: more room than the pool of %zu bytes has", round, capacity);
        }
        pool.set_hot(hot, [&](size_t layer, int32_t expert) { return ostinato_expert_in_tensors(*layers[layer].ffn, expert); });
        for (size_t i = 0; i < layers.size(); ++i) {
            const int32_t * table = (const int32_t *) pool.index_table(i)->data;
            std::set<int32_t> slots;
            for (int32_t e = 0; e < layers[i].n_experts; ++e) {
                const bool is_hot = std::find(hot[i].begin(), hot[i].end(), e) != hot[i].end();
                if (is_hot != (table[e] >= 0) || (is_hot && (table[e] >= (int32_t) hot[i].size() || !slots.insert(table[e]).second))) {
                    fail("round %d, layer %zu: expert %d has slot %d", round, i, e, table[e]);
                    return;
                }
            }
            for (const auto & [member, dim] : ostinato_per_expert_tensors) {
                const ggml_tensor * slots_of = pool.slots(i).*member;
                const ggml_tensor * experts  = layers[i].ffn->*member;
                if (!experts) {
                    continue;
                }
                const size_t bytes = experts->nb[dim];
                const size_t slot  = slots_of->nb[dim];
                for (const int32_t e : hot[i]) {
                    if (memcmp((const char *) slots_of->data + table[e]*slot, (const char *) experts->data + e*bytes, bytes) != 0) {
                        fail("round %d, layer %zu: expert %d is not in its slot", round, i, e);
                        return;
                    }
                }
                const std::vector<char> zeros(bytes, 0);
                for (int32_t zero = 0; zero < layers[i].n_zero_slots; ++zero) {
                    if (memcmp((const char *) slots_of->data + (hot[i].size() + zero)*slot, zeros.data(), bytes) != 0) {
                        fail("round %d, layer %zu: a zero slot is not zero", round, i);
                        return;
                    }
                }
            }
        }
        check_lent_places(pool, layers, round);
        check_zeros_behind(pool, layers.size(), round);
        for (size_t i = 0; i < layers.size(); ++i) { // whoever borrows them leaves something there
            const ostinato_lent_places lent = pool.lent_places(i);
            memset(lent.base, 0x5a, lent.n*lent.stride);
        }
        if (pool.used() + pool.lent() != pool.capacity() + 4*ostinato_expert_pool::least_lent(layers)) {
            fail("round %d: %zu bytes used and %zu lent are not the pool", round, pool.used(), pool.lent());
        }
    }
}
