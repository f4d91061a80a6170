// Implementation of placement.h.

#include "placement.h"

#include "ops.h"

#include "llama-impl.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <numeric>
#include <stdexcept>
#include <thread>

using hot_sets = ostinato_expert_pool::hot_sets;

// The resident threads of this process, made with the first GPU layer.
static ostinato_cold_workers & workers(int n_threads) {
    static ostinato_cold_workers instance(n_threads > 0 ? n_threads : ostinato_cold_thread_count());
    return instance;
}

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

// True for memory that the loader page-locked itself.
static bool is_pinned(const ggml_tensor * t) {
    return t && t->buffer && strstr(ggml_backend_buffer_name(t->buffer), "_Host") != nullptr;
}

// The copying kernel moves 16 bytes at a time.
static bool is_copied_whole(const ostinato_expert_ffn & ffn) {
    for (const ggml_tensor * weight : { ffn.gate, ffn.up, ffn.gate_up, ffn.down }) {
        if (weight && weight->nb[2] % 16 != 0) {
            return false;
        }
    }
    return true;
}

static bool skips_routes(const ostinato_pool_memory & memory, const ostinato_expert_ffn & ffn, int32_t n_experts) {
    if (!memory.cuda || ffn.gate_b || ffn.up_b || ffn.gate_up_b || ffn.down_b || ffn.gate_s || ffn.up_s || ffn.down_s) {
        return false; // biases and scales are added by kernels of their own, which take any id
    }
    for (const ggml_tensor * weight : { ffn.gate, ffn.up, ffn.gate_up, ffn.down }) {
        if (weight && !memory.cuda->skips_routes(memory.device, weight->type, n_experts)) {
            return false;
        }
    }
    return true;
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
        pinned.emplace_back(layer.n_experts, is_pinned(layer.ffn->down));
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
        target.pool_layers.push_back({ layers[i].ffn, layers[i].n_experts, is_skipping ? 0 : layers[i].k });
        ostinato_cold_layer cold = { layers[i].cold, host[i].data(), layers[i].n_experts };
        cold.pinned = pinned[i].data();
        cold.linked = linked[i].data();
        target.client.layers.push_back(cold);
    }
    add_kinds();
    for (auto & g : groups) {
        const hot_sets none(g->layers.size());
        g->pool = std::make_unique<ostinato_expert_pool>(
            g->pool_layers, g->memory, ostinato_expert_pool::bytes_for(g->pool_layers, none, g->memory));
        if (g->is_gpu()) {
            add_staging(*g, 0); // so that contexts reserve memory for its product chain
            workers(limits.n_threads).add(&g->client);
        }
    }
}

// Bytes of an expert's place: every weight starts at a cache line.
static size_t place_bytes(const ostinato_expert_ffn & ffn) {
    size_t bytes = 0;
    for (const ggml_tensor * t : { ffn.gate, ffn.up, ffn.gate_up, ffn.down }) {
        bytes += t ? (t->nb[2] + 63) & ~(size_t) 63 : 0;
    }
    return bytes;
}

// The distance of two places: whole blocks of every weight, since kernels count in blocks.
static size_t place_stride(const ostinato_expert_ffn & ffn) {
    size_t unit = 64;
    for (const ggml_tensor * t : { ffn.gate, ffn.up, ffn.gate_up, ffn.down }) {
        unit = t ? std::lcm(unit, ggml_type_size(t->type)) : unit;
    }
    return (place_bytes(ffn) + unit - 1)/unit*unit;
}

