// Implementation of expert-pool.h.

#include "expert-pool.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <new>
#include <stdexcept>

static constexpr size_t ALIGNMENT = 256;
static constexpr size_t TAIL      = 64*1024;      // the tiled kernels read past a tensor's last row; zeros are what they may find
static constexpr size_t BOUNCE    = 16*1024*1024; // moves by less than their length go through this much memory at the end of what hot experts may take

// The tensors of a layer that are no weights.
static constexpr size_t N_MODIFIERS = std::size(ostinato_per_expert_tensors) - std::size(ostinato_record_weights);
static constexpr const ostinato_per_expert * MODIFIERS = ostinato_per_expert_tensors + std::size(ostinato_record_weights);

static size_t align(size_t n) {
    return (n + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
}

void ostinato_pool_memory::copy(void * dst, const void * src, size_t bytes) const {
    if (!cuda) {
        memmove(dst, src, bytes);
    } else if (bytes > 0 && !cuda->copy(device, dst, src, bytes)) {
        throw std::runtime_error("copying an expert failed");
    }
}

void ostinato_pool_memory::fill(void * dst, int value, size_t bytes) const {
    if (!cuda) {
        memset(dst, value, bytes);
    } else if (bytes > 0 && !cuda->fill(device, dst, value, bytes)) {
        throw std::runtime_error("clearing a slot failed");
    }
}

// A tensor has a slot even where no expert is hot, since kernels want one to point at.
static int64_t slots_of(const ostinato_pool_layer & layer, size_t n_hot) {
    return std::max<int64_t>(1, (int64_t) n_hot + layer.n_zero_slots);
}

static std::vector<size_t> kinds_of(const std::vector<ostinato_pool_layer> & layers) {
    std::vector<const ostinato_expert_ffn *> ffns;
    for (const ostinato_pool_layer & layer : layers) {
        ffns.push_back(layer.ffn);
    }
    return ostinato_record_kinds(ffns);
}

// In the order of addresses: the records kind by kind, so that a slot of one layer is a slot of every layer of its kind, then all else.
std::vector<ostinato_expert_pool::place> ostinato_expert_pool::plan(
        const std::vector<ostinato_pool_layer> & layers, const std::vector<size_t> & n_hot) {
    const std::vector<size_t> kinds = kinds_of(layers);
    std::vector<place> places;
    size_t end = 0;
    for (size_t kind = 0; std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); ++kind) {
        for (size_t i = 0; i < layers.size(); ++i) {
            if (kinds[i] == kind) {
                const size_t bytes = ostinato_record(*layers[i].ffn).stride;
                places.push_back({ i, nullptr, 0, bytes, end, end + slots_of(layers[i], n_hot[i])*bytes });
                end = places.back().end;
            }
        }
        places.back().end = end = align(end + TAIL);
    }
    for (size_t i = 0; i < layers.size(); ++i) {
        for (size_t m = 0; m < N_MODIFIERS; ++m) {
            if (const ggml_tensor * t = layers[i].ffn->*MODIFIERS[m].member) {
                const size_t bytes = t->nb[MODIFIERS[m].dim];
                places.push_back({ i, MODIFIERS[m].member, MODIFIERS[m].dim, bytes, end, align(end + slots_of(layers[i], n_hot[i])*bytes) + TAIL });
                end = places.back().end;
            }
        }
    }
    return places;
}

size_t ostinato_expert_pool::end_of(const std::vector<place> & places, const ostinato_pool_memory & memory) {
    return (places.empty() ? 0 : places.back().end) + (memory.cuda ? BOUNCE : 0);
}

size_t ostinato_expert_pool::bytes_for(
        const std::vector<ostinato_pool_layer> & layers, const hot_sets & hot, const ostinato_pool_memory & memory) {
    std::vector<size_t> n_hot;
    for (const auto & experts : hot) {
        n_hot.push_back(experts.size());
    }
    return end_of(plan(layers, n_hot), memory);
}

// Slots are larger than what they hold, by the most in the layer whose weights fill them the least.
size_t ostinato_expert_pool::room_for(const std::vector<ostinato_pool_layer> & layers, size_t capacity, const ostinato_pool_memory & memory) {
    size_t taken = bytes_for(layers, hot_sets(layers.size()), memory);
    double share = 1.0;
    for (const ostinato_pool_layer & layer : layers) {
        size_t slot_bytes = ostinato_record(*layer.ffn).stride;
        taken += ALIGNMENT;
        for (size_t m = 0; m < N_MODIFIERS; ++m) {
            if (const ggml_tensor * t = layer.ffn->*MODIFIERS[m].member) {
                slot_bytes += t->nb[MODIFIERS[m].dim];
                taken      += ALIGNMENT;
            }
        }
        share = std::min(share, (double) ostinato_expert_bytes(*layer.ffn)/slot_bytes);
    }
    return (size_t) ((capacity - std::min(capacity, taken))*share);
}

