// What the CPU branch of layers on GPUs took, beside what its calibrated speeds said it would take: the constants of the cost model (paper 3.2,
// Appendix B), measured in the serving engine while it serves.
//
// Decode steps of one token are kept by layer and number of cold routes, whose mean times are C(r) of the paper. Larger passes have as many sizes as
// there are passes, so only their sums are kept. Times are from seeing a request to answering it.

#pragma once

#include "upload-choice.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

// One layer's decode steps with 1, 2, … cold routes.
struct ostinato_layer_times {
    int32_t il;
    int64_t expert_bytes;
    std::vector<uint64_t> steps;
    std::vector<uint64_t> ns;
};

// Passes of several tokens, summed over layers.
struct ostinato_pass_times {
    uint64_t steps        = 0;
    uint64_t n_routes     = 0; // cold ones that the CPU branch computed
    uint64_t ns           = 0;
    uint64_t predicted_ns = 0; // of the same steps; 0 where no speeds were measured
};

// What serving one layer of a pass took.
struct ostinato_served {
    int32_t layer;    // by the mailbox's numbers
    int32_t n_tokens;
    int32_t n_cold;   // routes that the CPU branch computed
    uint64_t ns;
};

// Entered by the leader of the cold workers, read by any thread.
class ostinato_step_times {
public:
    static constexpr int32_t MAX_LAYERS = 192; // of one GPU; further ones are not kept
    static constexpr int32_t MAX_COLD   = 16;  // routes of a token; steps with more are not kept

    // `groups` holds, for each expert of the step, its number and where its routes end; an expert has `expert_bytes`.
    void add(const ostinato_served & served, const ostinato_speeds & speeds, int64_t expert_bytes, const std::vector<int32_t> & groups) {
        if (served.n_tokens == 1) {
            if (served.layer < MAX_LAYERS && served.n_cold >= 1 && served.n_cold <= MAX_COLD) {
                cell & at = decode[served.layer][served.n_cold - 1];
                increase(at.steps, 1);
                increase(at.ns, served.ns);
            }
            return;
        }
        increase(prefill.steps, 1);
        increase(prefill.n_routes, served.n_cold);
        increase(prefill.ns, served.ns);
        if (!speeds.is_default) {
            increase(prefill.predicted_ns, (uint64_t) (ostinato_cpu_seconds(speeds, expert_bytes, groups)*1e9));
        }
    }

    ostinato_layer_times decode_of(int32_t layer, int32_t il, int64_t expert_bytes) const {
        ostinato_layer_times times = { il, expert_bytes, {}, {} };
        for (int32_t r = 0; layer < MAX_LAYERS && r < MAX_COLD; ++r) {
            times.steps.push_back(decode[layer][r].steps.load(std::memory_order_relaxed));
            times.ns.push_back(decode[layer][r].ns.load(std::memory_order_relaxed));
        }
        return times;
    }

    ostinato_pass_times prefill_sums() const {
        return { prefill.steps.load(), prefill.n_routes.load(), prefill.ns.load(), prefill.predicted_ns.load() };
    }

private:
    using counter = std::atomic<uint64_t>;

    // One thread writes.
    static void increase(counter & value, uint64_t by) {
        value.store(value.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
    }

    struct cell {
        counter steps { 0 };
        counter ns { 0 };
    };
    std::array<std::array<cell, MAX_COLD>, MAX_LAYERS> decode;
    struct {
        counter steps { 0 };
        counter n_routes { 0 };
        counter ns { 0 };
        counter predicted_ns { 0 };
    } prefill;
};