// Layers whose experts have the same weights share a kind of places.
void ostinato_placement::add_kinds() {
    kind_of.assign(layers.size(), -1);
    const auto is_like = [](const ostinato_expert_ffn & a, const ostinato_expert_ffn & b) {
        for (const auto member : { &ostinato_expert_ffn::gate, &ostinato_expert_ffn::up, &ostinato_expert_ffn::gate_up, &ostinato_expert_ffn::down }) {
            const ggml_tensor * x = a.*member;
            const ggml_tensor * y = b.*member;
            if (!x != !y || (x && (x->type != y->type || x->nb[2] != y->nb[2]))) {
                return false;
            }
        }
        return true;
    };
    for (size_t i = 0; i < layers.size(); ++i) {
        if (kind_of[i] >= 0 || !groups[group_of[i]]->is_gpu() || is_pinned(layers[i].ffn->down)) {
            continue;
        }
        std::vector<size_t> alike;
        size_t n_experts = 0;
        for (size_t j = i; j < layers.size(); ++j) {
            if (groups[group_of[j]]->is_gpu() && !is_pinned(layers[j].ffn->down) && is_like(*layers[i].ffn, *layers[j].ffn)) {
                alike.push_back(j);
                n_experts += layers[j].n_experts;
            }
        }
        const int kind = arena->add_kind(place_stride(*layers[i].ffn), n_experts);
        for (const size_t j : alike) {
            kind_of[j] = kind;
        }
    }
}

void ostinato_placement::add_group(ggml_backend_dev_t device) {
    auto g = std::make_unique<group>();
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
        m.copies        = (ostinato_copy *) cuda.allocate_host(4*n_experts*sizeof(ostinato_copy));
        m.stream        = cuda.make_stream(g->memory.device);
        m.forked        = cuda.make_event(g->memory.device);
        m.joined        = cuda.make_event(g->memory.device);
        g->client.limits = limits.upload;
        g->state.reset(ggml_backend_buft_alloc_buffer(g->memory.buft, STATE_BYTES + n_experts*sizeof(int32_t)));
        if (!g->state || !m.request || !m.decided_slots || !m.copies || !m.stream || !m.forked || !m.joined) {
            throw std::bad_alloc();
        }
        m.staged_slots = (int32_t *) ((char *) ggml_backend_buffer_get_base(g->state.get()) + STATE_BYTES);
        ggml_backend_buffer_clear(g->state.get(), 0);
        memset(g->mailbox.request, 0, sizeof(ostinato_request));
        g->mailbox.state      = (ostinato_mailbox_state *) ggml_backend_buffer_get_base(g->state.get());
        g->mailbox.timeout_ns = limits.timeout_ns;
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
            workers(limits.n_threads).remove(&g->client);
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
    for (void * data : { (void *) g.mailbox.cold, (void *) g.mailbox.weights, (void *) g.mailbox.x, (void *) g.mailbox.out }) {
        if (data) {
            g.memory.cuda->free_host(data);
        }
    }
    g.mailbox.cold = nullptr;
    g.mailbox.weights = g.mailbox.x = g.mailbox.out = nullptr;
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
        if (!m.cold || !m.weights || !m.x || !m.out) {
            GGML_ABORT("no page-locked memory for the hand-over of %lld tokens", (long long) n_tokens);
        }
        for (const size_t i : g->layers) {
            workers(limits.n_threads).reserve(*layers[i].ffn, n_tokens*layers[i].k, n_tokens);
        }
        m.max_routes  = routes;
        m.max_inputs  = inputs;
        m.max_outputs = outputs;
    }
}

hot_sets ostinato_placement::part_of(const group & g, const hot_sets & hot) const {
    hot_sets part;
    for (const size_t i : g.layers) {
        part.push_back(hot[i]);
    }
    return part;
}

std::string ostinato_placement::fit(const hot_sets & hot) const {
    for (const auto & g : groups) {
        const size_t bytes = ostinato_expert_pool::bytes_for(g->pool_layers, part_of(*g, hot), g->memory);
        if (g->is_gpu() && is_claimed && bytes > g->pool->capacity()) {
            return std::string("expert pool of ") + ggml_backend_dev_name(g->device) + ": expected at most " +
                std::to_string(g->pool->capacity()) + " bytes, found " + std::to_string(bytes);
        }
    }
    return "";
}

