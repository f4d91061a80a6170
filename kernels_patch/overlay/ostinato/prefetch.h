// Uploads for the next layer before its router has run: from a layer's last upload until the next router has chosen, the link would rest.
//
// Two things are learned while passes compute. One is how many rows each cold expert gets per token, which says what to prefetch; a wrong guess costs link
// time and nothing else. The other is the head start: how long the link rests in passes of a size, which says how much to prefetch, and lets the choice
// between CPU and link give the link so much more. That choice decides which kernel computes an expert, so the head start of a size is fixed after a few
// passes of it: from then on the same prompt is computed the same way each time. Until then that of a smaller size stands in, whose layers take less time.

#pragma once

#include "first-samples.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

class ostinato_prefetch {
public:
    // A head start of `fixed_us`; 0: to be learned.
    explicit ostinato_prefetch(int32_t fixed_us = 0) : fixed_s(fixed_us*1e-6) {}

    void add_layer(int32_t n_experts);

    // Of passes of so many tokens, in seconds; 0 while it is not known, and for those of few tokens, of which nobody knows what they will select.
    double head_start(int64_t n_tokens) const;

    // The link had nothing to do for so long between two layers of such a pass.
    void add_rest(int64_t n_tokens, double seconds);

    // A step has computed so many tokens; `groups` holds each cold expert's number and where its routes end.
    void add_step(int32_t layer, int64_t n_tokens, const std::vector<int32_t> & groups);

    // Experts of which such a step is expected to have at least LEAST_ROWS, most first. The result is valid until the next call.
    const std::vector<int32_t> & expected(int32_t layer, int64_t n_tokens);

    static constexpr double LEAST_ROWS = 4.0; // expected: then it is almost certain to be selected at all
    static constexpr int64_t LEAST_TOKENS = 512;

private:
    static constexpr size_t N_RESTS = 16; // after so many, a head start is fixed

    struct rows {
        std::vector<float> sums; // by expert
        double n_tokens = 0.0;
    };
    using rests = ostinato_first_samples<N_RESTS>; // in seconds

    double fixed_s;
    std::vector<rows> layers;
    std::array<rests, 32> by_size = {}; // the power of two that the tokens reach
    std::vector<int32_t> order;
};
