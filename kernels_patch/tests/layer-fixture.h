// One layer's experts, inputs and routing weights in memory of the CPU backend, for parts of ostinato-test-operators.

#pragma once

#include "ostinato/ops.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

struct shape {
    int64_t n_in = 256, n_ff = 256, n_out = 256, n_experts = 6, k = 3, n_tokens = 5;
    ggml_type gate_type = GGML_TYPE_F32, up_type = GGML_TYPE_F32, down_type = GGML_TYPE_F32;
    bool merged = false, gated = true, biases = false, scales = false, weight_before = false;
    ostinato_activation act = OSTINATO_ACT_SILU;
};

// Tensors with random content in memory of the CPU backend.
class fixture {
public:
    explicit fixture(const shape & s) : s(s) {
        ctx.reset(ggml_init({ 64*ggml_tensor_overhead(), nullptr, true }));
        const auto weight = [&](ggml_type type, int64_t columns, int64_t rows) {
            return ggml_new_tensor_3d(ctx.get(), type, columns, rows, s.n_experts);
        };
        const auto per_row = [&](int64_t rows) { return s.biases ? ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, rows, s.n_experts) : nullptr; };
        const auto single  = [&]() { return s.scales ? ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, s.n_experts) : nullptr; };
        if (s.merged) {
            ffn.gate_up   = weight(s.up_type, s.n_in, 2*s.n_ff);
            ffn.gate_up_b = per_row(2*s.n_ff);
        } else {
            ffn.up   = weight(s.up_type, s.n_in, s.n_ff);
            ffn.up_b = per_row(s.n_ff);
            if (s.gated) {
                ffn.gate   = weight(s.gate_type, s.n_in, s.n_ff);
                ffn.gate_b = per_row(s.n_ff);
                ffn.gate_s = single();
            }
        }
        ffn.up_s   = single();
        ffn.down   = weight(s.down_type, s.n_ff, s.n_out);
        ffn.down_b = per_row(s.n_out);
        ffn.down_s = single();
        ffn.act = s.act;
        ffn.a   = 1.5f;
        ffn.b   = 2.5f;
        ffn.weight_before = s.weight_before;

        counts  = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, s.n_experts, 2);
        ids     = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, s.k + 2, s.n_tokens); // a strided view of it is used, as top-k gives one
        x       = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, s.n_in, s.n_tokens);
        weights = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, 1, s.k, s.n_tokens);
        gpu     = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, s.n_out, s.n_tokens);
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));

        for (const auto & tensor : ostinato_per_expert_tensors) {
            fill(const_cast<ggml_tensor *>(ffn.*tensor.member), tensor.dim == 2 ? 0.1f : 0.5f);
        }
        fill(x, 1.0f);
        fill(weights, 1.0f);
        fill(gpu, 1.0f);
    }

    void set_ids(const std::vector<int32_t> & routes) {
        std::vector<int32_t> padded(ggml_nelements(ids), 0);
        for (size_t r = 0; r < routes.size(); ++r) {
            padded[r/s.k*(s.k + 2) + r % s.k] = routes[r];
        }
        memcpy(ids->data, padded.data(), ggml_nbytes(ids));
    }

    const shape s;
    ostinato_expert_ffn ffn;
    ggml_tensor * counts;
    ggml_tensor * ids;
    ggml_tensor * x;
    ggml_tensor * weights;
    ggml_tensor * gpu;

private:
    void fill(ggml_tensor * tensor, float deviation) {
        if (!tensor) {
            return;
        }
        std::normal_distribution<float> normal(0.0f, deviation);
        std::vector<float> values(ggml_nelements(tensor));
        std::generate(values.begin(), values.end(), [&] { return normal(random); });
        ggml_quantize_chunk(tensor->type, values.data(), tensor->data, 0, ggml_nrows(tensor), tensor->ne[0], nullptr);
    }

    std::mt19937 random { 7 };
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
};