hot_sets ostinato_placement::shrink(const hot_sets & hot) const {
    hot_sets result = hot;
    for (const auto & g : groups) {
        if (!g->is_gpu()) {
            continue;
        }
        const hot_sets part = part_of(*g, hot);
        hot_sets kept = part;
        // by halving: the share in 1/4096
        int32_t low = 0;
        int32_t high = 4096;
        while (low < high) {
            const int32_t share = (low + high + 1)/2;
            for (size_t i = 0; i < part.size(); ++i) {
                kept[i].assign(part[i].begin(), part[i].begin() + part[i].size()*share/4096);
            }
            const bool fits = ostinato_expert_pool::bytes_for(g->pool_layers, kept, g->memory) <= g->pool->capacity();
            (fits ? low : high) = fits ? share : share - 1;
        }
        for (size_t i = 0; i < part.size(); ++i) {
            result[g->layers[i]].resize(part[i].size()*low/4096);
        }
    }
    return result;
}

// Parts of the work list run on as many threads as the machine has: copying from the page cache is bound by one thread's speed.
template <typename F>
static void in_parallel(size_t n, F && f) {
    std::atomic<size_t> next { 0 };
    std::vector<std::thread> threads;
    const auto run = [&] {
        for (size_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) {
            f(i);
        }
    };
    for (unsigned t = 1; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
        threads.emplace_back(run);
    }
    run();
    for (std::thread & t : threads) {
        t.join();
    }
}

// Cold experts of GPU layers move into the arena, hot ones leave it.
void ostinato_placement::place_cold(const hot_sets & hot) {
    if (!arena) {
        return;
    }
    struct transfer {
        size_t layer;
        int32_t expert;
    };
    std::vector<transfer> transfers;
    for (const bool is_leaving : { true, false }) { // places are free before they are asked for
        for (size_t i = 0; i < layers.size(); ++i) {
            if (kind_of[i] < 0) {
                continue;
            }
            std::vector<uint8_t> is_hot(layers[i].n_experts, 0);
            for (const int32_t e : hot[i]) {
                is_hot[e] = 1;
            }
            for (int32_t e = 0; e < layers[i].n_experts; ++e) {
                char *& place = places[i][e];
                if (is_leaving && is_hot[e] && place) {
                    arena->release(kind_of[i], place);
                    place = nullptr;
                    pinned[i][e] = 0;
                    host[i][e] = ostinato_expert_in_tensors(*layers[i].ffn, e);
                }
                if (!is_leaving && !is_hot[e] && !place && (place = arena->allocate(kind_of[i]))) {
                    transfers.push_back({ i, e });
                }
            }
        }
    }
    in_parallel(transfers.size(), [&](size_t t) {
        const auto [i, e] = transfers[t];
        const ostinato_expert_ffn & ffn = *layers[i].ffn;
        char * to = places[i][e];
        const auto take = [&](const ggml_tensor * weight, const char *& data) {
            if (weight) {
                memcpy(to, (const char *) weight->data + e*weight->nb[2], weight->nb[2]);
                data = to;
                to += (weight->nb[2] + 63) & ~(size_t) 63;
            }
        };
        pinned[i][e] = 1;
        ostinato_host_expert & expert = host[i][e];
        take(ffn.gate, expert.gate);
        take(ffn.up, expert.up);
        take(ffn.gate_up, expert.gate_up);
        take(ffn.down, expert.down);
    });
}

ostinato_expert_pool::change ostinato_placement::apply(const hot_sets & hot) {
    ostinato_expert_pool::change total;
    for (auto & g : groups) {
        const hot_sets part = part_of(*g, hot);
        if (!g->is_gpu()) {
            const size_t bytes = ostinato_expert_pool::bytes_for(g->pool_layers, part, g->memory);
            if (bytes > g->pool->capacity()) {
                g->pool = std::make_unique<ostinato_expert_pool>(g->pool_layers, g->memory, bytes);
            }
        }
        const auto read = [&](size_t layer, int32_t expert) { return host[g->layers[layer]][expert]; };
        const ostinato_expert_pool::change change = g->pool->set_hot(part, read);
        total.n_loaded  += change.n_loaded;
        total.n_dropped += change.n_dropped;
    }
    place_cold(hot);
    for (auto & g : groups) {
        if (!g->is_gpu() || !is_claimed) {
            continue;
        }
        if (g->client.speeds.is_default) {
            measure_speeds(*g);
        }
        if (g->links.empty() && (!g->client.speeds.is_default || limits.link_percent > 0)) {
            add_links(*g);
        }
        write_link_tables(*g);
    }
    return total;
}

