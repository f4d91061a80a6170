// Implementation of placement.h.

#include "placement.h"

#include "ops.h"
#include "ostinato.h"

#include "llama-impl.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <numeric>
#include <stdexcept>

using hot_sets = ostinato_expert_pool::hot_sets;

static const ostinato_cuda_functions * cuda_functions(ggml_backend_dev_t device) {
    if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        return nullptr;
    }
    return (const ostinato_cuda_functions *) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), OSTINATO_CUDA_FUNCTIONS);
}

// ggml names its CUDA devices CUDA0, CUDA1, …
static int device_number(ggml_backend_dev_t device) {
    const char * name = ggml_backend_dev_name(device);
    return atoi(name + strcspn(name, "0123456789"));
}

bool ostinato_is_page_locked(const ggml_tensor * t) {
    return t && t->buffer && strstr(ggml_backend_buffer_name(t->buffer), "_Host") != nullptr;
}

// Whether the kernels of all weights leave out routes of a skipped expert.
static bool skips_routes(const ostinato_pool_memory & memory, const ostinato_expert_ffn & ffn, int32_t n_experts) {
    return memory.cuda && std::all_of(std::begin(ostinato_record_weights), std::end(ostinato_record_weights), [&](const ostinato_record_weight & w) {
        const ggml_tensor * weight = ffn.*w.member;
        return !weight || memory.cuda->skips_routes(memory.device, weight->type, n_experts);
    });
}

static bool has_modifiers(const ostinato_expert_ffn & ffn) {
    return ffn.gate_b || ffn.up_b || ffn.gate_up_b || ffn.down_b || ffn.gate_s || ffn.up_s || ffn.down_s;
}

ostinato_placement::ostinato_placement(std::vector<ostinato_placed_layer> sources, const ostinato_limits & limits) :
    layers(std::move(sources)), limits(limits), group_of(layers.size()), index_in_group(layers.size()) {
    for (size_t i = 0; i < layers.size(); ++i) {
        const ostinato_placed_layer & layer = layers[i];
        const std::string where = "layer " + std::to_string(layer.il);
        const char * reason = nullptr;
        if (!ostinato_cold_supported(*layer.ffn, &reason)) {
            throw std::runtime_error(where + ": " + reason + "; experts stay plain in host memory with --cpu-moe --no-repack");
        }
        std::vector<ostinato_host_expert> & experts = host.emplace_back(layer.n_experts);
        for (int32_t e = 0; e < layer.n_experts; ++e) {
            experts[e] = ostinato_expert_in_tensors(*layer.ffn, e);
        }
        places.emplace_back(layer.n_experts, nullptr);
        pinned.emplace_back(layer.n_experts, ostinato_is_page_locked(layer.ffn->down));
        linked.emplace_back(layer.n_experts, 0);
    }
    for (size_t i = 0; i < layers.size(); ++i) {
        size_t g = 0;
        while (g < groups.size() && groups[g]->device != layers[i].device) {
            ++g;
        }
        if (g == groups.size()) {
            add_group(layers[i].device);
        }
        group & target = *groups[g];
        group_of[i]       = g;
        index_in_group[i] = (int32_t) target.layers.size();
        target.layers.push_back(i);
        const bool is_skipping = skips_routes(target.memory, *layers[i].ffn, layers[i].n_experts);
        target.is_skipping.push_back(is_skipping);
        // biases and scales are added by kernels of their own, which take any id
        target.pool_layers.push_back({ layers[i].ffn, layers[i].n_experts, is_skipping && !has_modifiers(*layers[i].ffn) ? 0 : layers[i].k });
        ostinato_cold_layer cold = { layers[i].cold, host[i].data(), layers[i].n_experts };
        cold.pinned = pinned[i].data();
        cold.linked = linked[i].data();
        target.client.layers.push_back(cold);
        target.client.uploads.add_layer(layers[i].n_experts);
    }
    add_kinds();
    for (auto & g : groups) {
        std::vector<const ostinato_expert_ffn *> ffns;
        for (const size_t i : g->layers) {
            ffns.push_back(layers[i].ffn);
        }
        g->kinds = ostinato_speed_kinds(ffns);
        g->kind_in_group = ostinato_record_kinds(ffns);
        const hot_sets none(g->layers.size());
        // places are lent from the beginning, so that contexts reserve memory for the products over them
        g->pool = std::make_unique<ostinato_expert_pool>(
            g->pool_layers, g->memory, ostinato_expert_pool::bytes_for(g->pool_layers, none, g->memory),
            g->is_gpu() && may_stage() ? ostinato_expert_pool::least_lent(g->pool_layers) : 0);
        if (g->is_gpu()) {
            add_biases(*g);
            connect_staging(*g);
            ostinato_cold_team(limits.n_threads).add(&g->client);
        }
    }
}

