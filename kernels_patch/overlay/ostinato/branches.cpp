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
    const bool is_on_gpu = ggml_backend_dev_type(layer.device) != GGML_BACKEND_DEVICE_TYPE_CPU;
    if (is_on_gpu && graph.arch == LLM_ARCH_MISTRAL4) {
        return "its inputs exceed what the GPU's kernels take, so llama.cpp computes its experts on the CPU";
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

// The layer's share of cold work for the link in steps of so many tokens, nullptr for none.
const ostinato_link * link_of(const ostinato_layer & layer, int64_t n_tokens) {
    return ostinato_can_stage(layer.cold) ? layer.placement->link(layer.index, n_tokens) : nullptr;
}

// Of a pass of `n_pass` tokens, of which the layer computes `n_tokens`.
ostinato_layer_ops ops_of(const ostinato_layer & layer, int64_t n_pass, int64_t n_tokens) {
    const ostinato_placement & placement = *layer.placement;
    const ostinato_link * link = link_of(layer, n_tokens);
    return {
        placement.index_table(layer.index, n_pass), placement.zero_slot(layer.index), &layer.cold, placement.mailbox(layer.index),
        placement.mailbox_layer(layer.index), placement.staging(layer.index, n_tokens) != nullptr, link ? link->table : nullptr,
        link ? link->columns : 0,
    };
}

ggml_tensor * contiguous(const llm_graph_context & graph, ggml_tensor * t) {
    return ggml_is_contiguous(t) ? t : ggml_cont(graph.ctx0, t);
}

} // namespace

uint32_t ostinato_graph_nodes(const llama_model & model) {
    // beside the two branches, a second chain of products with a view and a sum for every selected expert
    constexpr uint32_t OF_LAYER = 24;
    const auto entry = ostinato_find_model(&model);
    uint32_t n_nodes = 0;
    for (size_t i = 0; entry && i < entry->layers.size(); ++i) {
        n_nodes += OF_LAYER + 2*entry->layers[i]->k;
    }
    return n_nodes;
}

ostinato_published ostinato_publish_layer(
        const llm_graph_context & graph, int il, llm_ffn_op_type type_op, ggml_tensor * x, ggml_tensor * weights, ostinato_moe_variables vars) {
    ostinato_layer * layer = ostinato_find_layer(vars.gate_up ? vars.gate_up : vars.up);
    // warming up selects every expert, which says nothing about routing and needs more zero slots than there are
    if (!layer || graph.cparams.warmup) {
        return {};
    }
    const bool is_decode = !graph.cparams.embeddings && graph.n_outputs == graph.n_tokens;
    const int32_t phase  = is_decode ? OSTINATO_PHASE_DECODE : OSTINATO_PHASE_PREFILL;

    ostinato_placement * placement = layer->placement;
    bool is_stock = !placement;
    if (!is_stock) {
        ostinato_expert_ffn ffn;
        const char * reason = describe(graph, il, type_op, *layer, vars, ffn);
        is_stock = remember(*layer, ffn, reason) != nullptr;
    }
    if (is_stock) {
        ggml_build_forward_expand(graph.gf, ostinato_publish_counts(graph.ctx0, vars.ids, layer->counts, phase));
        return {};
    }

    placement->reserve(graph.n_tokens);

    ostinato_published out;
    out.layer   = layer;
    out.x       = contiguous(graph, x);
    out.weights = contiguous(graph, weights);
    ggml_build_forward_expand(graph.gf, out.x);
    ggml_build_forward_expand(graph.gf, out.weights);
    out.ids     = vars.ids;
    out.handoff = ostinato_publish(graph.ctx0, ops_of(*layer, graph.n_tokens, vars.ids->ne[1]), vars.ids, layer->counts, out.x, out.weights, phase, &vars.ids);
    ggml_build_forward_expand(graph.gf, out.handoff);
    if (placement->prefetches() && placement->staging(layer->index, vars.ids->ne[1])) {
        ostinato_follow(graph.gf, out.handoff);
    }

    const ostinato_expert_ffn & slots = placement->slots(layer->index);
    for (const auto & [variable, member] : expert_variables(vars)) {
        if (variable) {
            variable = const_cast<ggml_tensor *>(slots.*member);
        }
    }
    return out;
}

static ggml_tensor * activation_of(ggml_context * ctx, const ostinato_expert_ffn & ffn, ggml_tensor * gate, ggml_tensor * up) {
    switch (ffn.act) {
        case OSTINATO_ACT_SWIGLU_CLAMP: return ggml_swiglu_clamp(ctx, gate, up, ffn.a);
        case OSTINATO_ACT_SWIGLU_OAI:   return ggml_swiglu_oai(ctx, gate, up, ffn.a, ffn.b);
        case OSTINATO_ACT_GELU:         return ggml_geglu_split(ctx, gate, up);
        case OSTINATO_ACT_RELU:         return ggml_reglu_split(ctx, gate, up);
        default:                        return ggml_swiglu_split(ctx, gate, up); // ostinato_can_stage knows no others
    }
}