bool ostinato_placement::needs_memory() const {
    return arena && !is_claimed;
}

void ostinato_placement::claim_memory() {
    for (auto & g : groups) {
        if (!g->is_gpu()) {
            continue;
        }
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        ggml_backend_dev_memory(g->device, &free_bytes, &total_bytes);
        size_t all_hot = 0;
        {
            hot_sets all;
            for (const size_t i : g->layers) {
                all.emplace_back(layers[i].n_experts);
            }
            all_hot = ostinato_expert_pool::bytes_for(g->pool_layers, all, g->memory);
        }
        size_t available = std::min(free_bytes - std::min(free_bytes, limits.margin_bytes), limits.pool_bytes);
        if (available < all_hot && limits.upload.choice_tokens < std::numeric_limits<int64_t>::max()) {
            add_staging(*g, (size_t) (available*limits.staging_share));
            available -= std::min(available, g->staging_buffer ? ggml_backend_buffer_get_size(g->staging_buffer.get()) : 0);
        } else { // nothing will be cold, or nothing uploaded
            for (ostinato_cold_layer & layer : g->client.layers) {
                layer.staging = nullptr;
            }
            g->staging_buffer.reset();
        }
        size_t capacity = std::min(available, all_hot);
        while (capacity > g->pool->capacity()) {
            try {
                g->pool = std::make_unique<ostinato_expert_pool>(g->pool_layers, g->memory, capacity);
                break;
            } catch (const std::bad_alloc &) { // less than was free a moment ago
                capacity = capacity/8*7;
            }
        }
        LLAMA_LOG_INFO("%s: %s: expert pool of %.2f MiB, %.2f MiB were free\n", __func__, ggml_backend_dev_name(g->device),
            g->pool->capacity()/1024.0/1024.0, free_bytes/1024.0/1024.0);
    }
    is_claimed = true;
}

