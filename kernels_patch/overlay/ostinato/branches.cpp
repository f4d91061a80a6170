// The graph of one MoE layer under Ostinato (paper 3.1 step 4, 3.3): the router's ids are published, the stock nodes of build_moe_ffn run
// over the expert pool as the GPU branch, and the cold routes join their output.

#include "engine.h"
#include "hooks.h"
#include "ops.h"

#include "llama-adapter.h"
#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <array>
#include <mutex>

namespace {

// The activation of a layer as build_moe_ffn would compute it, or false where the CPU branch has none like it.
bool set_activation(const llm_graph_context & graph, int il, llm_ffn_op_type type_op, ostinato_expert_ffn & ffn) {
    switch (type_op) {
        case LLM_FFN_SILU: {
            ffn.act = OSTINATO_ACT_SILU;
            const float limit = ffn.gate && il >= 0 ? graph.hparams.swiglu_clamp_exp[il] : 0.0f;
            if (limit > 1e-6f) {
                const bool is_fused = graph.arch == LLM_ARCH_MAPLE || graph.arch == LLM_ARCH_DEEPSEEK4 || graph.arch == LLM_ARCH_GLM5_NEXT ||
                    (graph.arch == LLM_ARCH_DFLASH && graph.hparams.dsv4_hc_mult > 0) || graph.arch == LLM_ARCH_HY_V4;
                ffn.act = is_fused ? OSTINATO_ACT_SWIGLU_CLAMP : OSTINATO_ACT_SILU_CLAMP;
                ffn.a   = limit;
            }
            return true;
        }
        case LLM_FFN_SITU:
            ffn.act = OSTINATO_ACT_SITU;
            ffn.a   = graph.hparams.situ_beta;
            ffn.b   = graph.hparams.situ_linear_beta;
            return true;
        case LLM_FFN_GELU:
            ffn.act = OSTINATO_ACT_GELU;
            return true;
        case LLM_FFN_SWIGLU_OAI_MOE:
            ffn.act = OSTINATO_ACT_SWIGLU_OAI;
            ffn.a   = 1.702f;
            ffn.b   = 7.0f;
            return true;
        case LLM_FFN_RELU:
            ffn.act = OSTINATO_ACT_RELU;
            return true;
        case LLM_FFN_RELU_SQR:
            ffn.act = OSTINATO_ACT_RELU_SQR;
            return !ffn.gate && !ffn.gate_up;
        default:
            return false;
    }
}

// An adapter's rows are addressed by expert, the pool's by slot.
bool has_adapter(const llm_graph_context & graph, const ostinato_moe_variables & vars) {
    for (const auto & lora : *graph.loras) {
        for (ggml_tensor * weight : { vars.up, vars.gate, vars.down, vars.gate_up }) {
            if (weight && lora.first->get_weight(weight)) {
                return true;
            }
        }
    }
    return false;
}

struct expert_variable {
    ggml_tensor *& variable;
    const ggml_tensor * ostinato_expert_ffn::* member;
};

std::array<expert_variable, 11> expert_variables(const ostinato_moe_variables & vars) {
    using ffn = ostinato_expert_ffn;
    return {{
        { vars.up,   &ffn::up   }, { vars.up_b,   &ffn::up_b   }, { vars.up_s,   &ffn::up_s   },
        { vars.gate, &ffn::gate }, { vars.gate_b, &ffn::gate_b }, { vars.gate_s, &ffn::gate_s },
        { vars.down, &ffn::down }, { vars.down_b, &ffn::down_b }, { vars.down_s, &ffn::down_s },
        { vars.gate_up, &ffn::gate_up }, { vars.gate_up_b, &ffn::gate_up_b },
    }};
}

// Sets `ffn` to what build_moe_ffn is about to compute with the layer's experts, which need not be all that the loader found: many graphs
// ignore the scales of a file, for one. Returns why the CPU branch cannot do the same, or nullptr.
const char * describe(
        const llm_graph_context & graph, int il, llm_ffn_op_type type_op, const ostinato_layer & layer, const ostinato_moe_variables & vars,
        ostinato_expert_ffn & ffn) {
    if (has_adapter(graph, vars)) {
        return "an adapter changes its experts";
    }
    if (vars.ids->ne[0] != layer.k) {
        return "its graph selects another number of experts than the model's metadata say";
    }
    ffn = layer.ffn;
    for (const auto & [variable, member] : expert_variables(vars)) {
        if (!variable) {
            ffn.*member = nullptr;
        } else if (variable != layer.ffn.*member) {
            return "its graph computes with other tensors than the layer's experts";
        }
    }
    if (!set_activation(graph, il, type_op, ffn)) {
        return "the CPU branch does not know its activation";
    }
    ffn.weight_before = graph.arch == LLM_ARCH_LLAMA4;
    return nullptr;
}

// JOIN reads the description for as long as the model lives, also while another context of the model builds a graph: it is written once.
// Returns why the layer keeps the stock nodes, or nullptr.
const char * remember(ostinato_layer & layer, const ostinato_expert_ffn & ffn, const char * reason) {
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);