// Layers whose experts have the same weights share a kind of places.
void ostinato_placement::add_kinds() {
    kind_of.assign(layers.size(), -1);
    std::vector<size_t> with_places;
    std::vector<const ostinato_expert_ffn *> ffns;
    for (size_t i = 0; i < layers.size(); ++i) {
        if (groups[group_of[i]]->is_gpu() && !ostinato_is_page_locked(layers[i].ffn->down)) {
            with_places.push_back(i);
            ffns.push_back(layers[i].ffn);
        }
    }
    const std::vector<size_t> kinds = ostinato_record_kinds(ffns);
    std::vector<size_t> n_experts; // by kind
    for (size_t n = 0; n < kinds.size(); ++n) {
        n_experts.resize(std::max(n_experts.size(), kinds[n] + 1));
        n_experts[kinds[n]] += layers[with_places[n]].n_experts;
    }
    for (size_t n = 0; n < kinds.size(); ++n) {
        int & kind = kind_of[with_places[n]];
        const size_t first = std::find(kinds.begin(), kinds.end(), kinds[n]) - kinds.begin();
        kind = first == n ? arena->add_kind(ostinato_record(*ffns[n]).stride, n_experts[kinds[n]]) : kind_of[with_places[first]];
    }
}

void ostinato_placement::add_group(ggml_backend_dev_t device) {
    auto g = std::make_unique<group>(limits.upload);
    g->device        = device;
    g->memory.buft   = ggml_backend_dev_buffer_type(device);
    g->memory.cuda   = cuda_functions(device);
    g->memory.device = g->memory.cuda ? device_number(device) : 0;
    if (g->is_gpu()) {
        int32_t n_experts = 0;
        for (const ostinato_placed_layer & layer : layers) {
            n_experts = std::max(n_experts, layer.n_experts);
        }
        constexpr size_t STATE_BYTES = 256;
        const ostinato_cuda_functions & cuda = *g->memory.cuda;
        ostinato_mailbox & m = g->mailbox;
        m.n_experts     = n_experts;
        m.request       = (ostinato_request *) cuda.allocate_host(sizeof(ostinato_request));
        m.decided_slots = (int32_t *) cuda.allocate_host(n_experts*sizeof(int32_t));
        m.copies        = (ostinato_copy *) cuda.allocate_host(5*n_experts*sizeof(ostinato_copy));
        m.stream        = cuda.make_stream(g->memory.device);
        m.forked        = cuda.make_event(g->memory.device);
        m.joined        = cuda.make_event(g->memory.device);
        g->state.reset(ggml_backend_buft_alloc_buffer(g->memory.buft, STATE_BYTES + n_experts*(sizeof(ostinato_copy) + sizeof(int32_t))));
        if (!g->state || !m.request || !m.decided_slots || !m.copies || !m.stream || !m.forked || !m.joined) {
            throw std::bad_alloc();
        }
        m.prefetched   = (ostinato_copy *) ((char *) ggml_backend_buffer_get_base(g->state.get()) + STATE_BYTES);
        m.staged_slots = (int32_t *) (m.prefetched + n_experts);
        ggml_backend_buffer_clear(g->state.get(), 0);
        memset(g->mailbox.request, 0, sizeof(ostinato_request));
        g->mailbox.state      = (ostinato_mailbox_state *) ggml_backend_buffer_get_base(g->state.get());
        g->mailbox.timeout_ns = limits.timeout_ns;
        g->mailbox.copy_blocks = limits.copy_blocks;
        g->client.mailbox     = &g->mailbox;
        if (!arena) {
            arena = std::make_unique<ostinato_host_arena>(g->memory.cuda, limits.pin_bytes);
        }
    }
    groups.push_back(std::move(g));
}

ostinato_placement::~ostinato_placement() {
    for (auto & g : groups) {
        if (g->is_gpu()) {
            g->memory.cuda->synchronize(g->memory.device);
            ostinato_cold_team(limits.n_threads).remove(&g->client);
            free_mailbox(*g);
            g->memory.cuda->free_host(g->mailbox.request);
            g->memory.cuda->free_host(g->mailbox.decided_slots);
            g->memory.cuda->free_host(g->mailbox.copies);
            g->memory.cuda->free_stream(g->memory.device, g->mailbox.stream);
            g->memory.cuda->free_event(g->memory.device, g->mailbox.forked);
            g->memory.cuda->free_event(g->memory.device, g->mailbox.joined);
        }
    }
}

