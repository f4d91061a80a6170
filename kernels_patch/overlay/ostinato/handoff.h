// What a layer on the CPU hands from PUBLISH to the CPU branch. A layer on a GPU uses mailbox.h.
//
// On the CPU backend both operators run on ggml's own threads, one node after the other, so the hand-off is plain memory inside the
// result of PUBLISH, an i32 tensor:
//
//   words                       content                                                         written by    read by
//   [0, k*T)                    slot ids, [k, T]: slot of a hot expert, or a zero slot          PUBLISH       the GPU branch's products
//   [H, H + 50)                 header: n_cold, n_groups, and the team of JOIN's threads        PUBLISH       JOIN
//   [H + 50, H + 50 + k*T)      cold routes (token*k + position), grouped by expert             PUBLISH       JOIN
//   [.., .. + 2*G), G = k*T     groups: expert, end of its routes                               PUBLISH       JOIN
//
// with H = k*T. Ordering: ggml's barrier between the two nodes makes everything PUBLISH wrote visible to all threads of JOIN. The team's
// words are PUBLISH's to reset, once per step, before any thread of JOIN can arrive; that is why they may live in reused memory.
//
// A zero slot stands in for a cold expert. Zero slots are distinct per position: the product kernels assume that a token
// names an expert at most once.

#pragma once

#include <cstdint>

struct ostinato_handoff {
    int32_t   n_routes;  // k*T
    int32_t * slot_ids;  // (T * k)
    int32_t * header;    // (HEADER_WORDS)
    int32_t * cold;      // (n_cold) token*k + position
    int32_t * groups;    // (n_groups * 2) expert, end index into cold

    enum header_word { N_COLD = 0, N_GROUPS = 1, TEAM = 2, HEADER_WORDS = 50 };

    ostinato_handoff(int32_t * words, int32_t n_routes) :
        n_routes(n_routes), slot_ids(words), header(words + n_routes), cold(header + HEADER_WORDS), groups(cold + n_routes) {}

    static int64_t words(int64_t n_routes) { return n_routes + HEADER_WORDS + n_routes + 2*n_routes; }
};
