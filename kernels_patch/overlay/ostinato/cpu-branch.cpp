// Implementation of cpu-branch.h.

#include "cpu-branch.h"

#include "row-kernels.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

static constexpr int64_t FF_BLOCK  = 32; // hidden columns per unit of work: rows of gate and up; one block of the widest common input type
static constexpr int64_t FF_FEW    = 8;  // the same in a step of few routes, whose units would else be too few to share out evenly
static constexpr int64_t FEW_ROUTES = 32;
static constexpr int64_t IN_BLOCK  = 512; // columns of an input row per unit, where there are fewer rows than threads
static constexpr int64_t OUT_BLOCK = 16; // output columns per unit of work: a cache line of floats per token
static constexpr int     ROUTES    = 16; // routes that share one reading of a weight row

namespace {

size_t align64(size_t n) {
    return (n + 63) & ~(size_t) 63;
}

// Input rows of one weight in the scratch memory.
struct input_rows {
    ostinato_row_kernel kernel;
    size_t row    = 0; // bytes
    size_t offset = 0;

    input_rows(const ggml_tensor * weight) :
        kernel(ostinato_find_row_kernel(weight->type, weight->ne[0])), row(ostinato_input_row_bytes(kernel, weight->ne[0])) {}
};

// Where the scratch memory of a step goes. Routes are numbered as in the step's list of cold routes.
struct scratch_layout {
    input_rows up;    // inputs of up, or of merged gate and up: one per token, or per route where the weight multiplies the input
    input_rows gate;  // inputs of gate: the same rows where both weights want the same form
    input_rows down;  // hidden rows, one per route
    bool is_gate_apart;
    bool is_hidden_direct; // hidden rows can be quantised a block of FF_BLOCK columns at a time
    size_t hidden;         // offset: (n_routes, n_ff) f32, where they cannot
    size_t weighted;       // offset: (n_routes, n_in) f32, where the weight multiplies the input
    size_t total;

