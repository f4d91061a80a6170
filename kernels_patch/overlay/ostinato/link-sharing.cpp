// The link's share of cold experts in steps of few tokens (paper 3.4): measuring it, the views through which the GPU reads experts in place, and
// the tables that say which it can read. A part of placement.h.

#include "placement.h"

#include "llama-impl.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <thread>

// Hidden columns that are about so much of an expert, as a row can be cut, and never all.
static int64_t columns_of(const ostinato_expert_ffn & ffn, double percent) {
    const int64_t step = ostinato_link_step(ffn);
    return std::max<int64_t>(0, std::min((int64_t) (percent/100.0*ffn.n_ff()/step + 0.5)*step, ffn.n_ff() - step));
}

// The products of a link's share of some experts, one step after the other, by a thread of its own.
class link_products {
public:
    // With so many experts in a step, which are `places` in turn.
    link_products(ggml_backend_dev_t device, const ostinato_link & link, const std::vector<int32_t> & places, size_t n_together) :
        places(places), n_together(n_together), backend(ggml_backend_dev_init(device, nullptr)),
        ctx(ggml_init({ 16*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true })) {
        const auto tensor = [](const ggml_tensor * t) { return const_cast<ggml_tensor *>(t); };
        const ostinato_expert_ffn & experts = link.experts;
        ggml_tensor * x = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, experts.gate->ne[0], 1, 1);
        ids = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, (int64_t) n_together, 1);
        ggml_tensor * gate   = ggml_mul_mat_id(ctx.get(), tensor(experts.gate), x, ids);
        ggml_tensor * hidden = ggml_swiglu_split(ctx.get(), gate, ggml_mul_mat_id(ctx.get(), tensor(experts.up), x, ids));
        graph = ggml_new_graph(ctx.get());
        ggml_build_forward_expand(graph, ggml_mul_mat_id(ctx.get(), tensor(experts.down), hidden, ids));
        buffer.reset(backend ? ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()) : nullptr);
        if (buffer) {
            ggml_backend_buffer_clear(buffer.get(), 0);
        }
        is_failed.store(!buffer);
        bytes_per_expert = 2*link.columns*experts.gate->nb[1] + experts.down->ne[1]*ggml_row_size(experts.down->type, link.columns);
        thread = std::thread([this] { run(); });
    }

    ~link_products() {
        is_done.store(true);
        thread.join();
    }

    void begin_step() { n_begun.fetch_add(1); }

    void end_step() const {
        while (n_ended.load() != n_begun.load()) {
        }
    }

    // Seconds per byte, launches included, after end_step(); infinity where they fail.
    double seconds() const {
        const uint32_t n = n_ended.load();
        return is_failed.load() || n == 0 ? std::numeric_limits<double>::infinity() : us*1e-6/(n*n_together*bytes_per_expert);
    }

private:
    void run() {
        size_t first = 0;
        while (!is_done.load()) {
            if (n_begun.load() == n_ended.load()) {
                continue;
            }
            const int64_t begin_us = ggml_time_us();
            if (!is_failed.load()) {
                ggml_backend_tensor_set(ids, places.data() + first, 0, n_together*sizeof(int32_t));
                is_failed.store(ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS);
            }
            first = first + 2*n_together <= places.size() ? first + n_together : 0;
            us += ggml_time_us() - begin_us;
            n_ended.fetch_add(1);
        }
    }

    const std::vector<int32_t> & places;
    size_t n_together;
    ggml_backend_ptr backend;
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor * ids   = nullptr;
    ggml_cgraph * graph = nullptr;
    size_t bytes_per_expert = 0;
    int64_t us = 0; // the thread's, until n_ended tells
    std::atomic<bool> is_failed { false };
    std::atomic<bool> is_done { false };
    std::atomic<uint32_t> n_begun { 0 };
    std::atomic<uint32_t> n_ended { 0 };
    std::thread thread; // last: it uses the others
};

