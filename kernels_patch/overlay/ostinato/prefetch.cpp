// Implementation of prefetch.h.

#include "prefetch.h"

#include "upload-choice.h"

#include <algorithm>
#include <cmath>

static constexpr double HALF_LIFE = 4096.0; // tokens
static constexpr double QUANTILE  = 0.25;   // of the rests: what nearly every layer has
static constexpr double SHARE     = 0.9;    // of that: a late upload is waited for by all

void ostinato_prefetch::add_layer(int32_t n_experts) {
    layers.push_back({ std::vector<float>(n_experts, 0.0f), 0.0 });
    order.reserve(std::max<size_t>(order.capacity(), n_experts)); // while a GPU waits, nothing is allocated
}

double ostinato_prefetch::head_start(int64_t n_tokens) const {
    if (fixed_s > 0.0 || n_tokens < LEAST_TOKENS) {
        return fixed_s;
    }
    for (int size = ostinato_size_class(n_tokens); size >= 0; --size) {
        if (by_size[size].is_fixed()) {
            return SHARE*by_size[size].quantile(QUANTILE);
        }
    }
    return 0.0;
}

void ostinato_prefetch::add_rest(int64_t n_tokens, double seconds) {
    by_size[ostinato_size_class(n_tokens)].add(std::max(0.0, seconds));
}

void ostinato_prefetch::add_step(int32_t layer, int64_t n_tokens, const std::vector<int32_t> & groups) {
    rows & known = layers[layer];
    const float kept = (float) std::exp2(-n_tokens/HALF_LIFE);
    for (float & sum : known.sums) {
        sum *= kept;
    }
    known.n_tokens = known.n_tokens*kept + n_tokens;
    for (size_t g = 0; g < groups.size(); g += 2) {
        known.sums[groups[g]] += (float) (groups[g + 1] - (g == 0 ? 0 : groups[g - 1]));
    }
}

const std::vector<int32_t> & ostinato_prefetch::expected(int32_t layer, int64_t n_tokens) {
    const rows & known = layers[layer];
    const double least = LEAST_ROWS*known.n_tokens/n_tokens; // as a sum
    order.clear();
    for (int32_t e = 0; e < (int32_t) known.sums.size(); ++e) {
        if (known.sums[e] > 0.0f && known.sums[e] >= least) {
            order.push_back(e);
        }
    }
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return known.sums[a] != known.sums[b] ? known.sums[a] > known.sums[b] : a < b;
    });
    return order;
}
