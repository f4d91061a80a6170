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
static constexpr int     ROUTES    = OSTINATO_TILE_INPUTS; // routes that share one reading of a weight row
static constexpr size_t  AHEAD     = 4096; // bytes that a thread's next rows are asked for before they are read

namespace {

size_t align64(size_t n) {
    return (n + 63) & ~(size_t) 63;
}

// Input rows of one weight in the scratch memory.
struct input_rows {
    ostinato_row_kernel kernel;
    int64_t columns;
    size_t row    = 0; // bytes
    size_t offset = 0;

    input_rows(const ggml_tensor * weight) :
        kernel(ostinato_find_row_kernel(weight->type, weight->ne[0])), columns(weight->ne[0]), row(ostinato_input_row_bytes(kernel, weight->ne[0])) {}
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

// Units of work as one thread takes them, each known while the one before it is computed, so that its first rows are asked for in time. In a step
// of few routes, where memory is all that counts, a run of neighbouring units of its own comes first: memory is fastest in long runs. What is left
// is shared out one by one, so that all threads end together.
class unit_queue {
public:
    unit_queue(ostinato_team * team, int ith, int n_threads, int32_t n, bool has_runs) :
        team(team), n(n), own(has_runs ? n*3/5/n_threads : 0), at(ith*own), end(at + own), n_owned(own*n_threads) {}

    // The first unit, as far as it is known before the team has met: n for none.
    int32_t first() const { return own > 0 ? at : n; }

    // To be called when the team has met.
    void begin() {
        current  = take();
        upcoming = take();
    }

    void advance() {
        current  = upcoming;
        upcoming = take();
    }

    int32_t current  = 0; // n or more: there is none
    int32_t upcoming = 0;

    bool is_done() const { return current >= n; }

private:
    int32_t take() { return at < end ? at++ : n_owned + __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED); }

    ostinato_team * team;
    int32_t n;
    int32_t own;
    int32_t at;
    int32_t end;
    int32_t n_owned;
};

// Rows begin .. end - 1 of a weight, which one thread reads one after the other, and where it reads on after them.
struct row_run {
    const char * data;
    int64_t row_bytes;
    int64_t end;
    const char * next; // nullptr: nowhere

    const char * at(int64_t row) const { return data + row*row_bytes; }

    const char * ahead_of(int64_t row) const { return later(row + rows_ahead(row_bytes)); }
    const char * ahead_of_tile(int64_t row) const { return later(row + OSTINATO_TILE); }

    // The row that is read in the target's turn.
    const char * later(int64_t target) const { return target < end || !next ? at(std::min(target, end - 1)) : next + (target - end)*row_bytes; }

    static int64_t rows_ahead(int64_t row_bytes) { return ((int64_t) AHEAD + row_bytes - 1)/row_bytes; }
};

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

// Tokens whose rows are read and written.
int32_t n_rows_of(const ostinato_cold_step & step) {
    return step.tokens ? step.n_listed : step.n_tokens;
}

int32_t token_of(const ostinato_cold_step & step, int32_t i) {
    return step.tokens ? step.tokens[i] : i;
}

// Rows row0 .. row1 - 1 of a run with up to ROUTES inputs: results[row - row0][input].
void multiply(
        const ostinato_row_kernel & kernel, int64_t columns, const row_run & run, int64_t row0, int64_t row1, const char * const * x, int n_x,
        float (*results)[ROUTES]) {
    int64_t row = row0;
    if (kernel.tile && n_x >= kernel.tile_from) {
        for (; row + OSTINATO_TILE <= row1; row += OSTINATO_TILE) {
            ostinato_dot_tile(kernel, columns, results + (row - row0), run.at(row), run.row_bytes, run.ahead_of_tile(row), x, n_x);
        }
    }
    for (; row < row1; ++row) {
        ostinato_dot_rows(kernel, columns, results[row - row0], run.at(row), run.ahead_of(row), x, n_x);
    }
}

// Hidden columns ff0 .. ff1 - 1 of one expert's routes.
struct hidden_unit {
    int32_t group;
    int64_t expert;
    int64_t ff0;
    int64_t ff1;
};

// How a step's hidden columns are cut into units.
struct hidden_units {
    const ostinato_cold_step & step;
    int64_t block;
    int64_t first; // columns before it are computed by nobody here
    int32_t n_blocks;

