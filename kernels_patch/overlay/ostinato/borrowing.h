// Borrowed memory of one GPU (paper 3.4): what prefill stages uploads in serves cold experts while a request decodes.
//
// Which ones, a thread of its own decides from the route counters, by the rule that profiles/borrowing.py replays: every use of an expert raises
// its score, each decode step lowers all scores by DECAY, and a cold expert takes the place of a borrowed one that scores less than
// 1/HYSTERESIS of it. It copies them over the link, which it takes for SHARE of the time at most. Decode passes have index tables of their own, and
// these change between two passes only: what is replaced leaves the tables before its place is written, what has arrived enters them after.
//
// A pass that stages uploads takes back first what it may overwrite.

#pragma once

#include "expert-pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

// A layer as the borrower sees it. What it points to outlives it and changes while experts move only.
struct ostinato_borrowing_layer {
    int32_t n_experts;
    const void * counts;               // in device memory: (n_experts) u32, decode routes ever, wrapping around
    const ostinato_host_expert * host; // (n_experts)
};

struct ostinato_borrowing_view {
    size_t   n_borrowed = 0; // experts at this moment,
    size_t   bytes      = 0; // and their size
    uint64_t n_uploaded = 0; // since the model was loaded
};

class ostinato_borrower {
public:
    using expert_sets = ostinato_expert_pool::hot_sets;

    // Takes `percent` of the lent places. Throws std::bad_alloc, and std::system_error when there is no thread.
    ostinato_borrower(const ostinato_pool_memory & memory, std::vector<ostinato_borrowing_layer> layers, int32_t percent);
    ~ostinato_borrower();

    ostinato_borrower(const ostinato_borrower &) = delete;
    ostinato_borrower & operator=(const ostinato_borrower &) = delete;

    // [n_experts] i32: slots of hot and borrowed experts, for passes that begin_decode() announced.
    ggml_tensor * index_table(size_t layer) const { return tables[layer]; }

    // Lent memory may be written to by others from now on until reset(); nothing computes.
    void stop();

    // The pool has changed, or lends other places; nothing computes. Nothing is borrowed afterwards.
    void reset(const ostinato_expert_pool & pool);

    // A pass that uses the tables is about to be submitted. `is_idle`: the GPU has nothing left to compute.
    void begin_decode(bool is_idle);

    // A pass that overwrites lent memory before `limit` is about to be submitted. What lies beyond stays borrowed: a short prompt stages few experts.
    void give_back(const char * limit);

    // From now on exactly these experts are borrowed, as far as they are cold, page-locked and there are places; nothing computes. For the replay of what
    // was recorded, and tests. Returns how many are.
    size_t set(const expert_sets & wanted);

    // What the tables have named since the last switch: what the last pass that used them borrowed.
    expert_sets borrowed();

    ostinato_borrowing_view view();

private:
    struct expert {
        size_t layer;
        int32_t id;
    };
    struct lent_place {
        size_t kind;
        char * data;
        int32_t index;    // among those of its kind
        int32_t id = -1;  // of the expert that it holds or is meant for; -1: free
        size_t layer = 0;
        bool is_serving = false;
    };
    struct upload {
        size_t place;
        expert wanted;
    };

    void run();
    void read_uses();
    double score(const expert & e) const { return sums[e.layer][e.id]; }
    std::vector<upload> choose(size_t at_most);
    bool is_worth_it(const expert & newcomer, const lent_place & place) const;
    void end_uploads(std::unique_lock<std::mutex> & lock); // those chosen before are void, and the one being copied is over
    bool switch_tables(std::unique_lock<std::mutex> & lock, uint64_t now);
    bool copy(std::unique_lock<std::mutex> & lock, const upload & u, uint64_t now);
    void lend(std::unique_lock<std::mutex> & lock, const std::vector<upload> & uploads);
    void write_tables();
    void put(lent_place & place, bool is_serving);

    ostinato_pool_memory memory;
    std::vector<ostinato_borrowing_layer> layers;
    int32_t percent;
    ggml_context_ptr        ctx;
    ggml_backend_buffer_ptr buffer;
    std::vector<ggml_tensor *> tables;
    size_t n_columns = 0; // of a table's row in `shadow`

    // the thread's own
    std::vector<std::vector<double>> sums; // by layer and expert
    std::vector<uint32_t> seen;            // counters at the last look
    double weight = 1.0;                   // of a use now
    uint64_t n_steps_seen = 0;

    std::mutex mutex; // guards all that follows
    std::condition_variable changed;
    std::vector<int32_t> shadow;                // what the tables hold, or will from the next switch on
    std::vector<int32_t> in_force;              // what they hold
    std::vector<std::vector<int32_t>> hot;      // by layer: slots of hot experts
    std::vector<ostinato_lent_places> places_of; // by layer
    std::vector<lent_place> places;
    uint64_t generation = 0;                    // of what is lent: an upload for an older one is void
    bool is_copying    = false;
    bool is_manual     = false;
    bool is_stopping   = false;
    uint64_t n_uploaded = 0;
    uint64_t n_failed   = 0;

    // read without the lock too, by the thread that submits passes
    std::atomic<bool> is_switch_due { false }; // `shadow` waits for a moment between two passes
    std::atomic<bool> is_staging { true };     // the memory is being staged in: since the last give_back no pass has used the tables
    const char * returned_to = nullptr;        // up to where; that thread's alone
    std::atomic<uint64_t> n_steps { 0 };

    std::thread thread; // last: it uses the others
};
