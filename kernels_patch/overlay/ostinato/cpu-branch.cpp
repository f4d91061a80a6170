// Implementation of cpu-branch.h.

#include "cpu-branch.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

static constexpr int64_t ROW_BLOCK = 32; // rows of a weight matrix per unit of work; a block of one expert is tens of KiB

namespace {

size_t align64(size_t n) {
    return (n + 63) & ~(size_t) 63;
}

// The type that the row kernel of a weight wants its input in.
ggml_type input_type(const ggml_tensor * weight) {
    return ggml_get_type_traits_cpu(weight->type)->vec_dot_type;
}

// Input rows in one type, `row` bytes each, at an offset into the scratch memory.
struct quantised_rows {
    ggml_type type;
    size_t row;
    size_t offset;

    quantised_rows(const ggml_tensor * weight, int64_t columns, size_t offset) :
        type(input_type(weight)), row(align64(ggml_row_size(type, columns))), offset(offset) {}
};

// Where the scratch memory of a step goes. Routes are numbered as in the hand-off's list of cold routes.
struct scratch_layout {
    quantised_rows x_up;   // inputs of up, or of merged gate and up: one per token, or per route where the weight multiplies the input
    quantised_rows x_gate; // inputs of gate: the same rows where both weights want the same type
    quantised_rows h;      // inputs of down, one per route
    size_t gate_up;        // offset: (n_routes, 2*n_ff) f32
    size_t down;           // offset: (n_routes, n_out) f32; before that (n_routes, n_in) weighted inputs
    size_t total;

