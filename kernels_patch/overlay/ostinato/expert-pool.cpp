// Implementation of expert-pool.h.

#include "expert-pool.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>

static constexpr size_t N_MEMBERS = std::size(ostinato_per_expert_tensors);
static constexpr size_t ALIGNMENT = 256;
static constexpr size_t TAIL      = 64*1024;      // the tiled kernels read past a tensor's last row; zeros are what they may find
static constexpr size_t BOUNCE    = 16*1024*1024; // moves by less than their length go through this much memory behind the slots

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

ostinato_expert_pool::layout ostinato_expert_pool::plan(
        const std::vector<ostinato_pool_layer> & layers, const std::vector<size_t> & n_hot, const ostinato_pool_memory & memory) {
    layout where;
    for (size_t i = 0; i < layers.size(); ++i) {
        for (const auto & [member, dim] : ostinato_per_expert_tensors) {
            where.offsets.push_back(where.end);
            if (const ggml_tensor * experts = layers[i].ffn->*member) {
                where.end = align(where.end + slots_of(layers[i], n_hot[i])*experts->nb[dim]) + TAIL;
            }
        }
    }
    where.end += memory.cuda ? BOUNCE : 0;
    return where;
}

size_t ostinato_expert_pool::bytes_for(
        const std::vector<ostinato_pool_layer> & layers, const hot_sets & hot, const ostinato_pool_memory & memory) {
    std::vector<size_t> n_hot;
    for (const auto & experts : hot) {
        n_hot.push_back(experts.size());
    }
    return plan(layers, n_hot, memory).end;
}

ostinato_expert_pool::ostinato_expert_pool(std::vector<ostinato_pool_layer> sources, ostinato_pool_memory where, size_t capacity) :
    layers(std::move(sources)), memory(where), size(capacity) {
    tables_ctx.reset(ggml_init({ layers.size()*ggml_tensor_overhead(), nullptr, true }));
    ctx.reset(ggml_init({ layers.size()*N_MEMBERS*ggml_tensor_overhead(), nullptr, true }));
    entries.resize(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
        entry & e = entries[i];
        e.index_table = ggml_new_tensor_1d(tables_ctx.get(), GGML_TYPE_I32, layers[i].n_experts);
        e.slots = *layers[i].ffn;
        for (const auto & [member, dim] : ostinato_per_expert_tensors) {
            if (const ggml_tensor * experts = layers[i].ffn->*member) {
                int64_t ne[GGML_MAX_DIMS] = { experts->ne[0], experts->ne[1], experts->ne[2], experts->ne[3] };
                ne[dim] = slots_of(layers[i], 0);
                ggml_tensor * slots = ggml_new_tensor(ctx.get(), experts->type, GGML_MAX_DIMS, ne);
                ggml_format_name(slots, "%s (pool)", experts->name);
                e.slots.*member = slots;
            }
        }
    }
    tables_buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(tables_ctx.get(), memory.buft));
    buffer.reset(ggml_backend_buft_alloc_buffer(memory.buft, size));
    if (!tables_buffer || !buffer) {
        throw std::bad_alloc();
    }
    // weights: the scheduler runs an operator where its weights are, and never moves them
    ggml_backend_buffer_set_usage(tables_buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(buffer.get(), 0);

    place_tensors(plan(layers, std::vector<size_t>(layers.size(), 0), memory));
    for (size_t i = 0; i < layers.size(); ++i) {
        write_table(i);
    }
}

ggml_tensor * ostinato_expert_pool::tensor(size_t layer, size_t member) const {
    return const_cast<ggml_tensor *>(entries[layer].slots.*ostinato_per_expert_tensors[member].member);
}