// Steps as decode has them, with the CPU branch alone and with the link at several shares: the same experts at the same time on both sides, since what
// one of them finds in the processor's cache the other has read, and what both read comes from the same memory.
void ostinato_placement::measure_sharing(
        group & g, ostinato_speed_kind & kind, size_t i, const ostinato_cold_layer & layer, const std::vector<int32_t> & experts) {
    constexpr size_t DECODE = 2; // cold experts of a layer in a step
    ostinato_cold_workers & team = ostinato_cold_team(limits.n_threads);
    const int64_t n_ff = layer.ffn->n_ff();
    std::set<int64_t> shares;
    for (const int percent : { 12, 25, 37, 50 }) {
        shares.insert(columns_of(*layer.ffn, limits.link_percent != 0 ? limits.link_percent : percent));
    }
    shares.erase(0);
    std::vector<ostinato_shared_step> measured;
    double alone = 0.0;
    for (const int64_t columns : shares) {
        const ggml_context_ptr ctx(ggml_init({ 6*ggml_tensor_overhead(), nullptr, true }));
        const ostinato_link link = make_link(g, i, (int32_t) columns, ctx.get(), g.state.get());
        std::vector<int32_t> ids;
        std::vector<int32_t> places;
        for (const int32_t e : experts) {
            const int32_t place = link.columns > 0 ? place_of(g.layers[i], e, link) : -1;
            if (place >= 0) {
                ids.push_back(e);
                places.push_back(place);
            }
        }
        if (places.size() < DECODE) {
            return;
        }
        alone = measured.empty() ? team.measure(layer, ids, 1, DECODE) : alone;
        link_products products(g.device, link, places, DECODE);
        const double seconds = team.measure(layer, ids, 1, DECODE, { (int32_t) columns, [&] { products.begin_step(); }, [&] { products.end_step(); } });
        const double in_place = products.seconds();
        measured.push_back({ columns, std::isinf(in_place) ? in_place : seconds, in_place }); // a share that fails ends never
    }
    const ostinato_shared_step * chosen = ostinato_choose_shared_step(measured, limits.link_percent > 0 ? std::numeric_limits<double>::infinity() : alone);
    if (chosen) {
        kind.link_percent    = 100.0*chosen->columns/n_ff;
        kind.speeds.in_place = chosen->in_place;
    }
    std::string told;
    for (const ostinato_shared_step & shared : measured) {
        told += format(", %.1f with %lld of %lld columns in place", 1e-9/shared.seconds, (long long) shared.columns, (long long) n_ff);
    }
    LLAMA_LOG_INFO("%s: %s: decode steps with %s at %.1f GB/s by the CPU alone%s\n", __func__, ggml_backend_dev_name(g.device),
        ostinato_type_names(kind.types).c_str(), alone > 0.0 ? 1e-9/alone : 0.0, told.c_str());
}

// Hidden columns that the link gets of the group's layer.
int32_t ostinato_placement::link_columns(const group & g, size_t i) const {
    const double percent = limits.link_percent != 0 ? limits.link_percent : g.kinds[g.kind_in_group[i]].link_percent;
    return (int32_t) columns_of(*layers[g.layers[i]].ffn, percent);
}

// Views of the layer's experts where they are in host memory, `columns` hidden columns wide. Without columns where no kernel takes them.
ostinato_link ostinato_placement::make_link(const group & g, size_t i, int32_t columns, ggml_context * ctx, ggml_backend_buffer_t buffer) const {
    const ostinato_expert_ffn & ffn = *layers[g.layers[i]].ffn;
    const int kind = kind_of[g.layers[i]];
    char * place   = kind >= 0 ? arena->base(kind) : nullptr;
    const bool has_kernels = g.is_skipping[i] && (ffn.gate || ffn.gate_up) && ffn.n_ff() % ostinato_link_step(ffn) == 0;
    ostinato_link link;
    if (columns == 0 || !has_kernels || (!place && !ostinato_is_page_locked(ffn.down))) {
        return link;
    }
    const ostinato_record record(ffn);
    // so many rows of columns of a weight, of every expert, where the weight is in a place or the loader put it
    const auto view = [&](const ggml_tensor * ostinato_expert_ffn::* member, int64_t n_columns, int64_t first_row, int64_t n_rows) {
        const ggml_tensor * weight = ffn.*member;
        const size_t w = std::find_if(std::begin(ostinato_record_weights), std::end(ostinato_record_weights),
            [&](const ostinato_record_weight & at) { return at.member == member; }) - std::begin(ostinato_record_weights);
        ggml_tensor * t = ggml_new_tensor_3d(ctx, weight->type, n_columns, n_rows, 1 << 20); // as many as ids name
        ggml_format_name(t, "%s (link)", weight->name);
        t->nb[1]  = weight->nb[1];
        t->nb[2]  = kind >= 0 ? record.stride : weight->nb[2];
        t->nb[3]  = t->nb[2]*t->ne[2];
        t->buffer = buffer;
        t->data   = (kind >= 0 ? record.at(place, 0, w) : (char *) weight->data) + first_row*weight->nb[1];
        return t;
    };
    // the same rows of a bias
    const auto bias = [&](const ggml_tensor * ostinato_expert_ffn::* member, int64_t first_row) -> ggml_tensor * {
        ggml_tensor * all = g.biases.empty() ? nullptr : const_cast<ggml_tensor *>(g.biases[i].*member);
        return all ? ggml_view_2d(ctx, all, columns, all->ne[1], all->nb[1], first_row*all->nb[0]) : nullptr;
    };
    using member = ostinato_expert_ffn;
    if (ffn.gate_up) {
        link.experts.gate   = view(&member::gate_up, ffn.n_in(), 0, columns);
        link.experts.up     = view(&member::gate_up, ffn.n_in(), ffn.n_ff(), columns);
        link.experts.gate_b = bias(&member::gate_up_b, 0);
        link.experts.up_b   = bias(&member::gate_up_b, ffn.n_ff());
    } else {
        link.experts.gate   = view(&member::gate, ffn.n_in(), 0, columns);
        link.experts.up     = view(&member::up, ffn.n_in(), 0, columns);
        link.experts.gate_b = bias(&member::gate_b, 0);
        link.experts.up_b   = bias(&member::up_b, 0);
    }
    link.experts.down = view(&member::down, columns, 0, ffn.n_out()); // its bias is the CPU branch's to add
    link.columns = columns;
    return link;
}