    scratch_layout(const ostinato_expert_ffn & ffn, int64_t n_routes, int64_t n_tokens) :
        x_up  (ffn.gate_up ? ffn.gate_up : ffn.up, ffn.n_in(), 0),
        x_gate(ffn.gate    ? ffn.gate : ffn.gate_up ? ffn.gate_up : ffn.up, ffn.n_in(), 0),
        h     (ffn.down, ffn.n_ff(), 0) {
        const int64_t n_x = ffn.weight_before ? n_routes : n_tokens;
        total = x_up.row*n_x;
        if (x_gate.type != x_up.type) {
            x_gate.offset = total;
            total += x_gate.row*n_x;
        }
        h.offset = total;
        gate_up  = h.offset + h.row*n_routes;
        down     = gate_up  + align64(n_routes*2*ffn.n_ff()*sizeof(float));
        total    = down     + align64(n_routes*std::max(ffn.n_out(), ffn.weight_before ? ffn.n_in() : 0)*sizeof(float));
    }
};

void barrier(int32_t * header, int n_threads) {
    int32_t * arrivals = header + ostinato_handoff::ARRIVALS;
    int32_t * phase    = header + ostinato_handoff::PHASE;

    const int32_t current = __atomic_load_n(phase, __ATOMIC_RELAXED);
    // acquire-release: the last arrival sees what every thread wrote before it arrived
    if (__atomic_add_fetch(arrivals, 1, __ATOMIC_ACQ_REL) == n_threads) {
        __atomic_store_n(arrivals, 0, __ATOMIC_RELAXED);
        __atomic_store_n(phase, current + 1, __ATOMIC_RELEASE); // pairs with the acquire below
        return;
    }
    while (__atomic_load_n(phase, __ATOMIC_ACQUIRE) == current) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
}

// Quantises one row of floats to `type`; f32 is copied.
void to_row(ggml_type type, const float * src, void * dst, int64_t n) {
    if (type == GGML_TYPE_F32) {
        memcpy(dst, src, n*sizeof(float));
    } else {
        ggml_get_type_traits_cpu(type)->from_float(src, dst, n);
    }
}

float at(const ggml_tensor * bias, int64_t row, int64_t expert) {
    return *(const float *) ((const char *) bias->data + expert*bias->nb[1] + row*bias->nb[0]);
}

float scale_of(const ggml_tensor * scale, int64_t expert) {
    return scale ? ((const float *) scale->data)[expert] : 1.0f;
}

float silu(float x) {
    return x/(1.0f + expf(-x));
}

// ggml's CPU backend looks gelu up in a table of f16; the same roundings here, so that no route depends on its branch.
float gelu(float x) {
    if (x <= -10.0f) {
        return 0.0f;
    }
    if (x >= 10.0f) {
        return x;
    }
    const float r = ggml_fp16_to_fp32(ggml_fp32_to_fp16(x));
    const float y = 0.5f*r*(1.0f + tanhf(0.79788456080286535587989211986876f*r*(1.0f + 0.044715f*r*r)));
    return ggml_fp16_to_fp32(ggml_fp32_to_fp16(y));
}

// h = act(gate, up); without a gate, `gate` is the up projection and `up` is not read.
void activate(const ostinato_expert_ffn & ffn, const float * gate, const float * up, bool has_gate, float * h, int64_t n) {
    const float a = ffn.a;
    const float b = ffn.b;
    for (int64_t i = 0; i < n; ++i) {
        const float g = gate[i];
        const float u = has_gate ? up[i] : 1.0f;
        switch (ffn.act) {
            case OSTINATO_ACT_SILU:         h[i] = silu(g)*u; break;
            case OSTINATO_ACT_SWIGLU_CLAMP: h[i] = silu(std::min(g, a))*std::clamp(u, -a, a); break;
            case OSTINATO_ACT_SILU_CLAMP:   h[i] = std::min(silu(g), a)*std::clamp(u, -a, a); break;
            case OSTINATO_ACT_SWIGLU_OAI: {
                const float x = std::min(g, b);
                h[i] = x/(1.0f + expf(-a*x))*(std::clamp(u, -b, b) + 1.0f);
            } break;
            case OSTINATO_ACT_SITU: {
                const float x = b > 0.0f ? b*tanhf(u*(1.0f/b)) : u;
                h[i] = a*tanhf(g*(1.0f/a))*(1.0f/(1.0f + expf(-g)))*x;
            } break;
            case OSTINATO_ACT_GELU:         h[i] = gelu(g)*u; break;
            case OSTINATO_ACT_RELU:         h[i] = std::max(g, 0.0f)*u; break;
            case OSTINATO_ACT_RELU_SQR:     h[i] = std::max(g, 0.0f)*std::max(g, 0.0f); break;
        }
    }
}

// One weight matrix of the layer and where its results go: dst[route*dst_stride + row].
struct projection {
    const ggml_tensor * weight;
    const ggml_tensor * bias;
    const ggml_tensor * scale;
    float * dst;
    int64_t dst_stride;
};

struct input_rows {
    const char * data;
    size_t row_bytes;
    bool   by_route; // else by token
};

// The rows of `p` for all cold routes, a block of rows of one expert at a time, dealt out to the threads in turn.
void multiply(const ostinato_cold_step & step, const projection & p, const input_rows & in, int ith, int n_threads) {
    const auto * traits   = ggml_get_type_traits_cpu(p.weight->type);
    const int64_t columns = p.weight->ne[0];
    const int64_t rows    = p.weight->ne[1];
    const int64_t blocks  = (rows + ROW_BLOCK - 1)/ROW_BLOCK;
    const int32_t groups  = step.handoff.header[ostinato_handoff::N_GROUPS];

    for (int64_t unit = ith; unit < groups*blocks; unit += n_threads) {
        const int64_t g      = unit/blocks;
        const int64_t expert = step.handoff.groups[2*g];
        const int32_t begin  = g == 0 ? 0 : step.handoff.groups[2*g - 1];
        const int32_t end    = step.handoff.groups[2*g + 1];
        const float   scale  = scale_of(p.scale, expert);

        const int64_t row0 = (unit % blocks)*ROW_BLOCK;
        const int64_t row1 = std::min(rows, row0 + ROW_BLOCK);
        for (int64_t row = row0; row < row1; ++row) {
            const char * w = (const char *) p.weight->data + expert*p.weight->nb[2] + row*p.weight->nb[1];
            for (int32_t r = begin; r < end; ++r) {
                const int64_t in_row = in.by_route ? r : step.handoff.cold[r]/step.k;
                float dot = 0.0f;
                traits->vec_dot((int) columns, &dot, 0, w, 0, in.data + in_row*in.row_bytes, 0, 1);
                dot *= scale;
                p.dst[r*p.dst_stride + row] = p.bias ? dot + at(p.bias, row, expert) : dot;
            }
        }
    }
}

} // namespace

bool operator==(const ostinato_expert_ffn & a, const ostinato_expert_ffn & b) {
    const auto rest = [](const ostinato_expert_ffn & ffn) { return std::tie(ffn.act, ffn.a, ffn.b, ffn.weight_before); };
    for (const auto & tensor : ostinato_per_expert_tensors) {
        if (a.*tensor.member != b.*tensor.member) {
            return false;
        }
    }
    return rest(a) == rest(b);
}

size_t ostinato_cold_scratch_bytes(const ostinato_expert_ffn & ffn, int64_t n_routes, int64_t n_tokens) {
    return scratch_layout(ffn, n_routes, n_tokens).total;
}

bool ostinato_cold_supported(const ostinato_expert_ffn & ffn, const char ** reason) {
    const ggml_tensor * weights[] = { ffn.gate, ffn.up, ffn.gate_up, ffn.down };
    for (const ggml_tensor * w : weights) {
        if (!w) {
            continue;
        }
        if (!w->buffer || !ggml_backend_buffer_is_host(w->buffer)) {
            *reason = "its expert weights are not in plain host memory";
            return false;
        }
        if (!ggml_get_type_traits_cpu(w->type)->vec_dot || !ggml_get_type_traits_cpu(input_type(w))->from_float) {
            *reason = "the CPU has no row kernel for the type of its expert weights";
            return false;
        }
    }
    const ggml_tensor * modifiers[] = { ffn.gate_b, ffn.up_b, ffn.gate_up_b, ffn.down_b, ffn.gate_s, ffn.up_s, ffn.down_s };
    for (const ggml_tensor * m : modifiers) {
        if (m && (m->type != GGML_TYPE_F32 || !m->buffer || !ggml_backend_buffer_is_host(m->buffer))) {
            *reason = "its expert biases or scales are not f32 in host memory";
            return false;
        }
    }
    return true;
}