    scratch_layout(const ostinato_expert_ffn & ffn, int64_t n_routes, int64_t n_tokens) :
        up  (ffn.gate_up ? ffn.gate_up : ffn.up),
        gate(ffn.gate ? ffn.gate : ffn.gate_up ? ffn.gate_up : ffn.up),
        down(ffn.down),
        is_gate_apart(gate.kernel.input != up.kernel.input || gate.kernel.is_split != up.kernel.is_split),
        is_hidden_direct(n_routes > FEW_ROUTES && ggml_blck_size(down.kernel.input) <= FF_BLOCK) {
        const int64_t n_x = ffn.weight_before ? n_routes : n_tokens;
        total = up.row*n_x;
        gate.offset = is_gate_apart ? total : up.offset;
        total += is_gate_apart ? gate.row*n_x : 0;
        down.offset = total;
        total += down.row*n_routes;
        hidden = total;
        total += is_hidden_direct ? 0 : align64(n_routes*ffn.n_ff()*sizeof(float));
        weighted = total;
        total += ffn.weight_before ? align64(n_routes*ffn.n_in()*sizeof(float)) : 0;
    }
};

// The last thread to arrive starts the counting of units anew.
void barrier(ostinato_team * team, int n_threads) {
    const int32_t current = __atomic_load_n(&team->phase, __ATOMIC_RELAXED);
    // acquire-release: the last arrival sees what every thread wrote before it arrived
    if (__atomic_add_fetch(&team->arrivals, 1, __ATOMIC_ACQ_REL) == n_threads) {
        __atomic_store_n(&team->arrivals, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&team->next, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&team->phase, current + 1, __ATOMIC_RELEASE); // pairs with the acquire below
        return;
    }
    while (__atomic_load_n(&team->phase, __ATOMIC_ACQUIRE) == current) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
}

int32_t take_unit(ostinato_team * team) {
    return __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED);
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

const char * weights_of(const ostinato_cold_step & step, const ggml_tensor * weight, const char * ostinato_host_expert::* member, int64_t expert) {
    return step.host ? step.host[expert].*member : (const char *) weight->data + expert*weight->nb[2];
}

// The first hidden column of an expert that is computed here.
int64_t first_column(const ostinato_cold_step & step, int64_t expert) {
    return step.linked && step.linked[expert] ? step.link_columns : 0;
}

// Rows row0 .. row1 - 1 of a weight matrix with up to ROUTES inputs: results[row - row0][input].
void multiply(
        const input_rows & in, const ggml_tensor * weight, const char * data, const ggml_tensor * bias, const ggml_tensor * scales, int64_t expert,
        int64_t row0, int64_t row1, const char * const * x, int n_x, float (*results)[ROUTES]) {
    const float scale = scale_of(scales, expert);
    for (int64_t row = row0; row < row1; ++row) {
        float * out = results[row - row0];
        ostinato_dot_rows(in.kernel, weight->ne[0], out, data + row*weight->nb[1], x, n_x);
        const float b = bias ? at(bias, row, expert) : 0.0f;
        for (int i = 0; i < n_x; ++i) {
            out[i] = out[i]*scale + b;
        }
    }
}

// A block of hidden columns of one expert's routes.
void hidden_unit(const ostinato_cold_step & step, const scratch_layout & layout, int32_t group, int64_t ff0, int64_t ff1) {
    const ostinato_expert_ffn & ffn = *step.ffn;

    const int64_t expert = step.groups[2*group];
    const int32_t begin  = group == 0 ? 0 : step.groups[2*group - 1];
    const int32_t end    = step.groups[2*group + 1];
    const int64_t n_ff   = ffn.n_ff();
    const int64_t first  = first_column(step, expert);
    const bool has_gate  = ffn.gate || ffn.gate_up;
    if (ff0 < first) {
        return;
    }

    float gate[FF_BLOCK][ROUTES];
    float up  [FF_BLOCK][ROUTES];
    for (int32_t r0 = begin; r0 < end; r0 += ROUTES) {
        const int n = std::min<int32_t>(ROUTES, end - r0);
        const char * x_up  [ROUTES];
        const char * x_gate[ROUTES];
        for (int i = 0; i < n; ++i) {
            const int64_t row = ffn.weight_before ? r0 + i : step.cold[r0 + i]/step.k;
            x_up  [i] = step.scratch + layout.up  .offset + row*layout.up  .row;
            x_gate[i] = step.scratch + layout.gate.offset + row*layout.gate.row;
        }
        if (ffn.gate_up) {
            const char * data = weights_of(step, ffn.gate_up, &ostinato_host_expert::gate_up, expert);
            multiply(layout.up, ffn.gate_up, data, ffn.gate_up_b, ffn.up_s, expert, ff0, ff1, x_up, n, gate);
            multiply(layout.up, ffn.gate_up, data, ffn.gate_up_b, ffn.up_s, expert, n_ff + ff0, n_ff + ff1, x_up, n, up);
        } else {
            const char * data = weights_of(step, ffn.up, &ostinato_host_expert::up, expert);
            multiply(layout.up, ffn.up, data, ffn.up_b, ffn.up_s, expert, ff0, ff1, x_up, n, has_gate ? up : gate);
            if (ffn.gate) {
                data = weights_of(step, ffn.gate, &ostinato_host_expert::gate, expert);
                multiply(layout.gate, ffn.gate, data, ffn.gate_b, ffn.gate_s, expert, ff0, ff1, x_gate, n, gate);
            }
        }
        for (int i = 0; i < n; ++i) {
            float g[FF_BLOCK];
            float u[FF_BLOCK];
            float h[FF_BLOCK];
            for (int64_t j = 0; j < ff1 - ff0; ++j) {
                g[j] = gate[j][i];
                u[j] = has_gate ? up[j][i] : 1.0f;
            }
            activate(ffn, g, u, has_gate, h, ff1 - ff0);
            if (layout.is_hidden_direct) {
                char * row = step.scratch + layout.down.offset + (r0 + i)*layout.down.row;
                ostinato_input_columns(layout.down.kernel, h, row, ff0 - first, ff1 - first, n_ff - first);
            } else {
                memcpy((float *) (step.scratch + layout.hidden) + (int64_t) (r0 + i)*n_ff + ff0, h, (ff1 - ff0)*sizeof(float));
            }
        }
    }
}

// A block of output columns of all tokens.
void out_unit(const ostinato_cold_step & step, const scratch_layout & layout, int64_t row0, int64_t row1) {
    const ostinato_expert_ffn & ffn = *step.ffn;
    const int64_t n_out = ffn.n_out();
    const int64_t n_ff  = ffn.n_ff();

    for (int32_t t = 0; t < step.n_tokens; ++t) {
        float * out = step.out + t*n_out;
        for (int64_t row = row0; row < row1; ++row) {
            out[row] = step.gpu ? step.gpu[t*n_out + row] : 0.0f;
        }
    }
    int32_t r = 0;
    for (int32_t group = 0; group < step.n_groups; ++group) {
        const int64_t expert = step.groups[2*group];
        const char * data = weights_of(step, ffn.down, &ostinato_host_expert::down, expert);
        const float scale = scale_of(ffn.down_s, expert);
        const int64_t first = first_column(step, expert);
        data += ggml_row_size(ffn.down->type, first);
        while (r < step.groups[2*group + 1]) {
            const int n = std::min<int32_t>(ROUTES, step.groups[2*group + 1] - r);
            const char * h[ROUTES];
            float * out[ROUTES];
            float weight[ROUTES];
            for (int i = 0; i < n; ++i) {
                const int32_t route = step.cold[r + i];
                h[i]      = step.scratch + layout.down.offset + (r + i)*layout.down.row;
                out[i]    = step.out + (int64_t) (route/step.k)*n_out;
                weight[i] = ffn.weight_before ? 1.0f : step.weights[route];
            }
            for (int64_t row = row0; row < row1; ++row) {
                float dots[ROUTES];
                ostinato_dot_rows(layout.down.kernel, n_ff - first, dots, data + row*ffn.down->nb[1], h, n);
                const float bias = ffn.down_b ? at(ffn.down_b, row, expert) : 0.0f;
                for (int i = 0; i < n; ++i) {
                    out[i][row] += weight[i]*(dots[i]*scale + bias);
                }
            }
            r += n;
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

ostinato_host_expert ostinato_expert_in_tensors(const ostinato_expert_ffn & ffn, int32_t expert) {
    const auto at = [expert](const ggml_tensor * t) { return t ? (const char *) t->data + expert*t->nb[2] : nullptr; };
    return { at(ffn.gate), at(ffn.up), at(ffn.gate_up), at(ffn.down) };
}

size_t ostinato_expert_bytes(const ostinato_expert_ffn & ffn) {
    size_t bytes = 0;
    for (const ggml_tensor * weight : { ffn.gate, ffn.up, ffn.gate_up, ffn.down }) {
        bytes += weight ? weight->nb[2] : 0;
    }
    return bytes;
}

int64_t ostinato_link_step(const ostinato_expert_ffn & ffn) {
    // our kernels take 64 columns at a time
    const ggml_type input = ggml_get_type_traits_cpu(ffn.down->type)->vec_dot_type;
    return std::max<int64_t>({ 64, ggml_blck_size(ffn.down->type), ggml_blck_size(input) });
}

size_t ostinato_cold_scratch_bytes(const ostinato_expert_ffn & ffn, int64_t n_routes, int64_t n_tokens) {
    // a step of few routes keeps hidden rows that one of more routes does without
    return std::max(scratch_layout(ffn, n_routes, n_tokens).total, scratch_layout(ffn, std::min(n_routes, FEW_ROUTES), n_tokens).total);
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
        if (!ggml_get_type_traits_cpu(w->type)->vec_dot || !ggml_get_type_traits_cpu(ggml_get_type_traits_cpu(w->type)->vec_dot_type)->from_float) {
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

bool ostinato_can_stage(const ostinato_expert_ffn & ffn) {
    const bool is_plain = !ffn.gate_b && !ffn.up_b && !ffn.gate_up_b && !ffn.down_b && !ffn.gate_s && !ffn.up_s && !ffn.down_s;
    const bool is_gated = ffn.gate || ffn.gate_up;
    return is_plain && is_gated && !ffn.weight_before && (ffn.act == OSTINATO_ACT_SILU || ffn.act == OSTINATO_ACT_SWIGLU_CLAMP);
}

void ostinato_compute_cold(const ostinato_cold_step & step, int ith, int n_threads) {
    const ostinato_expert_ffn & ffn = *step.ffn;

    const int64_t n_in = ffn.n_in();
    const int64_t n_ff = ffn.n_ff();
    const scratch_layout layout(ffn, step.n_cold, step.n_tokens);

    // 1. inputs in the form the weights' kernels take
    const auto quantise_columns = [&](const float * x, int64_t row, int64_t begin, int64_t end) {
        ostinato_input_columns(layout.up.kernel, x + begin, step.scratch + layout.up.offset + row*layout.up.row, begin, end, n_in);
        if (layout.is_gate_apart) {
            ostinato_input_columns(layout.gate.kernel, x + begin, step.scratch + layout.gate.offset + row*layout.gate.row, begin, end, n_in);
        }
    };
    const auto quantise_input = [&](const float * x, int64_t row) { quantise_columns(x, row, 0, n_in); };
    if (ffn.weight_before) {
        for (int32_t r = ith; r < step.n_cold; r += n_threads) {
            const int32_t route = step.cold[r];
            float * weighted = (float *) (step.scratch + layout.weighted) + (int64_t) r*n_in;
            for (int64_t i = 0; i < n_in; ++i) {
                weighted[i] = step.x[(route/step.k)*n_in + i]*step.weights[route];
            }
            quantise_input(weighted, r);
        }
    } else if (step.n_tokens >= n_threads) {
        for (int32_t t = ith; t < step.n_tokens; t += n_threads) {
            quantise_input(step.x + t*n_in, t);
        }
    } else { // a GPU wrote them: the lines come from memory, one after the other to each thread
        const int64_t n_parts = (n_in + IN_BLOCK - 1)/IN_BLOCK;
        for (int64_t part = ith; part < step.n_tokens*n_parts; part += n_threads) {
            const int64_t begin = part % n_parts*IN_BLOCK;
            quantise_columns(step.x + part/n_parts*n_in, part/n_parts, begin, std::min(n_in, begin + IN_BLOCK));
        }
    }
    barrier(step.team, n_threads);

    // 2. hidden rows
    const int64_t block    = step.n_cold > FEW_ROUTES ? FF_BLOCK : FF_FEW;
    const int32_t n_blocks = (int32_t) ((n_ff + block - 1)/block);
    for (int32_t unit = take_unit(step.team); unit < step.n_groups*n_blocks; unit = take_unit(step.team)) {
        const int64_t ff0 = (unit % n_blocks)*block;
        hidden_unit(step, layout, unit/n_blocks, ff0, std::min(n_ff, ff0 + block));
    }
    barrier(step.team, n_threads);
    if (!layout.is_hidden_direct) {
        const int32_t n_parts = (int32_t) ((n_ff + IN_BLOCK - 1)/IN_BLOCK);
        int32_t group = 0;
        for (int32_t part = ith; part < step.n_cold*n_parts; part += n_threads) {
            const int32_t r = part/n_parts;
            while (step.groups[2*group + 1] <= r) {
                ++group;
            }
            const int64_t first  = first_column(step, step.groups[2*group]);
            const int64_t begin  = part % n_parts*IN_BLOCK;
            const int64_t end    = std::min(n_ff - first, begin + IN_BLOCK);
            const float * hidden = (const float *) (step.scratch + layout.hidden) + (int64_t) r*n_ff + first;
            if (begin < end) {
                ostinato_input_columns(
                    layout.down.kernel, hidden + begin, step.scratch + layout.down.offset + r*layout.down.row, begin, end, n_ff - first);
            }
        }
        barrier(step.team, n_threads);
    }

    // 3. the weighted sum per token
    const int32_t n_out_blocks = (int32_t) ((ffn.n_out() + OUT_BLOCK - 1)/OUT_BLOCK);
    for (int32_t unit = take_unit(step.team); unit < n_out_blocks; unit = take_unit(step.team)) {
        const int64_t row0 = unit*OUT_BLOCK;
        out_unit(step, layout, row0, std::min(ffn.n_out(), row0 + OUT_BLOCK));
    }
}