void ostinato_placement::free_mailbox(group & g) {
    for (void * data : { (void *) g.mailbox.cold, (void *) g.mailbox.weights, (void *) g.mailbox.x, (void *) g.mailbox.out, (void *) g.mailbox.answered }) {
        if (data) {
            g.memory.cuda->free_host(data);
        }
    }
    g.mailbox.cold = nullptr;
    g.mailbox.weights = g.mailbox.x = g.mailbox.out = nullptr;
    g.mailbox.answered = g.mailbox.cold_tokens = nullptr;
    g.token_state.reset();
    g.mailbox.max_routes = g.mailbox.max_inputs = g.mailbox.max_outputs = 0;
}

// Contexts build their largest graphs first, so a mailbox grows before any pass computes and not again.
void ostinato_placement::reserve(int64_t n_tokens) {
    for (auto & g : groups) {
        if (!g->is_gpu()) {
            continue;
        }
        int64_t routes = 0;
        int64_t inputs = 0;
        int64_t outputs = 0;
        for (const size_t i : g->layers) {
            routes  = std::max(routes,  n_tokens*layers[i].k);
            inputs  = std::max(inputs,  n_tokens*layers[i].ffn->n_in());
            outputs = std::max(outputs, n_tokens*layers[i].ffn->n_out());
        }
        ostinato_mailbox & m = g->mailbox;
        if (routes <= m.max_routes && inputs <= m.max_inputs && outputs <= m.max_outputs) {
            continue;
        }
        g->memory.cuda->synchronize(g->memory.device);
        free_mailbox(*g);
        m.cold    = (int32_t *) g->memory.cuda->allocate_host(routes*2*sizeof(int32_t));
        m.weights = (float *) g->memory.cuda->allocate_host(routes*sizeof(float));
        m.x       = (float *) g->memory.cuda->allocate_host(inputs*sizeof(float));
        m.out     = (float *) g->memory.cuda->allocate_host(outputs*sizeof(float));
        m.answered = (uint32_t *) g->memory.cuda->allocate_host(n_tokens*sizeof(uint32_t));
        g->token_state.reset(ggml_backend_buft_alloc_buffer(g->memory.buft, n_tokens*sizeof(uint32_t)));
        if (!m.cold || !m.weights || !m.x || !m.out || !m.answered || !g->token_state) {
            GGML_ABORT("no page-locked memory for the hand-over of %lld tokens", (long long) n_tokens);
        }
        memset(m.answered, 0, n_tokens*sizeof(uint32_t)); // no step has the number 0
        ggml_backend_buffer_clear(g->token_state.get(), 0);
        m.cold_tokens = (uint32_t *) ggml_backend_buffer_get_base(g->token_state.get());
        for (const size_t i : g->layers) {
            ostinato_cold_team(limits.n_threads).reserve(*layers[i].ffn, n_tokens*layers[i].k, n_tokens);
        }
        m.max_routes  = routes;
        m.max_inputs  = inputs;
        m.max_outputs = outputs;
        m.generation++;
    }
}

hot_sets ostinato_placement::part_of(const group & g, const hot_sets & hot) const {
    hot_sets part;
    for (const size_t i : g.layers) {
        part.push_back(hot[i]);
    }
    return part;
}

void ostinato_placement::begin_pass(int64_t n_tokens) {
    check_answers();
    if (arena) {
        ostinato_cold_team(limits.n_threads).wake();
    }
    const bool was_idle = is_idle.exchange(false);
    for (const auto & g : groups) {
        try {
            announce(*g, n_tokens, was_idle);
        } catch (const std::exception & err) {
            GGML_ABORT("%s: the index tables could not be changed: %s", ggml_backend_dev_name(g->device), err.what());
        }
    }
}

// True where passes of so many tokens use borrowed memory. None stages uploads in it too.
bool ostinato_placement::is_borrowing(const group & g, int64_t n_tokens) const {
    return g.borrower && n_tokens <= limits.borrow_tokens && n_tokens < limits.upload.choice_tokens;
}

// Tells the borrower what the pass will do with lent memory.
void ostinato_placement::announce(group & g, int64_t n_tokens, bool was_idle) {
    if (is_borrowing(g, n_tokens)) {
        g.client.uploads.forget();
        g.borrower->begin_decode(was_idle);
    } else if (g.borrower && n_tokens >= limits.upload.choice_tokens) {
        // Room for more experts than passes of this size staged in a layer so far: the next power of two, since a prompt for which the room grows is
        // divided anew.
        const int32_t seen = g.client.uploads.most_places[ostinato_size_class(n_tokens)].load();
        int32_t most = seen > 0 && n_tokens < limits.upload.all_tokens ? 4 : std::numeric_limits<int32_t>::max();
        while (most < seen + 2) {
            most *= 2;
        }
        g.borrower->give_back(g.pool->staging_end(most));
        g.client.uploads.max_places.store(most);
    }
}

void ostinato_placement::end_passes() {
    check_answers();
    is_idle.store(true);
}