// A kind's places start at a multiple of its stride, so one place may take the room of two; each kind has places to itself.
size_t ostinato_expert_pool::least_lent(const std::vector<ostinato_pool_layer> & layers) {
    size_t largest = 0;
    for (const ostinato_pool_layer & layer : layers) {
        largest = std::max(largest, ostinato_record(*layer.ffn).stride);
    }
    return 2*largest + TAIL;
}

ostinato_expert_pool::ostinato_expert_pool(
        std::vector<ostinato_pool_layer> sources, ostinato_pool_memory where, size_t capacity, size_t lent) :
    layers(std::move(sources)), memory(where), size(align(capacity)), always_lent(lent) {
    tables_ctx.reset(ggml_init({ layers.size()*ggml_tensor_overhead(), nullptr, true }));
    ctx.reset(ggml_init({ 2*layers.size()*std::size(ostinato_per_expert_tensors)*ggml_tensor_overhead(), nullptr, true }));
    const std::vector<size_t> kinds = kinds_of(layers);
    for (size_t i = 0; i < layers.size(); ++i) {
        const ostinato_expert_ffn & ffn = *layers[i].ffn;
        entry & e = entries.emplace_back(entry { ostinato_record(ffn), kinds[i], ffn, {}, 0, nullptr, {} });
        e.index_table = ggml_new_tensor_1d(tables_ctx.get(), GGML_TYPE_I32, layers[i].n_experts);
        for (const auto & [member, dim] : ostinato_per_expert_tensors) {
            if (const ggml_tensor * experts = ffn.*member) {
                int64_t ne[GGML_MAX_DIMS] = { experts->ne[0], experts->ne[1], experts->ne[2], experts->ne[3] };
                ne[dim] = slots_of(layers[i], 0);
                ggml_tensor * slots = ggml_new_tensor(ctx.get(), experts->type, GGML_MAX_DIMS, ne);
                ggml_format_name(slots, "%s (pool)", experts->name);
                e.slots.*member = slots;
            }
        }
    }
    tables_buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(tables_ctx.get(), memory.buft));
    buffer.reset(ggml_backend_buft_alloc_buffer(memory.buft, size + always_lent));
    if (!tables_buffer || !buffer) {
        throw std::bad_alloc();
    }
    // weights: the scheduler runs an operator where its weights are, and never moves them
    ggml_backend_buffer_set_usage(tables_buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(buffer.get(), 0);

    place_tensors(plan(layers, std::vector<size_t>(layers.size(), 0)));
    for (size_t i = 0; i < layers.size(); ++i) {
        write_table(i);
    }
}

// Where the layer's records begin.
size_t ostinato_expert_pool::records_of(size_t layer) const {
    const auto found = std::find_if(current.begin(), current.end(), [&](const place & p) { return p.layer == layer && !p.member; });
    return found->begin;
}

// The first place in lent memory at a whole number of records from the layer's slots.
size_t ostinato_expert_pool::first_lent(size_t layer) const {
    const size_t begin  = records_of(layer);
    const size_t stride = entries[layer].record.stride;
    return begin + (bytes_used - begin + stride - 1)/stride*stride;
}

static ggml_tensor * mutable_tensor(const ostinato_expert_ffn & ffn, const ggml_tensor * ostinato_expert_ffn::* member) {
    return const_cast<ggml_tensor *>(ffn.*member);
}

// The weight as a tensor over `n` records from `data` on.
static void place_weight(ggml_tensor * t, ggml_backend_buffer_t buffer, char * data, size_t stride, int64_t n) {
    t->ne[2]  = n;
    t->nb[2]  = stride;
    t->nb[3]  = stride*n;
    t->buffer = buffer;
    t->data   = data;
}

void ostinato_expert_pool::place_tensors(std::vector<place> places) {
    current    = std::move(places);
    bytes_used = end_of(current, memory);
    for (const place & p : current) {
        const entry & e = entries[p.layer];
        const int64_t n = slots_of(layers[p.layer], e.expert_of.size());
        if (p.member) {
            ggml_tensor * t = mutable_tensor(e.slots, p.member);
            t->ne[p.dim] = n;
            for (int d = p.dim + 1; d < GGML_MAX_DIMS; ++d) {
                t->nb[d] = t->nb[d - 1]*t->ne[d - 1];
            }
            t->buffer = buffer.get();
            t->data   = base() + p.begin;
            continue;
        }
        for (size_t w = 0; w < std::size(ostinato_record_weights); ++w) {
            if (ggml_tensor * t = mutable_tensor(e.slots, ostinato_record_weights[w].member)) {
                place_weight(t, buffer.get(), base() + p.begin + e.record.offsets[w], e.record.stride, n);
            }
        }
        place_staging(p.layer);
    }
}

