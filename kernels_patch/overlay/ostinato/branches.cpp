// The graph of one MoE layer under Ostinato (paper 3.1 step 4, 3.3): the router's ids are published, the stock nodes of build_moe_ffn run
// over the expert pool as the GPU branch, and the cold routes join their output.

#include "engine.h"
#include "hooks.h"
#include "ops.h"

#include "llama-adapter.h"
#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <atomic>

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

// An adapter's rows are addressed by expert, the pool's by slot, so a layer with an adapter on its experts keeps the stock nodes.
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

    const bool is_stock = !layer->slots || has_adapter(graph, vars) || !set_activation(graph, il, type_op, layer->ffn);
    if (is_stock) {
        ggml_build_forward_expand(graph.gf, ostinato_publish_counts(graph.ctx0, vars.ids, layer->counts, phase));
        return {};
    }
    layer->ffn.weight_before = graph.arch == LLM_ARCH_LLAMA4;

    ostinato_published out;
    out.layer   = layer;
    out.x       = contiguous(graph, x);
    out.weights = contiguous(graph, weights);
    out.handoff = ostinato_publish(graph.ctx0, vars.ids, layer->counts, layer->index_table, layer->zero_slot, phase, &vars.ids);
    ggml_build_forward_expand(graph.gf, out.handoff);

    const auto use = [](ggml_tensor *& variable, const ggml_tensor * slots) { variable = const_cast<ggml_tensor *>(slots); };
    use(vars.up,      layer->slots->up);
    use(vars.up_b,    layer->slots->up_b);
    use(vars.up_s,    layer->slots->up_s);
    use(vars.gate,    layer->slots->gate);
    use(vars.gate_b,  layer->slots->gate_b);
    use(vars.gate_s,  layer->slots->gate_s);
    use(vars.down,    layer->slots->down);
    use(vars.down_b,  layer->slots->down_b);
    use(vars.down_s,  layer->slots->down_s);
    use(vars.gate_up,   layer->slots->gate_up);
    use(vars.gate_up_b, layer->slots->gate_up_b);
    return out;
}

ggml_tensor * ostinato_join_layer(const llm_graph_context & graph, ggml_tensor * gpu, const ostinato_published & published) {
    if (!published.layer) {
        return gpu;
    }
    ggml_tensor * out = ostinato_join(
        graph.ctx0, contiguous(graph, gpu), published.handoff, published.x, published.weights, &published.layer->ffn);
    ggml_build_forward_expand(graph.gf, out);
    return out;
}