    if (!reason && !layer.is_described) {
        layer.cold         = ffn;
        layer.is_described = true;
    }
    if (!reason && !(layer.cold == ffn)) {
        reason = "two graphs of the model compute its experts differently";
    }
    if (reason && layer.stock_reason != reason) {
        layer.stock_reason = reason;
        LLAMA_LOG_WARN("ostinato_publish_layer: layer %d keeps the stock nodes: %s\n", layer.il, reason);
    }
    return reason;
}

ggml_tensor * contiguous(const llm_graph_context & graph, ggml_tensor * t) {
    return ggml_is_contiguous(t) ? t : ggml_cont(graph.ctx0, t);
}

} // namespace

ostinato_published ostinato_publish_layer(
        const llm_graph_context & graph, int il, llm_ffn_op_type type_op, ggml_tensor * x, ggml_tensor * weights, ostinato_moe_variables vars) {
    ostinato_layer * layer = ostinato_find_layer(vars.gate_up ? vars.gate_up : vars.up);
    // warming up selects every expert, which says nothing about routing and needs more zero slots than there are
    if (!layer || graph.cparams.warmup) {
        return {};
    }
    const bool is_decode = !graph.cparams.embeddings && graph.n_outputs == graph.n_tokens;
    const int32_t phase  = is_decode ? OSTINATO_PHASE_DECODE : OSTINATO_PHASE_PREFILL;

    bool is_stock = !layer->slots;
    if (!is_stock) {
        ostinato_expert_ffn ffn;
        const char * reason = describe(graph, il, type_op, *layer, vars, ffn);
        is_stock = remember(*layer, ffn, reason) != nullptr;
    }
    if (is_stock) {
        ggml_build_forward_expand(graph.gf, ostinato_publish_counts(graph.ctx0, vars.ids, layer->counts, phase));
        return {};
    }

    ostinato_published out;
    out.layer   = layer;
    out.x       = contiguous(graph, x);
    out.weights = contiguous(graph, weights);
    out.handoff = ostinato_publish(graph.ctx0, vars.ids, layer->counts, layer->index_table, layer->zero_slot, phase, &vars.ids);
    ggml_build_forward_expand(graph.gf, out.handoff);

    for (const auto & [variable, member] : expert_variables(vars)) {
        if (variable) {
            variable = const_cast<ggml_tensor *>(layer->slots->*member);
        }
    }
    return out;
}

ggml_tensor * ostinato_join_layer(const llm_graph_context & graph, ggml_tensor * gpu, const ostinato_published & published) {
    if (!published.layer) {
        return gpu;
    }
    ggml_tensor * out = ostinato_join(
        graph.ctx0, contiguous(graph, gpu), published.handoff, published.x, published.weights, &published.layer->cold);
    ggml_build_forward_expand(graph.gf, out);
    return out;
}