    hidden_units(const ostinato_cold_step & step, int64_t block) : step(step), block(block), first(step.ffn->n_ff()) {
        for (int32_t group = 0; group < step.n_groups; ++group) {
            first = std::min(first, first_column(step, step.groups[2*group]));
        }
        n_blocks = (int32_t) ((step.ffn->n_ff() - first + block - 1)/block);
    }

    int32_t count() const { return step.n_groups*n_blocks; }

    hidden_unit at(int32_t unit) const {
        const int32_t group = unit/n_blocks;
        const int64_t ff0   = first + unit % n_blocks*block;
        return { group, step.groups[2*group], ff0, std::min(step.ffn->n_ff(), ff0 + block) };
    }
};

// One of the products that hidden columns come from.
struct hidden_product {
    const ggml_tensor * weight;
    const char * ostinato_host_expert::* member;
    const ggml_tensor * bias;
    const ggml_tensor * scales;
    const input_rows & in;
    int64_t first_row; // of hidden column 0

    const char * row(const ostinato_cold_step & step, const hidden_unit & unit) const {
        return weights_of(step, weight, member, unit.expert) + (first_row + unit.ff0)*weight->nb[1];
    }

    row_run run(const ostinato_cold_step & step, const hidden_unit & unit, const hidden_unit * next) const {
        return {
            weights_of(step, weight, member, unit.expert), (int64_t) weight->nb[1], first_row + unit.ff1, next ? row(step, *next) : nullptr,
        };
    }
};

// gate's, or up's where there is no gate
hidden_product first_product(const ostinato_expert_ffn & ffn, const scratch_layout & layout) {
    if (ffn.gate_up) {
        return { ffn.gate_up, &ostinato_host_expert::gate_up, ffn.gate_up_b, ffn.up_s, layout.up, 0 };
    }
    if (ffn.gate) {
        return { ffn.gate, &ostinato_host_expert::gate, ffn.gate_b, ffn.gate_s, layout.gate, 0 };
    }
    return { ffn.up, &ostinato_host_expert::up, ffn.up_b, ffn.up_s, layout.up, 0 };
}

// up's, where there is a gate
hidden_product second_product(const ostinato_expert_ffn & ffn, const scratch_layout & layout) {
    if (ffn.gate_up) {
        return { ffn.gate_up, &ostinato_host_expert::gate_up, ffn.gate_up_b, ffn.up_s, layout.up, ffn.n_ff() };
    }
    return { ffn.up, &ostinato_host_expert::up, ffn.up_b, ffn.up_s, layout.up, 0 };
}

// Whether an expert of the step has so many routes that its rows of gate and up are taken 16 at once.
bool takes_tiles(const ostinato_cold_step & step, const scratch_layout & layout) {
    const ostinato_row_kernel & kernel = layout.up.kernel;
    int32_t most = 0;
    for (int32_t group = 0; group < step.n_groups; ++group) {
        most = std::max(most, step.groups[2*group + 1] - (group == 0 ? 0 : step.groups[2*group - 1]));
    }
    return kernel.tile && most >= kernel.tile_from;
}

void compute_hidden(const ostinato_cold_step & step, const scratch_layout & layout, const hidden_unit & unit, const hidden_unit * next) {
    const ostinato_expert_ffn & ffn = *step.ffn;

    const int32_t begin = unit.group == 0 ? 0 : step.groups[2*unit.group - 1];
    const int32_t end   = step.groups[2*unit.group + 1];
    const int64_t n_ff  = ffn.n_ff();
    const int64_t first = first_column(step, unit.expert);
    const bool has_gate = ffn.gate || ffn.gate_up;
    if (unit.ff0 < first) {
        return;
    }
    const hidden_product products[] = { first_product(ffn, layout), second_product(ffn, layout) };
    const int n_products = has_gate ? 2 : 1;

    float results[2][FF_BLOCK][ROUTES];
    for (int32_t r0 = begin; r0 < end; r0 += ROUTES) {
        const int n = std::min<int32_t>(ROUTES, end - r0);
        row_run runs[2];
        const char * x[2][ROUTES];
        for (int p = 0; p < n_products; ++p) {
            runs[p] = products[p].run(step, unit, next);
            for (int i = 0; i < n; ++i) {
                const int64_t row = ffn.weight_before ? r0 + i : step.cold[r0 + i]/step.k;
                x[p][i] = step.scratch + products[p].in.offset + row*products[p].in.row;
            }
        }
        // few rows of each in turn: two long runs are read beside each other
        const int64_t turn = n >= products[0].in.kernel.tile_from ? OSTINATO_TILE : 1;
        for (int64_t ff = unit.ff0; ff < unit.ff1; ff += turn) {
            const int64_t end_ff = std::min(unit.ff1, ff + turn);
            for (int p = 0; p < n_products; ++p) {
                const hidden_product & product = products[p];
                float (*to)[ROUTES] = results[p] + (ff - unit.ff0);
                multiply(product.in.kernel, product.in.columns, runs[p], product.first_row + ff, product.first_row + end_ff, x[p], n, to);
                for (int64_t row = ff; row < end_ff && (product.bias || product.scales); ++row) {
                    const float bias  = product.bias ? at(product.bias, product.first_row + row, unit.expert) : 0.0f;
                    const float scale = scale_of(product.scales, unit.expert);
                    for (int i = 0; i < n; ++i) {
                        to[row - ff][i] = to[row - ff][i]*scale + bias;
                    }
                }
            }
        }
        for (int i = 0; i < n; ++i) {
            float g[FF_BLOCK];
            float u[FF_BLOCK];
            float h[FF_BLOCK];
            for (int64_t j = 0; j < unit.ff1 - unit.ff0; ++j) {
                g[j] = results[0][j][i];
                u[j] = has_gate ? results[1][j][i] : 1.0f;
            }
            activate(ffn, g, u, has_gate, h, unit.ff1 - unit.ff0);
            if (layout.is_hidden_direct) {
                char * row = step.scratch + layout.down.offset + (r0 + i)*layout.down.row;
                ostinato_input_columns(layout.down.kernel, h, row, unit.ff0 - first, unit.ff1 - first, n_ff - first);
            } else {
                memcpy((float *) (step.scratch + layout.hidden) + (int64_t) (r0 + i)*n_ff + unit.ff0, h, (unit.ff1 - unit.ff0)*sizeof(float));
            }
        }
    }
}

// The rows of down that an output block reads of a group's expert, from its first hidden column on.
const char * down_rows(const ostinato_cold_step & step, int32_t group, int64_t row0) {
    const ggml_tensor * down = step.ffn->down;
    const int64_t expert = step.groups[2*group];
    return weights_of(step, down, &ostinato_host_expert::down, expert) + ggml_row_size(down->type, first_column(step, expert)) + row0*down->nb[1];
}

// Output columns row0 .. row1 - 1 of all tokens. The thread's next block begins at row `next`, or there is none.
void compute_out(const ostinato_cold_step & step, const scratch_layout & layout, int64_t row0, int64_t row1, int64_t next) {
    const ostinato_expert_ffn & ffn = *step.ffn;
    const int64_t n_out = ffn.n_out();
    const int64_t n_ff  = ffn.n_ff();

    for (int32_t i = 0; i < n_rows_of(step); ++i) {
        const int32_t t = token_of(step, i);
        float * out = step.out + t*n_out;
        for (int64_t row = row0; row < row1; ++row) {
            out[row] = step.gpu ? step.gpu[t*n_out + row] : 0.0f;
        }
    }
    int32_t r = 0;
    for (int32_t group = 0; group < step.n_groups; ++group) {
        const int64_t expert  = step.groups[2*group];
        const float scale     = scale_of(ffn.down_s, expert);
        const int64_t first   = first_column(step, expert);
        const char * follower = group + 1 < step.n_groups ? down_rows(step, group + 1, row0) : next < n_out ? down_rows(step, 0, next) : nullptr;
        const row_run run     = { down_rows(step, group, row0), (int64_t) ffn.down->nb[1], row1 - row0, follower };
        float biases[OUT_BLOCK] = {};
        for (int64_t row = row0; row < row1 && ffn.down_b; ++row) {
            biases[row - row0] = at(ffn.down_b, row, expert);
        }
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
            float dots[OUT_BLOCK][ROUTES];
            multiply(layout.down.kernel, n_ff - first, run, 0, row1 - row0, h, n, dots);
            for (int i = 0; i < n; ++i) { // a token's neighbouring columns, one cache line
                float * to = out[i] + row0;
                for (int64_t row = 0; row < row1 - row0; ++row) {
                    to[row] += weight[i]*(dots[row][i]*scale + biases[row]);
                }
            }
            r += n;
        }
    }
}