// One buffer for all layers of the GPU: one computes at a time. At least a slot, at most as many as a layer has experts.
void ostinato_placement::add_staging(group & g, size_t bytes) {
    std::vector<size_t> record(g.layers.size(), 0);
    size_t wanted = 0;
    for (size_t i = 0; i < g.layers.size(); ++i) {
        const ostinato_placed_layer & layer = layers[g.layers[i]];
        if (g.pool_layers[i].n_zero_slots > 0) {
            continue; // STAGE gives ids to skip
        }
        if (!is_copied_whole(*layer.ffn)) {
            continue;
        }
        record[i] = ostinato_expert_bytes(*layer.ffn);
        wanted = std::max(wanted, record[i]*layer.n_experts);
    }
    constexpr size_t TAILS = 4*128*1024; // alignment, and what tiled kernels read past a tensor's end
    if (wanted == 0) {
        return;
    }
    bytes = std::max(std::min(bytes, wanted + TAILS), *std::max_element(record.begin(), record.end()) + TAILS);
    for (ostinato_cold_layer & layer : g.client.layers) {
        layer.staging = nullptr;
    }
    g.staging_buffer.reset(); // before the next one: memory may be short
    g.staging_buffer.reset(ggml_backend_buft_alloc_buffer(g.memory.buft, bytes));
    if (!g.staging_buffer) {
        return; // the CPU branch computes everything
    }
    ggml_backend_buffer_set_usage(g.staging_buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(g.staging_buffer.get(), 0);
    g.staging_ctx.reset(ggml_init({ 4*g.layers.size()*ggml_tensor_overhead(), nullptr, true }));
    g.staging.resize(g.layers.size());
    for (size_t i = 0; i < g.layers.size(); ++i) {
        const ostinato_expert_ffn & ffn = *layers[g.layers[i]].ffn;
        const int64_t n_slots = record[i] == 0 ? 0 : std::min<int64_t>((bytes - TAILS)/record[i], layers[g.layers[i]].n_experts);
        if (n_slots == 0) {
            continue;
        }
        char * at = (char *) ggml_backend_buffer_get_base(g.staging_buffer.get());
        for (const auto & member : { &ostinato_expert_ffn::gate, &ostinato_expert_ffn::up, &ostinato_expert_ffn::gate_up, &ostinato_expert_ffn::down }) {
            if (const ggml_tensor * experts = ffn.*member) {
                ggml_tensor * t = ggml_new_tensor_3d(g.staging_ctx.get(), experts->type, experts->ne[0], experts->ne[1], n_slots);
                ggml_format_name(t, "%s (staging)", experts->name);
                t->buffer = g.staging_buffer.get();
                t->data   = at;
                g.staging[i].*member = t;
                at += (ggml_nbytes(t) + 64*1024 + 255)/256*256;
            }
        }
        g.client.layers[i].staging = &g.staging[i];
    }
}

const ostinato_expert_ffn * ostinato_placement::staging(size_t layer, int64_t n_tokens) const {
    const group & g = *groups[group_of[layer]];
    return g.is_gpu() ? ostinato_staging_of(g.client.layers[index_in_group[layer]], limits.upload, n_tokens) : nullptr;
}

// With the experts of the first layer that has enough of them in page-locked memory.
void ostinato_placement::measure_speeds(group & g) {
    constexpr size_t N = 16;
    for (size_t i = 0; i < g.layers.size(); ++i) {
        const ostinato_cold_layer & layer = g.client.layers[i];
        std::vector<int32_t> experts;
        for (int32_t e = 0; e < layer.n_experts && experts.size() < N; ++e) {
            if (layer.pinned[e]) {
                experts.push_back(e);
            }
        }
        if (experts.size() < N/2 || !layer.staging) {
            continue;
        }
        // the graph has not told yet what is computed with the experts; for their speed, what the loader found will do
        ostinato_cold_layer plain = layer;
        plain.ffn = layers[g.layers[i]].ffn;
        ostinato_cold_workers & team = workers(limits.n_threads);
        ostinato_speeds & speeds = g.client.speeds;
        speeds.cpu_row  = team.measure(plain, experts, 1, experts.size());
        speeds.cpu_rows = team.measure(plain, experts, 16, experts.size());

        const ggml_tensor * down = layer.staging->down;
        const auto upload_all = [&] { // seconds per byte
            const int64_t begin_us = ggml_time_us();
            for (const int32_t e : experts) {
                g.memory.copy(down->data, layer.host[e].down, down->nb[2]);
            }
            return (ggml_time_us() - begin_us)*1e-6/((double) experts.size()*down->nb[2]);
        };
        speeds.link = std::min(upload_all(), upload_all());
        measure_sharing(g, i, plain, experts);
        speeds.is_default = false;
        LLAMA_LOG_INFO("%s: %s: cold experts at %.1f GB/s by the CPU with one row, %.1f GB/s with 16, %.1f GB/s over the link, %.1f and %.1f GB/s at once; "
            "%d threads\n", __func__, ggml_backend_dev_name(g.device), 1e-9/speeds.cpu_row, 1e-9/speeds.cpu_rows, 1e-9/speeds.link,
            1e-9/speeds.cpu_row_beside_link, 1e-9/speeds.in_place_beside_cpu, team.n_threads());
        return;
    }
}

// Seconds per byte that the products of a link's share take, launches included, with so many experts in a step, until `is_done`. 0 where they fail.
static double measure_products(
        ggml_backend_dev_t device, const ostinato_link & link, const std::vector<int32_t> & places, size_t n_together, const std::atomic<bool> & is_done) {
    const auto tensor = [](const ggml_tensor * t) { return const_cast<ggml_tensor *>(t); };
    const ostinato_expert_ffn & experts = link.experts;
    const ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    const ggml_context_ptr ctx(ggml_init({ 16*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true }));
    ggml_tensor * x      = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, experts.gate->ne[0], 1, 1);
    ggml_tensor * ids    = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, (int64_t) n_together, 1);
    ggml_tensor * gate   = ggml_mul_mat_id(ctx.get(), tensor(experts.gate), x, ids);
    ggml_tensor * hidden = ggml_swiglu_split(ctx.get(), gate, ggml_mul_mat_id(ctx.get(), tensor(experts.up), x, ids));
    ggml_cgraph * graph  = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, ggml_mul_mat_id(ctx.get(), tensor(experts.down), hidden, ids));
    const ggml_backend_buffer_ptr buffer(backend ? ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()) : nullptr);
    if (!buffer) {
        return 0.0;
    }
    ggml_backend_buffer_clear(buffer.get(), 0);
    const size_t bytes = 2*link.columns*experts.gate->nb[1] + experts.down->ne[1]*ggml_row_size(experts.down->type, link.columns);
    size_t n_read = 0;
    const int64_t begin_us = ggml_time_us();
    do {
        for (size_t first = 0; first + n_together <= places.size(); first += n_together) {
            ggml_backend_tensor_set(ids, places.data() + first, 0, n_together*sizeof(int32_t));
            if (ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS) {
                return 0.0;
            }
            n_read += n_together*bytes;
        }
    } while (!is_done.load());
    return (ggml_time_us() - begin_us)*1e-6/n_read;
}

