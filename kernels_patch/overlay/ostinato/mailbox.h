// How a layer on a GPU hands its cold routes to the CPU branch, and how the answer comes back (paper 3.4, Appendix A). Written before any
// code that uses it.
//
// One mailbox per GPU. Everything but `state` is page-locked host memory that the GPU addresses directly.
//
//   GPU, PUBLISH                                CPU, leader of the cold workers          GPU, JOIN
//   cold, weights, x; fence                     reads sequence (acquire)
//   layer, n_tokens, k, n_cold; fence     -->   sees a new one, computes out
//   sequence = state->sequence                  answer = sequence (release)        -->   answer == state->sequence; fence; reads out
//
// Upload path: a step that may upload forks a second stream of the GPU behind PUBLISH. A copying kernel there waits for the leader's decision,
// which comes before the CPU branch computes, and reads the chosen experts from page-locked memory into the staging buffer; STAGE waits for it
// before the second product chain, JOIN for the rest. The kernel, not the leader, copies, because nothing may call the driver while the GPU waits: the
// thread that submits the pass may hold the driver's lock, blocked on a full queue behind the waiting kernel.
//
//   CPU, leader                                                 GPU, second stream
//   copies, staged_slots; n_copies; decided = sequence    -->   decided == state->sequence; reads them; copies
//
// Prefetch: where the next layer's step may upload too, the decision also lists experts that it will probably choose. They are copied behind the event
// that STAGE waits for, to places that the present layer does not use, while the GPU is on its way to the next router. The second stream keeps the
// order, so the next STAGE waits for them as well. The list goes to device memory first: the host's is written again before they are all there.
//
// Link sharing: in a step of few tokens the GPU computes the first `link_columns` hidden columns of cold experts itself, reading them from page-locked
// memory in place, while the CPU branch computes the others of the same experts. Which experts take part, both sides read in tables that change
// between passes only.
//
// Sparse steps: of many tokens, most have no cold routes, or none that is left to the CPU branch. In steps of OSTINATO_SPARSE_TOKENS and more PUBLISH sends the
// inputs of tokens with cold routes only, the CPU branch reads and writes the rows of those it has routes of, and says so in `answered`; JOIN reads no
// others. Both lists hold the number of the last step in which a token was one of them, so that nobody has to clear them.
//
// What a step does, its request says: the leader follows that, never its own idea of it.
//
// A step without cold routes writes nothing: the CPU never hears of it, and JOIN sees state->n_cold == 0. Layers of one GPU run one after the
// other, so one mailbox serves them all; two contexts of a model must not compute at the same time, which llama.cpp's server never does.
// The sequence is counted in device memory, so that a replayed CUDA graph, whose arguments are frozen, still sends new numbers.
//
// Waiting ends after timeout_ns: JOIN sets `failed` in both memories and later steps neither publish nor wait. The CPU side turns that into an
// error; results of the pass are void.

#pragma once

#include <cstdint>

constexpr int64_t OSTINATO_SPARSE_TOKENS = 32; // with fewer, telling tokens apart takes about as long as their rows

struct ostinato_request {
    uint32_t sequence; // by the GPU
    int32_t  layer;
    int32_t  n_tokens;
    int32_t  k;
    int32_t  n_cold;
    int32_t  is_staged;    // a decision about uploads is waited for
    int32_t  link_columns; // 0: the CPU branch computes whole experts
    int32_t  is_followed;  // by a step of the next layer that waits for uploads too
    int32_t  rest_us;      // since the last uploads were there
    int32_t  copy_us;      // that they took from their decision on
    int32_t  hot_us;       // from the last PUBLISH until the hot experts' products were there
    int32_t  chain_us;     // from then or the last upload until JOIN
    int32_t  is_sparse;    // inputs and answers are those of some tokens
    uint32_t padding_0[3];

    uint32_t answer;   // by the CPU, in a cache line of its own
    uint32_t padding_1[15];

    uint32_t failed;   // by either
    uint32_t padding_2[15];

    uint32_t decided;  // by the CPU
    int32_t  n_copies;
    int32_t  n_prefetched; // behind them in `copies`
    uint32_t padding_3[13];
};

// From page-locked memory to the device. Addresses and size are multiples of 16.
struct ostinato_copy {
    const char * src;
    char * dst;
    int64_t bytes;
};

// In device memory.
struct ostinato_mailbox_state {
    uint32_t sequence;
    uint32_t n_found;  // cold routes found so far by the step that is publishing
    uint32_t n_cold;   // of the step that is published
    uint32_t failed;
    uint64_t n_published;  // steps with cold routes
    uint64_t n_cold_total;
    uint64_t waited_ns;    // by JOIN
    uint64_t n_linked;     // cold routes that the link had a share of
    uint64_t decode_waited_ns; // of waited_ns, in steps of one token
    uint64_t published_ns; // when the last step was published, by the GPU's clock,
    uint64_t decided_ns;   // when its uploads began,
    uint64_t copied_ns;    // when they were there,
    uint64_t hot_ns;       // when the hot experts' products were,
    uint64_t joined_ns;    // and when JOIN began
    int32_t  n_prefetched; // of `prefetched`, at this moment
};

struct ostinato_mailbox {
    ostinato_request * request = nullptr;
    int32_t * cold    = nullptr; // (n_cold * 2) expert, route = token*k + position; in any order
    float   * weights = nullptr; // (n_tokens * k), those of cold routes only
    float   * x       = nullptr; // (n_tokens, n_in)
    float   * out     = nullptr; // (n_tokens, n_out)
    uint32_t * answered    = nullptr; // (n_tokens) of sparse steps: the last in which the token has a row in `out`, by the CPU,
    uint32_t * cold_tokens = nullptr; // (n_tokens) and the last in which it has cold routes; in device memory
    ostinato_mailbox_state * state = nullptr;

    // Upload path. In page-locked memory, by the CPU:
    ostinato_copy * copies = nullptr;    // those of the step, then those of the prefetch
    int32_t * decided_slots = nullptr;   // (n_experts) the staging slot of each expert of the step's layer, -1 where it is not uploaded
    int32_t   n_experts = 0;
    // and its copy in device memory.
    int32_t * staged_slots = nullptr;    // (n_experts)
    ostinato_copy * prefetched = nullptr; // (n_experts), likewise
    void * stream = nullptr;             // the second one
    void * forked = nullptr;             // events
    void * joined = nullptr;
    int32_t copy_blocks = 0;             // of the copying kernel, and half of them where it copies ahead; 0: as it was built

    uint32_t generation = 0; // of its memory: a captured graph goes on with what it was captured with
    int64_t  max_routes = 0;
    int64_t  max_inputs = 0; // n_tokens * n_in
    int64_t  max_outputs = 0;
    uint64_t timeout_ns = 0;
};