void ostinato_expert_pool::place_staging(size_t layer) {
    entry & e = entries[layer];
    const size_t first = first_lent(layer);
    const size_t end   = bytes_used + lent() - std::min(lent(), TAIL);
    e.n_staged = first < end ? std::min<int64_t>((end - first)/e.record.stride, layers[layer].n_experts) : 0;
    for (size_t w = 0; e.n_staged > 0 && w < std::size(ostinato_record_weights); ++w) {
        const auto member = ostinato_record_weights[w].member;
        const ggml_tensor * experts = layers[layer].ffn->*member;
        if (!experts) {
            continue;
        }
        if (!(e.staging.*member)) {
            ggml_tensor * t = ggml_new_tensor_3d(ctx.get(), experts->type, experts->ne[0], experts->ne[1], 1);
            ggml_format_name(t, "%s (staging)", experts->name);
            e.staging.*member = t;
        }
        place_weight(mutable_tensor(e.staging, member), buffer.get(), base() + first + e.record.offsets[w], e.record.stride, e.n_staged);
    }
}

const char * ostinato_expert_pool::staging_end(int64_t n_places) const {
    size_t end = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
        end = std::max(end, first_lent(i) + std::min(n_places, entries[i].n_staged)*entries[i].record.stride);
    }
    return base() + end;
}

size_t ostinato_expert_pool::reach(size_t layer) const {
    const size_t stride = entries[layer].record.stride;
    size_t blocks = 0;
    for (const auto & weight : ostinato_record_weights) {
        if (const ggml_tensor * t = layers[layer].ffn->*weight.member) {
            blocks = std::max(blocks, stride/ggml_type_size(t->type));
        }
    }
    return std::numeric_limits<int32_t>::max()/blocks*stride;
}

ostinato_lent_places ostinato_expert_pool::lent_places(size_t layer) const {
    const entry & e = entries[layer];
    // lent memory is divided between kinds by their layers
    size_t before = 0;
    size_t own    = 0;
    for (const entry & other : entries) {
        before += other.kind < e.kind;
        own    += other.kind == e.kind;
    }
    const size_t usable = lent() - std::min(lent(), TAIL);
    const size_t begin  = bytes_used + usable/entries.size()*before;
    const size_t end    = bytes_used + usable/entries.size()*(before + own);
    const size_t first  = records_of(layer);
    const size_t slot   = (begin - first + e.record.stride - 1)/e.record.stride;
    const size_t n      = first + slot*e.record.stride < end ? (end - first)/e.record.stride - slot : 0;
    const size_t n_slots = reach(layer)/e.record.stride;
    const size_t n_near  = std::min(n, n_slots - std::min(n_slots, slot));
    // biases and scales have no lent places, and ids beyond a layer's slots would take zero slots along
    const bool is_lendable = layers[layer].n_zero_slots == 0;
    return { base() + first + slot*e.record.stride, e.record.stride, is_lendable ? (int32_t) n_near : 0, (int32_t) slot, e.kind };
}

std::vector<int32_t> ostinato_expert_pool::slots_of_experts(size_t layer) const {
    std::vector<int32_t> table(layers[layer].n_experts, -1);
    for (size_t slot = 0; slot < entries[layer].expert_of.size(); ++slot) {
        table[entries[layer].expert_of[slot]] = (int32_t) slot;
    }
    return table;
}

void ostinato_expert_pool::write_table(size_t layer) {
    const std::vector<int32_t> table = slots_of_experts(layer);
    ggml_backend_tensor_set(entries[layer].index_table, table.data(), 0, table.size()*sizeof(int32_t));
}

// As memmove, within the pool.
void ostinato_expert_pool::move(size_t to, size_t from, size_t bytes) {
    const size_t distance = to > from ? to - from : from - to;
    if (distance == 0 || bytes == 0) {
        return;
    }
    if (!memory.cuda || distance >= bytes) {
        memory.copy(base() + to, base() + from, bytes);
        return;
    }
    const size_t part   = std::max(distance, BOUNCE);
    char * const bounce = base() + size - BOUNCE;
    for (size_t done = 0; done < bytes; done += part) {
        const size_t n  = std::min(part, bytes - done);
        const size_t at = to < from ? done : bytes - done - n;
        if (n <= distance) {
            memory.copy(base() + to + at, base() + from + at, n);
        } else {
            memory.copy(bounce, base() + from + at, n);
            memory.copy(base() + to + at, bounce, n);
        }
    }
}