void ostinato_expert_pool::place_tensors(const layout & where) {
    for (size_t i = 0; i < layers.size(); ++i) {
        for (size_t m = 0; m < N_MEMBERS; ++m) {
            ggml_tensor * t = tensor(i, m);
            if (!t) {
                continue;
            }
            const int dim = ostinato_per_expert_tensors[m].dim;
            t->ne[dim] = slots_of(layers[i], entries[i].expert_of.size());
            for (int d = dim + 1; d < GGML_MAX_DIMS; ++d) {
                t->nb[d] = t->nb[d - 1]*t->ne[d - 1];
            }
            t->buffer = buffer.get();
            t->data   = base() + where.offsets[i*N_MEMBERS + m];
        }
    }
    current    = where;
    bytes_used = where.end;
}

void ostinato_expert_pool::write_table(size_t layer) {
    std::vector<int32_t> table(layers[layer].n_experts, -1);
    for (size_t slot = 0; slot < entries[layer].expert_of.size(); ++slot) {
        table[entries[layer].expert_of[slot]] = (int32_t) slot;
    }
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
            for (size_t m = 0; m < N_MEMBERS; ++m) {
                if (const ggml_tensor * t = tensor(i, m)) {
                    const size_t bytes = t->nb[ostinato_per_expert_tensors[m].dim];
                    memory.copy((char *) t->data + to*bytes, (const char *) t->data + slot*bytes, bytes);
                }
            }
            expert_of[to]   = expert_of[slot];
            expert_of[slot] = -1;
        }
        n_kept[i] = std::min(expert_of.size(), n_hot[i]);
    }

    // 2. layers to their new places: those that move down in ascending order, then those that move up in descending order, so that nothing is
    // overwritten that has still to move
    const layout next = plan(layers, n_hot, memory);
    if (next.end > size) {
        throw std::runtime_error("the hot experts do not fit the expert pool");
    }
    const size_t n_places = next.offsets.size();
    const auto move_place = [&](size_t p, bool is_down) {
        const ggml_tensor * t = tensor(p/N_MEMBERS, p % N_MEMBERS);
        if (t && next.offsets[p] != current.offsets[p] && (next.offsets[p] < current.offsets[p]) == is_down) {
            move(next.offsets[p], current.offsets[p], n_kept[p/N_MEMBERS]*t->nb[ostinato_per_expert_tensors[p % N_MEMBERS].dim]);
        }
    };
    for (size_t p = 0; p < n_places; ++p) {
        move_place(p, true);
    }
    for (size_t p = n_places; p-- > 0;) {
        move_place(p, false);
    }
    std::vector<bool> is_changed(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
        is_changed[i] = !missing[i].empty() || entries[i].expert_of.size() != n_hot[i];
        entries[i].expert_of.resize(n_hot[i], -1);
    }
    const layout before = current;
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
            const ostinato_host_expert from = read(i, expert);
            const ostinato_expert_ffn & ffn = *layers[i].ffn;
            for (size_t m = 0; m < N_MEMBERS; ++m) {
                const ggml_tensor * t = tensor(i, m);
                if (!t) {
                    continue;
                }
                const ggml_tensor * experts = ffn.*ostinato_per_expert_tensors[m].member;
                const size_t bytes = experts->nb[ostinato_per_expert_tensors[m].dim];
                const char * data  = experts == ffn.gate ? from.gate : experts == ffn.up ? from.up : experts == ffn.gate_up ? from.gate_up
                                   : experts == ffn.down ? from.down : (const char *) experts->data + expert*bytes;
                memory.copy((char *) t->data + slot*bytes, data, bytes);
            }
            result.n_loaded++;
        }
        for (size_t m = 0; m < N_MEMBERS; ++m) {
            const ggml_tensor * t = tensor(i, m);
            if (t && (is_changed[i] || before.offsets[i*N_MEMBERS + m] != next.offsets[i*N_MEMBERS + m])) {
                const size_t used = n_hot[i]*t->nb[ostinato_per_expert_tensors[m].dim];
                const size_t end  = i*N_MEMBERS + m + 1 < n_places ? next.offsets[i*N_MEMBERS + m + 1] : next.end - (memory.cuda ? BOUNCE : 0);
                memory.fill((char *) t->data + used, 0, end - next.offsets[i*N_MEMBERS + m] - used);
            }
        }
        if (is_changed[i]) {
            write_table(i);
        }
    }
    return result;
}
