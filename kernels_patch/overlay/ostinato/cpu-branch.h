// The CPU branch: the cold routes of one MoE layer, computed from expert weights in host memory (paper 3.1 step 4, 3.3, 3.4).
//
// Products go through row-kernels.h. Each weight row is read once for all of its routes (up to 16 at a time). Results are multiplied by the
// routing weights and summed per token before they leave: n_out floats per token, not k * n_out.
//
// Entered by the n_threads threads of a team together; they take work in blocks of weight rows from a shared counter and meet at a spinning
// barrier two or three times. Nothing is allocated. A token's routes are summed in the order of their experts, so the result depends neither
// on the number of threads nor on who took which block.

#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>

enum ostinato_activation : int32_t {
    OSTINATO_ACT_SILU,           // silu(gate) * up, or silu(up) without a gate
    OSTINATO_ACT_SWIGLU_CLAMP,   // gate = min(gate, a), up = clamp(up, -a, a), then silu(gate) * up
    OSTINATO_ACT_SILU_CLAMP,     // min(silu(gate), a) * clamp(up, -a, a)
    OSTINATO_ACT_SWIGLU_OAI,     // gate = min(gate, b), up = clamp(up, -b, b), then gate * sigmoid(a * gate) * (up + 1)
    OSTINATO_ACT_SITU,           // a*tanh(gate/a) * sigmoid(gate) * b*tanh(up/b), up alone where b = 0
    OSTINATO_ACT_GELU,           // gelu(gate) * up, or gelu(up)
    OSTINATO_ACT_RELU,           // relu(gate) * up, or relu(up)
    OSTINATO_ACT_RELU_SQR,       // relu(up)^2
};

// The experts of one layer. Weights are [columns, rows, n_experts], biases [rows, n_experts], scales [n_experts]; nullptr where a layer has none.
struct ostinato_expert_ffn {
    const ggml_tensor * gate    = nullptr;
    const ggml_tensor * up      = nullptr; // nullptr when gate_up is set
    const ggml_tensor * gate_up = nullptr; // rows: gate, then up
    const ggml_tensor * down    = nullptr;

    const ggml_tensor * gate_b    = nullptr;
    const ggml_tensor * up_b      = nullptr;
    const ggml_tensor * gate_up_b = nullptr;
    const ggml_tensor * down_b    = nullptr;

    const ggml_tensor * gate_s = nullptr;
    const ggml_tensor * up_s   = nullptr; // of gate_up where that is set
    const ggml_tensor * down_s = nullptr;

    ostinato_activation act = OSTINATO_ACT_SILU;
    float a = 0.0f; // parameters of the activation, as named above
    float b = 0.0f;

    bool weight_before = false; // the routing weight multiplies the layer's input, not its output

    int64_t n_in()  const { return (gate_up ? gate_up : up)->ne[0]; }
    int64_t n_out() const { return down->ne[1]; }
    int64_t n_ff()  const { return down->ne[0]; }
};

// The same tensors, activation and order of operations: equal inputs give equal results.
bool operator==(const ostinato_expert_ffn & a, const ostinato_expert_ffn & b);

// The members of ostinato_expert_ffn that have one entry per expert, and the dimension that counts experts.
struct ostinato_per_expert {
    const ggml_tensor * ostinato_expert_ffn::* member;
    int dim;
};

inline constexpr ostinato_per_expert ostinato_per_expert_tensors[] = {
    { &ostinato_expert_ffn::gate,   2 }, { &ostinato_expert_ffn::up,   2 }, { &ostinato_expert_ffn::gate_up,   2 }, { &ostinato_expert_ffn::down,   2 },
    { &ostinato_expert_ffn::gate_b, 1 }, { &ostinato_expert_ffn::up_b, 1 }, { &ostinato_expert_ffn::gate_up_b, 1 }, { &ostinato_expert_ffn::down_b, 1 },
    { &ostinato_expert_ffn::gate_s, 0 }, { &ostinato_expert_ffn::up_s, 0 }, { &ostinato_expert_ffn::down_s,    0 },
};

// Where the weights of one expert lie in host memory; nullptr where the layer has no such tensor.
struct ostinato_host_expert {
    const char * gate    = nullptr;
    const char * up      = nullptr;
    const char * gate_up = nullptr;
    const char * down    = nullptr;
    const char * record  = nullptr; // all of them, where they lie in one (record.h)
};

// Where it is in the layer's tensors.
ostinato_host_expert ostinato_expert_in_tensors(const ostinato_expert_ffn & ffn, int32_t expert);

// Bytes of all weights of one expert.
size_t ostinato_expert_bytes(const ostinato_expert_ffn & ffn);

// What the threads of a step share. Zeroed before the first of them enters. A cache line apart each: threads that wait for a phase read its word
// all the time, and would else slow those who still take units.
struct ostinato_team {
    int32_t arrivals;
    int32_t padding_0[15];
    int32_t phase;
    int32_t padding_1[15];
    int32_t next; // unit of work
    int32_t padding_2[15];
};

// One forward pass through the cold experts of one layer.
struct ostinato_cold_step {
    const ostinato_expert_ffn  * ffn;
    const ostinato_host_expert * host;   // (n_experts), or nullptr: where the tensors of ffn are

    int32_t k;
    int32_t n_tokens;
    int32_t n_cold;
    int32_t n_groups;
    const int32_t * cold;    // (n_cold) token*k + position, grouped by expert in ascending order
    const int32_t * groups;  // (n_groups * 2) expert, end index into cold

    const float * x;         // (n_tokens, n_in), contiguous
    const float * weights;   // (n_tokens, k), contiguous
    const float * gpu;       // (n_tokens, n_out), contiguous: the other branch's output, added to the sum; nullptr for none
    float       * out;       // (n_tokens, n_out), contiguous; may not overlap gpu
    char        * scratch;   // ostinato_cold_scratch_bytes(), aligned to 64 bytes
    ostinato_team * team;

    // Of a sparse step (mailbox.h): the tokens that have cold routes, whose rows alone are read and written.
    const int32_t * tokens = nullptr; // (n_listed), or nullptr: all of them
    int32_t n_listed = 0;

    // Link sharing: of these experts only the hidden columns from link_columns on are computed. A multiple of what a row of down can be cut into.
    const uint8_t * linked = nullptr; // (n_experts), or nullptr: every expert as a whole
    int32_t link_columns   = 0;
};

// Hidden columns that the link's share of an expert is a multiple of.
int64_t ostinato_link_step(const ostinato_expert_ffn & ffn);

// Bytes that a step of `n_routes` routes needs at most.
size_t ostinato_cold_scratch_bytes(const ostinato_expert_ffn & ffn, int64_t n_routes, int64_t n_tokens);

// True where every weight of the layer has a row kernel for the CPU and lies in host memory; else `reason` says which does not.
bool ostinato_cold_supported(const ostinato_expert_ffn & ffn, const char ** reason);

// True where the upload path and the link can compute the experts on a GPU, beside the pool's.
bool ostinato_can_stage(const ostinato_expert_ffn & ffn);

void ostinato_compute_cold(const ostinato_cold_step & step, int ith, int n_threads);
