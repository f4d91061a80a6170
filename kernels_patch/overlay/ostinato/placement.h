// Where the experts of one model are: the pools with the hot ones, host memory with the cold ones, and for layers on GPUs the mailboxes over which
// the CPU branch is asked (paper 3.1).
//
// Made when the model has been loaded, with no expert hot. Layers on a CPU take their hot experts at once. GPU memory is claimed by
// claim_memory(), when the first context exists and what it needs is known; a set that was asked for before is applied then.

#pragma once

#include "borrowing.h"
#include "cold-workers.h"
#include "expert-pool.h"
#include "host-arena.h"
#include "mailbox.h"
#include "residency.h"
#include "speed-kinds.h"

#include "ggml-backend.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

// True for weights that the loader put in page-locked memory itself.
bool ostinato_is_page_locked(const ggml_tensor * t);

// What the placement needs to know of one layer.
struct ostinato_placed_layer {
    int32_t il;
    int32_t n_experts;
    int32_t k;
    ggml_backend_dev_t device;
    const ostinato_expert_ffn * ffn;  // where the loader put its experts
    const ostinato_expert_ffn * cold; // what the CPU branch computes
    const ggml_tensor * counts;       // [n_experts, phases] i32, on the device: routes
};

// Limits that stand for a smaller machine, and room for others.
struct ostinato_limits {
    size_t pool_bytes   = std::numeric_limits<size_t>::max(); // of each GPU
    size_t pin_bytes    = std::numeric_limits<size_t>::max();
    size_t margin_bytes = 1024ull*1024*1024; // of each GPU, left free
    int    n_threads    = 0;                 // 0: as many as are worth having
    uint64_t timeout_ns = 20'000'000'000;
    ostinato_upload_limits upload = { 64, std::numeric_limits<int64_t>::max(), 0 };
    int64_t link_tokens  = 4; // steps of at most so many tokens have a part of their cold experts read in place by the GPU;
    int32_t link_percent = 0; // of the hidden columns: 0: by the measured speeds, -1: none
    int64_t borrow_tokens  = 4; // passes of at most so many tokens use experts in borrowed memory. Their slots lie beyond a tensor's own, which the vector
                                // kernels alone reach; the tiled ones, which some GPU takes for 5 tokens, would leave such routes out
    int32_t borrow_percent = 100; // and it is so much of what stages uploads; 0: none
    double  staging_share = 0.125; // of the pool's memory, at most, that stages uploads and is lent in decode,
    int32_t staging_experts = 0;   // but room for so many experts of a layer at least
    int32_t copy_blocks = 0;       // of the kernel that uploads; 0: as it was built
};

// The GPU's share of a layer's cold routes in steps of few tokens: the first `columns` hidden columns, read from page-locked memory in place.
struct ostinato_link {
    ostinato_expert_ffn experts;      // gate, up and down, `columns` wide, one expert per place in host memory
    ggml_tensor * table   = nullptr;  // [n_experts] i32: the place of an expert, -1 where the GPU cannot read it
    int32_t       columns = 0;        // 0: no share
};

// Steps of layers with uploads.
struct ostinato_upload_times {
    uint64_t steps = 0;
    uint64_t ns    = 0;
    uint64_t expected_ns = 0;                // by the choice of what to upload
    std::vector<ostinato_fixed_costs> costs; // that it counts with by now
};

// Layers of one GPU whose experts are of one kind, and what they count with.
struct ostinato_kind_view {
    ostinato_weight_types types = {};
    int64_t expert_bytes = 0;
    size_t  bytes = 0;           // of all their experts
    std::vector<int32_t> layers; // the model's indices
    int32_t measured = -1;       // see ostinato_speed_kind
    ostinato_speeds speeds;
    int32_t link_columns = 0;    // 0: no share
    int64_t hidden_columns = 0;
};