// The expert's weights and all else of it to a slot.
void ostinato_expert_pool::load(size_t layer, size_t slot, int32_t expert, const ostinato_host_expert & from) {
    const entry & e = entries[layer];
    const ostinato_expert_ffn & ffn = *layers[layer].ffn;
    for (const place & p : current) {
        if (p.layer != layer) {
            continue;
        }
        char * const to = base() + p.begin + slot*p.slot_bytes;
        if (p.member) {
            memory.copy(to, (const char *) (ffn.*p.member)->data + expert*p.slot_bytes, p.slot_bytes);
            continue;
        }
        if (from.record) {
            memory.copy(to, from.record, e.record.stride);
            continue;
        }
        if (e.record.padding > 0) {
            memory.fill(to, 0, e.record.stride);
        }
        for (size_t w = 0; w < std::size(ostinato_record_weights); ++w) {
            if (const ggml_tensor * weight = ffn.*ostinato_record_weights[w].member) {
                memory.copy(to + e.record.offsets[w], from.*ostinato_record_weights[w].host, weight->nb[2]);
            }
        }
    }
}

ostinato_expert_pool::change ostinato_expert_pool::set_hot(const hot_sets & hot, const source & read) {
    change result;

    // 1. within each layer: what stays moves to the front, as far as it must
    std::vector<std::vector<int32_t>> missing(layers.size()); // experts to read
    std::vector<size_t> n_hot(layers.size());
    std::vector<size_t> n_kept(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
        std::vector<int32_t> & expert_of = entries[i].expert_of;
        n_hot[i] = hot[i].size();

        std::vector<uint8_t> wanted(layers[i].n_experts, 0);
        for (const int32_t e : hot[i]) {
            wanted[e] = 1;
        }
        std::vector<int32_t> free_slots;
        for (size_t slot = 0; slot < expert_of.size(); ++slot) {
            if (wanted[expert_of[slot]]) {
                wanted[expert_of[slot]] = 2;
            } else {
                expert_of[slot] = -1;
                free_slots.push_back((int32_t) slot);
                result.n_dropped++;
            }
        }
        for (const int32_t e : hot[i]) {
            if (wanted[e] == 1) {
                missing[i].push_back(e);
            }
        }
        size_t next_free = 0;
        for (size_t slot = n_hot[i]; slot < expert_of.size(); ++slot) {
            if (expert_of[slot] < 0) {
                continue;
            }
            const size_t to = free_slots[next_free++]; // there is one below n_hot for every expert beyond it
            for (const place & p : current) {
                if (p.layer == i) {
                    memory.copy(base() + p.begin + to*p.slot_bytes, base() + p.begin + slot*p.slot_bytes, p.slot_bytes);
                }
            }
            expert_of[to]   = expert_of[slot];
            expert_of[slot] = -1;
        }
        n_kept[i] = std::min(expert_of.size(), n_hot[i]);
    }

    // 2. layers to their new places: those that move down in ascending order, then those that move up in descending order, so that nothing is
    // overwritten that has still to move
    const std::vector<place> next = plan(layers, n_hot);
    if (end_of(next, memory) > size) {
        throw std::runtime_error("the hot experts do not fit the expert pool");
    }
    const auto move_place = [&](size_t p, bool is_down) {
        if (next[p].begin != current[p].begin && (next[p].begin < current[p].begin) == is_down) {
            move(next[p].begin, current[p].begin, n_kept[next[p].layer]*next[p].slot_bytes);
        }
    };
    for (size_t p = 0; p < next.size(); ++p) {
        move_place(p, true);
    }
    for (size_t p = next.size(); p-- > 0;) {
        move_place(p, false);
    }
    std::vector<bool> is_changed(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
        is_changed[i] = !missing[i].empty() || entries[i].expert_of.size() != n_hot[i];
        entries[i].expert_of.resize(n_hot[i], -1);
    }
    const std::vector<place> before = current;
    place_tensors(next);

    // 3. experts to free slots, zeros behind them
    for (size_t i = 0; i < layers.size(); ++i) {
        std::vector<int32_t> & expert_of = entries[i].expert_of;
        size_t slot = 0;
        for (const int32_t expert : missing[i]) {
            while (expert_of[slot] >= 0) {
                ++slot;
            }
            expert_of[slot] = expert;
            load(i, slot, expert, read(i, expert));
            result.n_loaded++;
        }
        if (is_changed[i]) {
            write_table(i);
        }
    }
    for (size_t p = 0; p < current.size(); ++p) {
        const place & at = current[p];
        if (is_changed[at.layer] || before[p].begin != at.begin || before[p].end != at.end) {
            const size_t used = n_hot[at.layer]*at.slot_bytes;
            memory.fill(base() + at.begin + used, 0, at.end - at.begin - used);
        }
    }
    // staged experts that are no records leave their padding as it is, which kernels multiply by zeros: no scale there may be NaN
    if (std::any_of(entries.begin(), entries.end(), [](const entry & e) { return e.record.padding > 0; })) {
        memory.fill(base() + bytes_used, 0, size - bytes_used);
    }
    return result;
}