void ostinato_compute_cold(const ostinato_cold_step & step, int ith, int n_threads) {
    const ostinato_expert_ffn & ffn = *step.ffn;

    const int64_t n_in   = ffn.n_in();
    const int64_t n_out  = ffn.n_out();
    const int64_t n_ff   = ffn.n_ff();
    const int32_t n_cold = step.handoff.header[ostinato_handoff::N_COLD];
    const scratch_layout layout(ffn, step.handoff.n_routes, step.n_tokens);

    float * gate_up = (float *) (step.scratch + layout.gate_up); // (n_cold, 2*n_ff)
    float * down    = (float *) (step.scratch + layout.down);    // (n_cold, n_out)

    const bool has_gate = ffn.gate || ffn.gate_up;

    // 1. inputs in the form the weights' kernels take
    const auto quantise_input = [&](const float * x, int64_t row) {
        to_row(layout.x_up.type, x, step.scratch + layout.x_up.offset + row*layout.x_up.row, n_in);
        if (layout.x_gate.offset != layout.x_up.offset) {
            to_row(layout.x_gate.type, x, step.scratch + layout.x_gate.offset + row*layout.x_gate.row, n_in);
        }
    };
    if (ffn.weight_before) {
        for (int32_t r = ith; r < n_cold; r += n_threads) {
            const int32_t route = step.handoff.cold[r];
            float * weighted = down + (size_t) r*n_in; // free until step 4
            for (int64_t i = 0; i < n_in; ++i) {
                weighted[i] = step.x[(route/step.k)*n_in + i]*step.weights[route];
            }
            quantise_input(weighted, r);
        }
    } else {
        for (int32_t t = ith; t < step.n_tokens; t += n_threads) {
            quantise_input(step.x + t*n_in, t);
        }
    }
    barrier(step.handoff.header, n_threads);

    // 2. gate and up
    const input_rows x_up   = { step.scratch + layout.x_up  .offset, layout.x_up  .row, ffn.weight_before };
    const input_rows x_gate = { step.scratch + layout.x_gate.offset, layout.x_gate.row, ffn.weight_before };
    if (ffn.gate_up) {
        multiply(step, { ffn.gate_up, ffn.gate_up_b, ffn.up_s, gate_up, 2*n_ff }, x_up, ith, n_threads);
    } else {
        multiply(step, { ffn.up, ffn.up_b, ffn.up_s, gate_up + (has_gate ? n_ff : 0), 2*n_ff }, x_up, ith, n_threads);
        if (ffn.gate) {
            multiply(step, { ffn.gate, ffn.gate_b, ffn.gate_s, gate_up, 2*n_ff }, x_gate, ith, n_threads);
        }
    }
    barrier(step.handoff.header, n_threads);

    // 3. activation, in place, and the hidden rows in the form the down weights take
    char * h_rows = step.scratch + layout.h.offset;
    for (int32_t r = ith; r < n_cold; r += n_threads) {
        float * h = gate_up + (size_t) r*2*n_ff;
        activate(ffn, h, h + n_ff, has_gate, h, n_ff);
        to_row(layout.h.type, h, h_rows + r*layout.h.row, n_ff);
    }
    barrier(step.handoff.header, n_threads);

    // 4. down
    multiply(step, { ffn.down, ffn.down_b, ffn.down_s, down, n_out }, { h_rows, layout.h.row, true }, ith, n_threads);
    barrier(step.handoff.header, n_threads);

    // 5. the other branch's output plus this token's cold routes, in the order of their positions. Routes are grouped by expert, so a token's
    // are found through the inverse of the list, which the slot ids' place can hold no more: they are read by nobody after the products.
    int32_t * cold_of_route = step.handoff.slot_ids;
    if (ith == 0) {
        std::fill_n(cold_of_route, step.handoff.n_routes, -1);
        for (int32_t r = 0; r < n_cold; ++r) {
            cold_of_route[step.handoff.cold[r]] = r;
        }
    }
    barrier(step.handoff.header, n_threads);
    for (int32_t t = ith; t < step.n_tokens; t += n_threads) {
        float * out = step.out + t*n_out;
        memcpy(out, step.gpu + t*n_out, n_out*sizeof(float));
        for (int32_t i = 0; i < step.k; ++i) {
            const int32_t route = t*step.k + i;
            const int32_t r     = cold_of_route[route];
            if (r < 0) {
                continue;
            }
            const float weight = ffn.weight_before ? 1.0f : step.weights[route];
            for (int64_t j = 0; j < n_out; ++j) {
                out[j] += weight*down[(size_t) r*n_out + j];
            }
        }
    }
}