struct ostinato_memory_view {
    std::string device;
    size_t pool_capacity = 0;
    size_t pool_used     = 0;
    size_t pool_room     = 0; // for experts, as the model's file has them,
    size_t pool_unlearned = 0; // and what of it a set should take that nobody has learned
    uint64_t published   = 0; // steps of layers with cold routes
    uint64_t cold_routes = 0;
    uint64_t waited_ns   = 0; // by the GPU, for the CPU branch,
    uint64_t decode_waited_ns = 0; // and that in steps of one token
    uint64_t linked      = 0; // cold routes that the link had a share of
    uint64_t cpu_routes  = 0; // cold routes that the CPU branch computed, or a share of
    uint64_t cpu_busy_ns = 0;
    uint64_t decode_busy_ns = 0; // in steps of one token
    uint64_t uploaded    = 0; // experts
    uint64_t uploaded_bytes = 0;
    uint64_t prefetched  = 0; // experts copied before their layer's router had run,
    uint64_t foreseen    = 0; // and those of them that it chose
    size_t staging_bytes = 0;
    ostinato_borrowing_view borrowing;
    ostinato_graph_counts graphs;
    ostinato_speeds speeds;   // of the kind with the most bytes of experts, as the next two
    int32_t link_columns = 0;
    int64_t hidden_columns = 0;
    std::vector<ostinato_kind_view> kinds;
    std::vector<ostinato_layer_times> decode; // by layer
    ostinato_pass_times prefill;
    ostinato_upload_times uploads;
    bool is_gpu = false;
};

class ostinato_placement {
public:
    // Throws std::runtime_error with the reason where a layer cannot be split between two branches, and std::bad_alloc.
    ostinato_placement(std::vector<ostinato_placed_layer> layers, const ostinato_limits & limits);
    ~ostinato_placement();

    ostinato_placement(const ostinato_placement &) = delete;
    ostinato_placement & operator=(const ostinato_placement &) = delete;

    // Why the sets do not fit the pools, or "".
    std::string fit(const ostinato_expert_pool::hot_sets & hot) const;

    // Makes exactly these experts hot; no pass of the model may be computing. Returns what moved. Throws std::runtime_error when a device fails.
    ostinato_expert_pool::change apply(const ostinato_expert_pool::hot_sets & hot);

    // The part of the sets that fits: every layer of a GPU that is short gives up the same share of its set, from its end.
    // Of sets that nobody has learned, less: memory serves better lent then.
    ostinato_expert_pool::hot_sets shrink(const ostinato_expert_pool::hot_sets & hot, bool is_learned) const;

    // Takes the memory that the GPUs have left for the pools. Once.
    void claim_memory();

    bool needs_memory() const; // a layer is on a GPU, and its memory is not claimed yet

    // A graph for so many tokens is about to be built.
    void reserve(int64_t n_tokens);

    // A pass of so many tokens is about to be submitted.
    void begin_pass(int64_t n_tokens);

    // The devices have nothing left to compute. Ends the process where a pass waited in vain, before anybody reads its results.
    void end_passes();

    // Waits for what the GPUs are computing.
    void synchronize() const;

    // From now on exactly these experts are borrowed, where the memory is lent; no pass may be computing. Returns how many are.
    size_t borrow(const ostinato_expert_pool::hot_sets & wanted);

    // What the last pass that used borrowed memory found there.
    ostinato_expert_pool::hot_sets borrowed() const;

    const ostinato_expert_ffn & slots(size_t layer) const;
    // For passes of so many tokens.
    ggml_tensor * index_table(size_t layer, int64_t n_tokens) const;

    int32_t zero_slot(size_t layer) const; // or OSTINATO_NO_ZERO_SLOT
    const ostinato_mailbox * mailbox(size_t layer) const { return groups[group_of[layer]]->is_gpu() ? &groups[group_of[layer]]->mailbox : nullptr; }
    int32_t mailbox_layer(size_t layer) const { return index_in_group[layer]; }

    // The staging buffer as the layer's experts, nullptr where passes of so many tokens upload none.
    const ostinato_expert_ffn * staging(size_t layer, int64_t n_tokens) const;

    // The link's share of the layer's cold routes in passes of so many tokens, nullptr for none.
    const ostinato_link * link(size_t layer, int64_t n_tokens) const;

    std::vector<ostinato_memory_view> view() const;
    size_t pool_bytes() const;
    size_t pinned_bytes() const { return arena ? arena->locked_bytes() : 0; }
    bool prefetches() const { return limits.upload.prefetch_us >= 0; }
    std::string pin_refusal() const { return arena ? arena->refusal() : ""; }

private:
    // The layers of one device.
    struct group {
        ggml_backend_dev_t device = nullptr;
        ostinato_pool_memory memory = {};
        std::vector<size_t> layers;
        std::vector<ostinato_pool_layer> pool_layers;
        std::unique_ptr<ostinato_expert_pool> pool;

