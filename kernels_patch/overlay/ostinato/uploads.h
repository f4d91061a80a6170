// The leader's decision about a step's cold experts (mailbox.h): which of them the GPU copies over the link, where to, and which of the next layer's it
// copies ahead. All others stay with the CPU branch.
//
// Places of the staging buffer that the present layer computes from are not written before its products are through: what is prefetched goes to others.

#pragma once

#include "cpu-branch.h"
#include "mailbox.h"
#include "prefetch.h"
#include "upload-choice.h"
#include "upload-costs.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

// A layer as the workers see it. Its weights may move between passes.
struct ostinato_cold_layer {
    const ostinato_expert_ffn  * ffn;
    const ostinato_host_expert * host; // (n_experts)
    int32_t n_experts;

    // Upload path: the staging buffer as the layer's experts, and which experts are in page-locked memory.
    const ostinato_expert_ffn * staging = nullptr; // nullptr: the layer has none
    const uint8_t * pinned = nullptr;              // (n_experts)

    // Link sharing: the experts that the GPU can read in place; nullptr: none.
    const uint8_t * linked = nullptr;              // (n_experts)

    ostinato_speeds speeds = {}; // of its kind of experts, see speed-kinds.h
};

// A step's cold routes, by expert.
struct ostinato_cold_routes {
    std::vector<int32_t> cold;   // token*k + position
    std::vector<int32_t> groups; // expert, where its routes end in `cold`; by turns

    int32_t begin_of(size_t g) const { return g == 0 ? 0 : groups[g - 1]; } // of the group whose expert is groups[g]
    int32_t rows_of(size_t g) const { return groups[g + 1] - begin_of(g); }
};

// When a client's experts are uploaded, in tokens of a pass.
struct ostinato_upload_limits {
    int64_t choice_tokens = std::numeric_limits<int64_t>::max(); // from so many, experts that are chosen one by one
    int64_t all_tokens    = std::numeric_limits<int64_t>::max(); // from so many, all that can be
    int32_t prefetch_us   = 0; // the link's head start on a layer's router; 0: as measured, -1: nothing is prefetched
};

// The staging buffer as a step of so many tokens uses it, nullptr where it does not.
const ostinato_expert_ffn * ostinato_staging_of(const ostinato_cold_layer & layer, const ostinato_upload_limits & limits, int64_t n_tokens);

// Uploads of one GPU of one model.
class ostinato_uploads {
public:
    explicit ostinato_uploads(const ostinato_upload_limits & limits = {}) : limits(limits), prefetch(limits.prefetch_us) {}

    void add_layer(int32_t n_experts);

    // Writes the decision about a step that is staged, but for its number. `kept` becomes what is left to the CPU branch.
    void decide(
        const ostinato_mailbox & mailbox, const ostinato_request & request, const std::vector<ostinato_cold_layer> & layers,
        const ostinato_cold_routes & all, ostinato_cold_routes & kept);

    // What lies in the staging buffer is void from now on: something else uses the memory. Any thread.
    void forget() { epoch.fetch_add(1); }

    // The step has been answered. The CPU branch took `seconds` for `kept`, which is `predicted` by the layer's speeds.
    void end(const ostinato_request & request, const ostinato_cold_routes & all, double seconds, double predicted);

    const ostinato_upload_limits limits;

    std::atomic<int32_t> max_places { std::numeric_limits<int32_t>::max() }; // of the staging buffer, that steps of the pass may use
    std::array<std::atomic<int32_t>, 32> most_places = {};                   // that one did, by the power of two that its tokens reach

    // since the model was loaded, experts
    std::atomic<uint64_t> n_uploaded { 0 };   // that were computed from the staging buffer,
    std::atomic<uint64_t> n_prefetched { 0 }; // that were copied there ahead,
    std::atomic<uint64_t> n_foreseen { 0 };   // and that were both
    std::atomic<uint64_t> bytes { 0 };        // over the link

    // steps of layers with uploads, what they took, and what the choice had expected of them
    std::atomic<uint64_t> n_steps { 0 };
    std::atomic<uint64_t> ns { 0 };
    std::atomic<uint64_t> expected_ns { 0 };

    std::vector<ostinato_fixed_costs> fixed_costs() const { return log.fixed(); }

private:
    int32_t places_of(const ostinato_expert_ffn & staging) const { return (int32_t) std::min<int64_t>(staging.down->ne[2], max_places.load()); }
    int32_t next_free(int32_t place) const;
    void learn(const ostinato_request & request);
    void note_places(int64_t n_tokens, int32_t n);
    void add_copies(const ostinato_mailbox & mailbox, const ostinato_cold_layer & layer, int32_t expert, int32_t place);
    void stage(
        const ostinato_mailbox & mailbox, const ostinato_cold_layer & layer, const std::vector<int32_t> & chosen, const ostinato_cold_routes & all,
        bool is_ahead);
    void look_ahead(
        const ostinato_mailbox & mailbox, const ostinato_request & request, const ostinato_cold_layer & layer, const ostinato_cold_layer & next);
    bool is_computed_from(const ostinato_expert_ffn & staging, const char * begin, const char * end) const;

    ostinato_prefetch prefetch;
    ostinato_upload_log log;
    std::vector<int32_t> rows;
    std::vector<uint8_t> is_taken; // places that the step computes from

    std::atomic<uint32_t> epoch { 0 };

    // The last step, and what it prefetched.
    struct {
        uint32_t epoch   = 0;
        int32_t layer    = -1;
        int32_t n_tokens = 0;
        bool is_followed = false;
        int64_t bytes    = 0;   // uploaded
        double cpu       = 0.0; // what the CPU branch took, over what its speeds say; 0: unknown
        double cpu_seconds = 0.0;
        double expected  = 0.0; // seconds of the whole step; 0: nothing was
        std::vector<int32_t> place_of; // (n_experts of the next layer), -1: none
    } last;
};
