// What uploads cost beside the CPU branch, learned while passes compute: the speeds measured at load are each side's own. CPU and link read the same
// host memory, so together each is slower, by as much as the experts at hand are bound by memory; and behind the last upload the GPU has the product
// chain of what was uploaded before it.
//
// The choice that follows from these costs decides which kernel computes an expert. So those of a size of passes are fixed after a few of its layers: from
// then on the same prompt is computed the same way each time. Until then those of the nearest size that is known stand in.

#pragma once

#include "first-samples.h"
#include "upload-choice.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

// What the costs of a size of passes were fixed to.
struct ostinato_fixed_costs {
    int64_t n_tokens; // at least
    ostinato_upload_costs costs;
};

class ostinato_upload_log {
public:
    static constexpr size_t N_LAYERS = 14; // after so many, the costs of a size are fixed

    // Any thread. By ascending number of tokens, those that are fixed by now.
    std::vector<ostinato_fixed_costs> fixed() const;

    // Of passes of so many tokens. `link`: seconds per byte as measured at load.
    ostinato_upload_costs costs(int64_t n_tokens, double link) const;

    // A layer had uploads, and took this.
    void add_shared(int64_t n_tokens, const ostinato_upload_costs & found);

    // A layer could have had some and had none: the CPU branch's time over what its speeds say.
    void add_alone(int64_t n_tokens, double cpu);

private:
    using samples = ostinato_first_samples<N_LAYERS>;

    struct size_class {
        samples link;
        samples hot;
        samples chain;
        samples cpu;
        samples alone;
    };

    mutable std::mutex mutex;
    std::array<size_class, 32> by_size = {}; // the power of two that the tokens reach
};