// Asks for the first rows of a run that a thread reads when the team has met.
void prefetch_rows(const char * data, const ggml_tensor * weight, size_t bytes) {
    for (int64_t row = 0; row < row_run::rows_ahead(weight->nb[1]); ++row) {
        ostinato_prefetch(data + row*weight->nb[1], bytes);
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
    switch (ffn.act) {
        case OSTINATO_ACT_SILU:
        case OSTINATO_ACT_SWIGLU_CLAMP:
        case OSTINATO_ACT_SWIGLU_OAI:
        case OSTINATO_ACT_GELU:
        case OSTINATO_ACT_RELU:
            return (ffn.gate || ffn.gate_up) && !ffn.gate_s && !ffn.up_s && !ffn.down_s && !ffn.weight_before;
        default:
            return false;
    }
}

void ostinato_compute_cold(const ostinato_cold_step & step, int ith, int n_threads) {
    const ostinato_expert_ffn & ffn = *step.ffn;

    const int64_t n_in = ffn.n_in();
    const int64_t n_ff = ffn.n_ff();
    const scratch_layout layout(ffn, step.n_cold, step.n_tokens);

    const bool has_few = step.n_cold <= FEW_ROUTES;
    const hidden_units units(step, !has_few ? FF_BLOCK : takes_tiles(step, layout) ? OSTINATO_TILE : FF_FEW);
    unit_queue hidden(step.team, ith, n_threads, units.count(), has_few);
    if (hidden.first() < units.count()) {
        const hidden_unit unit = units.at(hidden.first());
        for (const hidden_product & product : { first_product(ffn, layout), second_product(ffn, layout) }) {
            prefetch_rows(product.row(step, unit), product.weight, product.weight->nb[1]);
        }
    }

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
    } else if (n_rows_of(step) >= n_threads) {
        for (int32_t i = ith; i < n_rows_of(step); i += n_threads) {
            quantise_input(step.x + token_of(step, i)*n_in, token_of(step, i));
        }
    } else { // a GPU wrote them: the lines come from memory, one after the other to each thread
        const int64_t n_parts = (n_in + IN_BLOCK - 1)/IN_BLOCK;
        for (int64_t part = ith; part < n_rows_of(step)*n_parts; part += n_threads) {
            const int64_t begin = part % n_parts*IN_BLOCK;
            const int32_t t     = token_of(step, (int32_t) (part/n_parts));
            quantise_columns(step.x + t*n_in, t, begin, std::min(n_in, begin + IN_BLOCK));
        }
    }
    barrier(step.team, n_threads);

    // 2. hidden rows
    for (hidden.begin(); !hidden.is_done(); hidden.advance()) {
        const hidden_unit next = hidden.upcoming < units.count() ? units.at(hidden.upcoming) : hidden_unit {};
        compute_hidden(step, layout, units.at(hidden.current), hidden.upcoming < units.count() ? &next : nullptr);
    }
    const int64_t n_out = ffn.n_out();
    const int32_t n_out_blocks = (int32_t) ((n_out + OUT_BLOCK - 1)/OUT_BLOCK);
    unit_queue out(step.team, ith, n_threads, n_out_blocks, has_few);
    if (step.n_groups > 0 && out.first() < n_out_blocks) {
        const int64_t n_columns = n_ff - first_column(step, step.groups[0]);
        prefetch_rows(down_rows(step, 0, out.first()*OUT_BLOCK), ffn.down, ggml_row_size(ffn.down->type, n_columns));
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
    for (out.begin(); !out.is_done(); out.advance()) {
        const int64_t row0 = out.current*OUT_BLOCK;
        compute_out(step, layout, row0, std::min(n_out, row0 + OUT_BLOCK), out.upcoming*OUT_BLOCK);
    }
}