void ostinato_placement::add_links(group & g) {
    size_t bytes = 0;
    for (const size_t i : g.layers) {
        bytes += (layers[i].n_experts*sizeof(int32_t) + 255)/256*256;
    }
    g.link_buffer.reset(ggml_backend_buft_alloc_buffer(g.memory.buft, bytes));
    if (!g.link_buffer) {
        return; // the CPU branch computes everything
    }
    ggml_backend_buffer_set_usage(g.link_buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    g.link_ctx.reset(ggml_init({ 6*g.layers.size()*ggml_tensor_overhead(), nullptr, true }));
    char * table = (char *) ggml_backend_buffer_get_base(g.link_buffer.get());
    for (size_t i = 0; i < g.layers.size(); ++i) {
        const ostinato_placed_layer & layer = layers[g.layers[i]];
        ostinato_link & link = g.links.emplace_back(make_link(g, i, link_columns(g, i), g.link_ctx.get(), g.link_buffer.get()));
        if (link.columns == 0) {
            continue;
        }
        link.table = ggml_new_tensor_1d(g.link_ctx.get(), GGML_TYPE_I32, layer.n_experts);
        link.table->buffer = g.link_buffer.get();
        link.table->data   = table;
        table += (layer.n_experts*sizeof(int32_t) + 255)/256*256;
    }
}

// The id of an expert in its layer's link, -1 where the GPU cannot read it. Kernels count blocks in 32 bits.
int32_t ostinato_placement::place_of(size_t layer, int32_t expert, const ostinato_link & link) const {
    const int kind = kind_of[layer];
    int64_t place  = expert;
    if (kind >= 0) {
        place = places[layer][expert] ? (places[layer][expert] - arena->base(kind))/(int64_t) link.experts.down->nb[2] : -1;
    }
    size_t stride_blocks = 0;
    for (const ggml_tensor * t : { link.experts.gate, link.experts.up, link.experts.down }) {
        stride_blocks = std::max(stride_blocks, t->nb[2]/ggml_type_size(t->type));
    }
    return (place + 1)*(int64_t) stride_blocks <= std::numeric_limits<int32_t>::max() ? (int32_t) place : -1;
}

void ostinato_placement::write_link_tables(group & g) {
    for (size_t i = 0; i < g.links.size(); ++i) {
        const ostinato_link & link = g.links[i];
        if (link.columns == 0) {
            continue;
        }
        const size_t layer = g.layers[i];
        std::vector<int32_t> table;
        for (int32_t e = 0; e < layers[layer].n_experts; ++e) {
            table.push_back(place_of(layer, e, link));
            linked[layer][e] = table.back() >= 0;
        }
        g.memory.copy(link.table->data, table.data(), table.size()*sizeof(int32_t));
    }
}

const ostinato_link * ostinato_placement::link(size_t layer, int64_t n_tokens) const {
    const group & g = *groups[group_of[layer]];
    if (g.links.empty() || n_tokens > limits.link_tokens || staging(layer, n_tokens)) {
        return nullptr;
    }
    const ostinato_link & link = g.links[index_in_group[layer]];
    return link.columns > 0 ? &link : nullptr;
}