        explicit group(const ostinato_upload_limits & limits) : client(limits) {}

        ostinato_mailbox mailbox;
        ggml_backend_buffer_ptr state;
        ggml_backend_buffer_ptr token_state; // the mailbox's words of tokens
        ostinato_cold_client client;

        std::vector<uint8_t> is_skipping;         // by layer: whether all its products leave out skipped routes
        std::vector<ostinato_expert_ffn> staging; // by layer: the pool's lent places, with all biases
        std::unique_ptr<ostinato_borrower> borrower; // nullptr: nothing is lent

        ggml_context_ptr        biases_ctx;
        ggml_backend_buffer_ptr biases_buffer;
        std::vector<ostinato_expert_ffn> biases;  // by layer: those of all experts; empty where no layer has any

        ggml_context_ptr        link_ctx;
        ggml_backend_buffer_ptr link_buffer; // the tables
        std::vector<ostinato_link> links;    // by layer; empty before speeds are known

        std::vector<ostinato_speed_kind> kinds;
        std::vector<size_t> kind_in_group; // by layer

        bool is_gpu() const { return memory.cuda != nullptr; }
        bool has_speeds() const { return !kinds.empty() && kinds.front().measured >= 0; } // one kind's stand for all others
    };

    // A layer of a kind and its experts with which the kind is measured.
    struct measured_experts {
        size_t layer = 0; // of the group
        std::vector<int32_t> experts; // empty: there are too few
    };

    void add_group(ggml_backend_dev_t device);
    void add_kinds();
    bool may_stage() const;
    size_t lent_for(const group & g, int32_t n_experts) const;
    size_t unlearned_bytes(const group & g) const;
    void connect_staging(group & g);
    void add_biases(group & g);
    void add_borrower(group & g);
    bool is_borrowing(const group & g, int64_t n_tokens) const;
    void announce(group & g, int64_t n_tokens, bool was_idle);
    measured_experts experts_to_measure(const group & g, const ostinato_speed_kind & kind) const;
    void measure_speeds(group & g, const ostinato_expert_pool::hot_sets & hot);
    void measure_kind(group & g, ostinato_speed_kind & kind, const measured_experts & with);
    void measure_sharing(group & g, ostinato_speed_kind & kind, size_t i, const ostinato_cold_layer & layer, const std::vector<int32_t> & experts);
    ostinato_kind_view view_of(const group & g, const ostinato_speed_kind & kind) const;
    void tell_kinds(const group & g) const;
    ostinato_link make_link(const group & g, size_t i, int32_t columns, ggml_context * ctx, ggml_backend_buffer_t buffer) const;
    int32_t place_of(size_t layer, int32_t expert, const ostinato_link & link) const;
    void add_links(group & g);
    void write_link_tables(group & g);
    int32_t link_columns(const group & g, size_t i) const;
    ostinato_expert_pool::hot_sets part_of(const group & g, const ostinato_expert_pool::hot_sets & hot) const;
    void place_cold(const ostinato_expert_pool::hot_sets & hot);
    void free_mailbox(group & g);
    void check_answers() const;

    std::vector<ostinato_placed_layer> layers;
    ostinato_limits limits;
    std::vector<std::unique_ptr<group>> groups;
    std::vector<size_t>  group_of;       // by layer
    std::vector<int32_t> index_in_group; // by layer

    std::unique_ptr<ostinato_host_arena> arena; // nullptr without a GPU
    std::vector<std::vector<ostinato_host_expert>> host; // by layer and expert: where its weights are in host memory
    std::vector<std::vector<char *>> places;             // by layer and expert: in the arena, or nullptr
    std::vector<std::vector<uint8_t>> pinned;            // by layer and expert: whether `host` is page-locked
    std::vector<std::vector<uint8_t>> linked;            // by layer and expert: whether its layer's link can read it
    std::vector<int> kind_of;                            // by layer: of its places in the arena, -1 for none
    bool is_claimed = false;
    std::atomic<bool> is_idle { true }; // no pass was submitted since the last ones ended
};