// The results of a pass that waited in vain are void, and so is what it left in the KV cache for all that follows. Nothing of it may be read.
void ostinato_placement::check_answers() const {
    for (const auto & g : groups) {
        if (!g->is_gpu() || !__atomic_load_n(&g->mailbox.request->failed, __ATOMIC_ACQUIRE)) {
            continue;
        }
        const ostinato_request & request = *g->mailbox.request;
        LLAMA_LOG_ERROR("%s: layer %d, %d tokens, %d cold routes: step %u, decided %u with %d copies, answered %u\n", __func__,
            request.layer, request.n_tokens, request.n_cold, request.sequence, request.decided, request.n_copies, request.answer);
        GGML_ABORT("%s waited %.1f s in vain for the CPU branch", ggml_backend_dev_name(g->device), limits.timeout_ns*1e-9);
    }
}

void ostinato_placement::synchronize() const {
    for (const auto & g : groups) {
        if (g->is_gpu()) {
            g->memory.cuda->synchronize(g->memory.device);
        }
    }
}

const ostinato_expert_ffn & ostinato_placement::slots(size_t layer) const {
    return groups[group_of[layer]]->pool->slots(index_in_group[layer]);
}

ggml_tensor * ostinato_placement::index_table(size_t layer, int64_t n_tokens) const {
    const group & g = *groups[group_of[layer]];
    return is_borrowing(g, n_tokens) ? g.borrower->index_table(index_in_group[layer]) : g.pool->index_table(index_in_group[layer]);
}

int32_t ostinato_placement::zero_slot(size_t layer) const {
    const group & g = *groups[group_of[layer]];
    const bool is_skipping = g.pool_layers[index_in_group[layer]].n_zero_slots == 0;
    return is_skipping ? OSTINATO_NO_ZERO_SLOT : g.pool->zero_slot(index_in_group[layer]);
}

std::vector<ostinato_memory_view> ostinato_placement::view() const {
    std::vector<ostinato_memory_view> views;
    for (const auto & g : groups) {
        ostinato_memory_view v;
        v.device        = ggml_backend_dev_name(g->device);
        v.pool_capacity = g->pool->capacity();
        v.pool_used     = g->pool->used();
        v.pool_room     = ostinato_expert_pool::room_for(g->pool_layers, g->pool->capacity(), g->memory);
        v.pool_unlearned = ostinato_expert_pool::room_for(g->pool_layers, unlearned_bytes(*g), g->memory);
        v.is_gpu        = g->is_gpu();
        ostinato_mailbox_state state = {};
        if (g->is_gpu() && g->memory.cuda->copy(g->memory.device, &state, g->mailbox.state, sizeof(state))) {
            v.published   = state.n_published;
            v.cold_routes = state.n_cold_total;
            v.waited_ns   = state.waited_ns;
            v.linked      = state.n_linked;
            v.decode_waited_ns = state.decode_waited_ns;
        }
        if (g->is_gpu()) {
            v.graphs = g->memory.cuda->graph_counts(g->memory.device);
        }
        v.cpu_routes     = g->client.n_cpu_routes;
        v.cpu_busy_ns    = g->client.busy_ns;
        v.uploaded       = g->client.uploads.n_uploaded;
        v.uploaded_bytes = g->client.uploads.bytes;
        v.prefetched     = g->client.uploads.n_prefetched;
        v.foreseen       = g->client.uploads.n_foreseen;
        v.staging_bytes  = g->pool->lent();
        v.borrowing      = g->borrower ? g->borrower->view() : ostinato_borrowing_view {};
        for (const ostinato_speed_kind & kind : g->kinds) {
            v.kinds.push_back(view_of(*g, kind));
        }
        const ostinato_kind_view & main = v.kinds[ostinato_main_kind(g->kinds)];
        v.speeds         = main.speeds;
        v.link_columns   = main.link_columns;
        v.hidden_columns = main.hidden_columns;
        v.prefill        = g->client.times.prefill_sums();
        v.uploads        = { g->client.uploads.n_steps, g->client.uploads.ns, g->client.uploads.expected_ns, g->client.uploads.fixed_costs() };
        for (size_t n = 0; g->is_gpu() && n < g->layers.size(); ++n) {
            const ostinato_placed_layer & layer = layers[g->layers[n]];
            v.decode.push_back(g->client.times.decode_of((int32_t) n, layer.il, (int64_t) ostinato_expert_bytes(*layer.ffn)));
            v.decode_busy_ns = std::accumulate(v.decode.back().ns.begin(), v.decode.back().ns.end(), v.decode_busy_ns);
        }
        views.push_back(std::move(v));
    }
    return views;
}

size_t ostinato_placement::pool_bytes() const {
    size_t bytes = 0;
    for (const auto & g : groups) {
        bytes += g->pool->used();
    }
    return bytes;
}