// Both sides of link sharing at once, each with half of the experts' columns to itself, as in decode steps of a few cold routes.
void ostinato_placement::measure_sharing(group & g, size_t i, const ostinato_cold_layer & layer, const std::vector<int32_t> & experts) {
    constexpr size_t DECODE = 2; // cold experts of a layer in a step
    const int64_t step = ostinato_link_step(*layer.ffn);
    const ggml_context_ptr ctx(ggml_init({ 4*ggml_tensor_overhead(), nullptr, true }));
    const ostinato_link link = make_link(g, i, (int32_t) (layer.ffn->n_ff()/2/step*step), ctx.get(), g.staging_buffer.get());
    ostinato_speeds & speeds = g.client.speeds;
    if (link.columns == 0) {
        return;
    }
    std::vector<int32_t> places;
    for (const int32_t e : experts) {
        const int32_t place = place_of(g.layers[i], e, link);
        if (place >= 0) {
            places.push_back(place);
        }
    }
    if (places.size() < DECODE) {
        return;
    }
    std::atomic<bool> is_done { false };
    double in_place = 0.0;
    std::thread products([&] { in_place = measure_products(g.device, link, places, DECODE, is_done); });
    speeds.cpu_row_beside_link = workers(limits.n_threads).measure(layer, experts, 1, DECODE);
    is_done.store(true);
    products.join();
    speeds.in_place_beside_cpu = in_place > 0.0 ? in_place : std::numeric_limits<double>::infinity();
    speeds.cpu_row = std::min(speeds.cpu_row, speeds.cpu_row_beside_link); // else its own measurement was disturbed
}

// Hidden columns that the link gets of the group's layer: where both sides work at their speeds, they end together (paper 3.4).
int32_t ostinato_placement::link_columns(const group & g, size_t i) const {
    const ostinato_expert_ffn & ffn = *layers[g.layers[i]].ffn;
    if (limits.link_percent < 0) {
        return 0;
    }
    const double link = 1.0/g.client.speeds.in_place_beside_cpu;
    const double cpu  = 1.0/g.client.speeds.cpu_row_beside_link;
    const double share = limits.link_percent > 0 ? limits.link_percent/100.0 : link/(link + cpu);
    const int64_t step = ostinato_link_step(ffn);
    return (int32_t) std::min((int64_t) (share*ffn.n_ff()/step + 0.5)*step, ffn.n_ff() - step);
}

