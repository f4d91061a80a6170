// The expert pool of one device: its layers' hot experts, a slot each (paper 3.1, 3.4), and lent memory.
//
// A slot is a record (record.h). The slots of layers of one kind follow each other, a layer's own are contiguous. The product kernels are given
// a layer's slots and nothing more, since their cost grows with the number of experts they see; those of decode, whose cost does not, also take
// ids beyond, up to lent places. Where the kernels cannot skip a cold expert's routes, k zero slots follow the hot ones. Biases and scales are
// gathered per layer alike, so that one id addresses weight, bias and scale; a zero slot's are zero too.
//
// The memory is allocated once. Its end may be lent: prefill stages uploads there, and while a request decodes it serves cold experts. Another set of
// hot experts moves and loads only what differs; the tensors then change their addresses and numbers of slots, so graphs built before must not
// be used again, and what was lent is void.

#pragma once

#include "cpu-branch.h"
#include "cuda-functions.h"
#include "record.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdint>
#include <functional>
#include <vector>

// What the pool needs to know of one layer.
struct ostinato_pool_layer {
    const ostinato_expert_ffn * ffn;
    int32_t n_experts;
    int32_t n_zero_slots; // 0 where the kernels skip routes
};

// Memory of one device, and how it is written.
struct ostinato_pool_memory {
    ggml_backend_buffer_type_t buft;
    const ostinato_cuda_functions * cuda = nullptr; // nullptr: host memory
    int device = 0;

    // Throw std::runtime_error when the device fails.
    void copy(void * dst, const void * src, size_t bytes) const;
    void fill(void * dst, int value, size_t bytes) const;
};

// Places for records in lent memory, as a layer sees them.
struct ostinato_lent_places {
    char * base     = nullptr;
    size_t stride   = 0;
    int32_t n       = 0;
    int32_t slot    = 0; // that the layer's decode kernels take for the first of them
    size_t kind     = 0; // layers of one kind see the same places
};

class ostinato_expert_pool {
public:
    using hot_sets = std::vector<std::vector<int32_t>>; // per layer, without repetition
    using source   = std::function<ostinato_host_expert(size_t layer, int32_t expert)>;

    struct change {
        size_t n_loaded  = 0; // experts read from host memory
        size_t n_dropped = 0;
    };

    // Bytes that the sets take.
    static size_t bytes_for(const std::vector<ostinato_pool_layer> & layers, const hot_sets & hot, const ostinato_pool_memory & memory);

    // Bytes of experts' weights, as the model's file has them, that a pool of so much memory takes whatever their layers.
    static size_t room_for(const std::vector<ostinato_pool_layer> & layers, size_t capacity, const ostinato_pool_memory & memory);

    // Least bytes behind the hot experts so that every layer has a place in lent memory.
    static size_t least_lent(const std::vector<ostinato_pool_layer> & layers);

    // Without hot experts. What hot experts leave of `capacity` is lent, where `lent` bytes more always are. Throws std::bad_alloc when the device
    // has not that much left.
    ostinato_expert_pool(std::vector<ostinato_pool_layer> layers, ostinato_pool_memory memory, size_t capacity, size_t lent = 0);

    // Makes exactly the experts of `hot` hot, which fit. No graph over the pool may be computing, and nobody may write to lent memory: it lies elsewhere
    // afterwards. Throws std::runtime_error when the device fails; the pool is then unusable.
    change set_hot(const hot_sets & hot, const source & read);

    // The layer's slots in place of its experts; a member is nullptr where the layer has no such tensor.
    const ostinato_expert_ffn & slots(size_t layer) const { return entries[layer].slots; }

    // [n_experts] i32: slot of a hot expert, -1 of a cold one.
    ggml_tensor * index_table(size_t layer) const { return entries[layer].index_table; }

    // The same in host memory.
    std::vector<int32_t> slots_of_experts(size_t layer) const;

    int32_t zero_slot(size_t layer) const { return (int32_t) entries[layer].expert_of.size(); } // the first of them

    // All lent places as the layer's experts, weights only; nullptr without any.
    const ostinato_expert_ffn * staging(size_t layer) const { return entries[layer].n_staged > 0 ? &entries[layer].staging : nullptr; }

    // Where the first so many staging places of every layer end.
    const char * staging_end(int64_t n_places) const;

    // Those that the layer's kind has to itself. None where the layer has zero slots, or slots that far away cannot be named.
    ostinato_lent_places lent_places(size_t layer) const;

    // Bytes behind the layer's first slot in which its kernels can name one: they count blocks in 32 bits.
    size_t reach(size_t layer) const;

    size_t capacity() const { return size; }
    size_t used() const { return bytes_used; }
    size_t lent() const { return always_lent > 0 ? size + always_lent - bytes_used : 0; }

private:
    struct entry {
        ostinato_record record;
        size_t kind = 0;
        ostinato_expert_ffn slots;
        ostinato_expert_ffn staging;
        int64_t n_staged = 0;
        ggml_tensor * index_table = nullptr;
        std::vector<int32_t> expert_of; // by slot
    };

    // What lies in the pool one after the other: the records of a layer, or one of its other tensors.
    struct place {
        size_t layer;
        const ggml_tensor * ostinato_expert_ffn::* member; // nullptr: the records
        int dim;           // of the member, that counts experts
        size_t slot_bytes;
        size_t begin = 0;
        size_t end   = 0; // where the next one begins
    };

    static std::vector<place> plan(const std::vector<ostinato_pool_layer> & layers, const std::vector<size_t> & n_hot);
    static size_t end_of(const std::vector<place> & places, const ostinato_pool_memory & memory);

    char * base() const { return (char *) ggml_backend_buffer_get_base(buffer.get()); }
    size_t records_of(size_t layer) const;
    size_t first_lent(size_t layer) const;
    void move(size_t to, size_t from, size_t bytes);
    void place_tensors(std::vector<place> places);
    void place_staging(size_t layer);
    void load(size_t layer, size_t slot, int32_t expert, const ostinato_host_expert & from);
    void write_table(size_t layer);

    std::vector<ostinato_pool_layer> layers;
    ostinato_pool_memory memory;
    size_t size;        // that hot experts may take
    size_t always_lent; // behind it
    size_t bytes_used = 0; // lent memory begins there
    std::vector<place> current;
    std::vector<entry> entries;

    ggml_context_ptr        tables_ctx;
    ggml_backend_buffer_ptr tables_buffer;
    ggml_context_ptr        ctx;
    ggml_backend_buffer_ptr buffer;
};