// The stock nodes' experts over other weights: the weighted sum per token of the routes that `ids` does not skip. Biases are those of all experts.
static ggml_tensor * products_of(
        const llm_graph_context & graph, const ostinato_published & published, const ostinato_expert_ffn & experts_at, ggml_tensor * ids) {
    const ostinato_layer & layer = *published.layer;
    ggml_context * ctx = graph.ctx0;
    ggml_build_forward_expand(graph.gf, ids);

    const auto product = [&](const ggml_tensor * weight, ggml_tensor * in) { return ggml_mul_mat_id(ctx, const_cast<ggml_tensor *>(weight), in, ids); };
    const auto biased  = [&](ggml_tensor * t, const ggml_tensor * bias) {
        return bias ? ggml_add_id(ctx, t, const_cast<ggml_tensor *>(bias), published.ids) : t;
    };
    ggml_tensor * x = ggml_reshape_3d(ctx, published.x, published.x->ne[0], 1, published.x->ne[1]);
    ggml_tensor * gate;
    ggml_tensor * up;
    if (experts_at.gate_up) {
        ggml_tensor * both = biased(product(experts_at.gate_up, x), experts_at.gate_up_b);
        const int64_t n_ff = both->ne[0]/2;
        gate = ggml_view_3d(ctx, both, n_ff, both->ne[1], both->ne[2], both->nb[1], both->nb[2], 0);
        up   = ggml_view_3d(ctx, both, n_ff, both->ne[1], both->ne[2], both->nb[1], both->nb[2], n_ff*both->nb[0]);
    } else {
        up   = biased(product(experts_at.up, x), experts_at.up_b);
        gate = biased(product(experts_at.gate, x), experts_at.gate_b);
    }
    ggml_tensor * experts = biased(product(experts_at.down, activation_of(ctx, layer.cold, gate, up)), experts_at.down_b);
    // a product leaves zeros for a skipped route, a bias does not
    ggml_tensor * weights = experts_at.down_b ? ostinato_masked_weights(ctx, published.weights, ids) : published.weights;
    experts = ggml_mul(ctx, experts, weights);
    ggml_build_forward_expand(graph.gf, experts);

    const int64_t k = experts->ne[1];
    std::vector<ggml_tensor *> parts;
    for (int64_t i = 0; i < k; ++i) { // the views before the sums: one fused reduction
        parts.push_back(ggml_view_2d(ctx, experts, experts->ne[0], experts->ne[2], experts->nb[2], i*experts->nb[1]));
        ggml_build_forward_expand(graph.gf, parts.back());
    }
    ggml_tensor * sum = parts[0];
    for (int64_t i = 1; i < k; ++i) {
        sum = ggml_add(ctx, sum, parts[i]);
        ggml_build_forward_expand(graph.gf, sum);
    }
    return k == 1 ? ggml_cont(ctx, sum) : sum;
}

// What the GPU computes of the cold routes: from the staging buffer what the upload path brought, or in place the link's share. nullptr where
// the layer's cold routes are all the CPU branch's, as with activations that products_of does not know.
static ggml_tensor * cold_branch(const llm_graph_context & graph, ggml_tensor * gpu, const ostinato_published & published) {
    const ostinato_layer & layer = *published.layer;
    const int64_t n_tokens = published.ids->ne[1];
    if (const ostinato_expert_ffn * staging = layer.placement->staging(layer.index, n_tokens)) {
        return products_of(
            graph, published, *staging, ostinato_stage(graph.ctx0, ops_of(layer, graph.n_tokens, n_tokens), published.ids, published.handoff, gpu));
    }
    if (const ostinato_link * link = link_of(layer, n_tokens)) {
        return products_of(graph, published, link->experts, ostinato_link_ids(graph.ctx0, published.ids, published.handoff));
    }
    return nullptr;
}

ggml_tensor * ostinato_join_layer(const llm_graph_context & graph, ggml_tensor * gpu, const ostinato_published & published) {
    if (!published.layer) {
        return gpu;
    }
    ggml_build_forward_expand(graph.gf, gpu);
    if (ggml_tensor * cold = cold_branch(graph, gpu, published)) {
        gpu = ggml_add(graph.ctx0, gpu, cold);
    }
    ggml_tensor * out = ostinato_join(
        graph.ctx0, ops_of(*published.layer, graph.n_tokens, published.ids->ne[1]), contiguous(graph, gpu), published.handoff, published.x, published.weights);
    ggml_build_forward_expand(graph.gf, out);
    return out;
}
