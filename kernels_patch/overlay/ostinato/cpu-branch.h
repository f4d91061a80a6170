// The CPU branch: the cold routes of one MoE layer, computed from expert weights in host memory (paper 3.1 step 4, 3.3, 3.4).
//
// Products go through ggml's own row kernels (ggml_get_type_traits_cpu: quantise the activations once, then one dot product per row),
// so the arithmetic of a row is that of ggml's untiled CPU path. Each weight row is read once for all of its routes. Results are already
// multiplied by the routing weights and summed per token: n_out floats per token leave the branch, not k * n_out.
//
// Entered by n_threads threads together, as many as the caller has; they meet at a spinning barrier five times. Nothing is allocated. The
// sum over a token's routes runs in the order of their positions, so the result does not depend on the number of threads.

#pragma once

#include "handoff.h"

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

// One forward pass through the cold experts of one layer.
struct ostinato_cold_step {
    const ostinato_expert_ffn * ffn;
    ostinato_handoff handoff;

    int32_t k;
    int32_t n_tokens;
    const float * x;         // (n_tokens, n_in), contiguous
    const float * weights;   // (n_tokens, k), contiguous
    const float * gpu;       // (n_tokens, n_out), contiguous: the other branch's output, added to the sum
    float       * out;       // (n_tokens, n_out), contiguous; may not overlap gpu
    char        * scratch;   // ostinato_cold_scratch_bytes(), aligned to 64 bytes
};

// Bytes that a step of `n_routes` routes needs at most.
size_t ostinato_cold_scratch_bytes(const ostinato_expert_ffn & ffn, int64_t n_routes, int64_t n_tokens);

// True where every weight of the layer has a row kernel for the CPU and lies in host memory; else `reason` says which does not.
bool ostinato_cold_supported(const ostinato_expert_ffn & ffn, const char ** reason);

void ostinato_compute_cold(const ostinato_cold_step & step, int ith, int n_threads);