// Views of the layer's experts where they are in host memory, `columns` hidden columns wide. Without columns where no kernel takes them.
ostinato_link ostinato_placement::make_link(const group & g, size_t i, int32_t columns, ggml_context * ctx, ggml_backend_buffer_t buffer) const {
    const ostinato_expert_ffn & ffn = *layers[g.layers[i]].ffn;
    const int kind = kind_of[g.layers[i]];
    char * place   = kind >= 0 ? arena->base(kind) : nullptr;
    const bool has_kernels = g.pool_layers[i].n_zero_slots == 0 && (ffn.gate || ffn.gate_up) && ffn.n_ff() % ostinato_link_step(ffn) == 0;
    ostinato_link link;
    if (columns == 0 || !has_kernels || (!place && !is_pinned(ffn.down))) {
        return link;
    }
    const size_t stride = kind >= 0 ? place_stride(ffn) : 0;
    const auto view = [&](const ggml_tensor * weight, char * data, int64_t n_columns, int64_t n_rows) {
        ggml_tensor * t = ggml_new_tensor_3d(ctx, weight->type, n_columns, n_rows, 1 << 20); // as many as ids name
        ggml_format_name(t, "%s (link)", weight->name);
        t->nb[1]  = weight->nb[1];
        t->nb[2]  = kind >= 0 ? stride : weight->nb[2];
        t->nb[3]  = t->nb[2]*t->ne[2];
        t->buffer = buffer;
        t->data   = data;
        return t;
    };
    size_t offset = 0;
    const auto next = [&](const ggml_tensor * weight) { // where the weight is in a place, or the loader put it
        char * data = kind >= 0 ? place + offset : (char *) weight->data;
        offset += (weight->nb[2] + 63) & ~(size_t) 63;
        return data;
    };
    if (ffn.gate_up) {
        char * data = next(ffn.gate_up);
        link.experts.gate = view(ffn.gate_up, data, ffn.n_in(), columns);
        link.experts.up   = view(ffn.gate_up, data + ffn.n_ff()*ffn.gate_up->nb[1], ffn.n_in(), columns);
    } else {
        link.experts.gate = view(ffn.gate, next(ffn.gate), ffn.n_in(), columns);
        link.experts.up   = view(ffn.up, next(ffn.up), ffn.n_in(), columns);
    }
    link.experts.down = view(ffn.down, next(ffn.down), columns, ffn.n_out());
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
    g.link_ctx.reset(ggml_init({ 4*g.layers.size()*ggml_tensor_overhead(), nullptr, true }));
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

void ostinato_placement::begin_pass() {
    check_answers();
    if (arena) {
        workers(limits.n_threads).wake();
    }
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

ggml_tensor * ostinato_placement::index_table(size_t layer) const {
    return groups[group_of[layer]]->pool->index_table(index_in_group[layer]);
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
        v.is_gpu        = g->is_gpu();
        ostinato_mailbox_state state = {};
        if (g->is_gpu() && g->memory.cuda->copy(g->memory.device, &state, g->mailbox.state, sizeof(state))) {
            v.published   = state.n_published;
            v.cold_routes = state.n_cold_total;
            v.waited_ns   = state.waited_ns;
            v.linked      = state.n_linked;
        }
        v.cpu_routes     = g->client.n_cpu_routes;
        v.cpu_busy_ns    = g->client.busy_ns;
        v.uploaded       = g->client.n_uploaded;
        v.uploaded_bytes = g->client.uploaded_bytes;
        v.staging_bytes  = g->staging_buffer ? ggml_backend_buffer_get_size(g->staging_buffer.get()) : 0;
        v.speeds         = g->client.speeds;
        for (size_t i = 0; i < g->links.size() && v.link_columns == 0; ++i) {
            v.link_columns   = g->links[i].columns;
            v.hidden_columns = layers[g->layers[i]].ffn->n_ff();
        }
        v.prefill        = g->client.times.prefill_sums();
        for (size_t n = 0; g->is_gpu() && n < g->layers.size(); ++n) {
            const ostinato_placed_layer & layer = layers[g->layers[n]];
            v.decode.push_back(g->client.times.decode_of((int32_t) n, layer.il, (int64_t) ostinato_expert_bytes(*layer.ffn)));
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
