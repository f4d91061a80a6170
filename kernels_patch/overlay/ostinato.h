// Ostinato's C interface: what the Python bindings and the engine's HTTP routes call.
//
// Every function may be called from any thread. Nothing here throws, and nothing here changes what a model computes:
// a process that calls none of it runs llama.cpp's own code paths. Functions that can fail return an ostinato_status
// and leave one sentence for the calling thread in ostinato_last_error().

#pragma once

#include "llama.h"

#include <stddef.h>
#include <stdint.h>

#define OSTINATO_ABI_VERSION 9

#ifdef __cplusplus
extern "C" {
#endif

enum ostinato_status {
    OSTINATO_OK                = 0,
    OSTINATO_UNKNOWN_MODEL     = 1, // the model has no experts, or was loaded before this library could see it
    OSTINATO_NOT_COUNTING      = 2, // routes of this model are not counted; the reason is in ostinato_last_error()
    OSTINATO_INVALID_ARGUMENT  = 3,
    OSTINATO_REFUSED           = 4, // the file is not valid, or this model cannot be placed that way; the running placement is untouched
    OSTINATO_NO_RESIDENCY      = 5, // the model has no residency set
    OSTINATO_NO_MEMORY         = 6,
};

enum ostinato_phase {
    OSTINATO_PHASE_PREFILL = 0, // a forward pass that needs the logits of some of its tokens only
    OSTINATO_PHASE_DECODE  = 1, // a forward pass that needs the logits of all its tokens, speculative ones included
    OSTINATO_PHASE_COUNT   = 2,
};

// Structures of llama.h that the bindings mirror by hand; their sizes are compared when the bindings are imported.
enum ostinato_struct {
    OSTINATO_STRUCT_LLAMA_MODEL_PARAMS   = 0,
    OSTINATO_STRUCT_LLAMA_CONTEXT_PARAMS = 1,
    OSTINATO_STRUCT_LLAMA_BATCH          = 2,
    OSTINATO_STRUCT_COUNT                = 3,
};

LLAMA_API int32_t      ostinato_abi_version (void);
LLAMA_API const char * ostinato_llama_commit(void);                   // the pinned llama.cpp commit, static storage
LLAMA_API size_t       ostinato_sizeof      (enum ostinato_struct s); // bytes, 0 for an unknown id
LLAMA_API const char * ostinato_last_error  (void);                   // of the calling thread, "" when none

// Count the routes of models that are loaded from now on (off by default). Counting adds one node per MoE layer to the
// graph; no node reads its result.
LLAMA_API void ostinato_set_count_routes(bool enabled);

struct ostinato_route_shape {
    int32_t n_layers;  // MoE layers, in the order of the counts
    int32_t n_experts; // experts per layer, the largest where layers differ
};

// Blocking: no. Fails with UNKNOWN_MODEL or NOT_COUNTING.
LLAMA_API enum ostinato_status ostinato_get_route_shape(const struct llama_model * model, struct ostinato_route_shape * shape);

// il[n_layers]: the model's layer index of each counted layer.
LLAMA_API enum ostinato_status ostinato_get_route_layers(const struct llama_model * model, int32_t * il, size_t n);

// Routes since the model was loaded: counts[n_layers * n_experts], row by layer. Reads device memory where a layer lives
// on a GPU, so it waits for that copy alone. A forward pass that is running may be counted in some layers and not yet in others.
LLAMA_API enum ostinato_status ostinato_get_route_counts(
        const struct llama_model * model, enum ostinato_phase phase, uint64_t * counts, size_t n);

// ---- Residency sets ----------------------------------------------------------------------------------------------------------------

// Of the models that are loaded from now on.
struct ostinato_config {
    const char * fingerprint;    // of the model: SHA-256 over its GGUF headers as 64 lowercase hex digits; NULL or "" where it is not known
    const char * residency_file; // applied to the first model that it fits while it loads; NULL or "" for none. Needs the fingerprint
    bool two_branches;           // divide experts between two branches also without a residency file: on GPUs as many as fit are hot at first
    uint64_t pool_bytes;         // most memory of each GPU for the expert pool; 0: what is left
    uint64_t margin_bytes;       // memory of each GPU that stays free; 0: 1 GiB
    uint64_t pin_bytes;          // most host memory to page-lock for cold experts; 0: what the system can spare
    int32_t  n_threads;          // of the CPU branch of layers on GPUs, one number per process; 0: one per physical core, less one
    uint32_t timeout_ms;         // the longest wait for the CPU branch; 0: 20 s
    uint32_t upload_tokens;      // passes of so many tokens may upload cold experts; 0: 64, UINT32_MAX: never
    uint32_t upload_all_tokens;  // in passes of so many, the CPU branch gets only what cannot be uploaded; 0: never
    int32_t  link_percent;       // of a cold expert's hidden columns, read in place by the GPU in steps of few tokens; 0: by measured speeds, -1: none
    int32_t  borrow_percent;     // of the memory in which prefill stages uploads, lent to cold experts in decode; 0: all of it, -1: none
    int32_t  prefetch_us;        // time that the link has for a layer's uploads before its router has run; 0: as measured, -1: nothing is prefetched
    int32_t  staging_experts;    // least room of the memory in which prefill stages uploads, in experts of the largest layer; 0: an eighth of the pool, at most all of a layer
    int32_t  copy_blocks;        // of the kernel that uploads, and half of them of the one that copies ahead; 0: as they were built
};

// Replaces the configuration. A residency file implies that routes are counted. One that is refused leaves the model on the stock nodes:
// the reason is in the log and in ostinato_get_residency_status.
LLAMA_API enum ostinato_status ostinato_configure(const struct ostinato_config * config);

// A residency set in memory: which experts of which model are hot. Never changes after it was made; free it with ostinato_free_residency.
struct ostinato_residency;

struct ostinato_residency_facts {
    const char * fingerprint;  // of the model; "" where it is not known. Both texts live as long as the set
    const char * provenance;   // JSON text of whoever planned the set
    uint64_t     generation;   // 0: made by ostinato_set_residency, not read from a file
    uint64_t     created_at_s; // unix time
    uint64_t     n_hot;
    int32_t      n_layers;
    int32_t      n_experts;    // per layer, the largest where layers differ
};

// Read a residency file (docs/residency-file.md), without comparing it with a model. REFUSED where it is not a valid one.
LLAMA_API enum ostinato_status ostinato_parse_residency(const void * bytes, size_t size, struct ostinato_residency ** residency);
LLAMA_API enum ostinato_status ostinato_read_residency (const char * path, struct ostinato_residency ** residency);
LLAMA_API void                 ostinato_free_residency (struct ostinato_residency * residency); // NULL is fine

LLAMA_API struct ostinato_residency_facts ostinato_describe_residency(const struct ostinato_residency * residency);

// il[n_layers]
LLAMA_API enum ostinato_status ostinato_get_residency_layers(const struct ostinato_residency * residency, int32_t * il, size_t n);

// hot[n_layers * n_experts]: 1 for a hot expert, else 0.
LLAMA_API enum ostinato_status ostinato_get_residency_hot(const struct ostinato_residency * residency, uint8_t * hot, size_t n);

// Whether both are the same file: the same experts, generation and provenance.
LLAMA_API bool ostinato_equal_residency(const struct ostinato_residency * a, const struct ostinato_residency * b);

// OK where the set fits a loaded model, whose fingerprint is the one that was configured when it was loaded. Changes nothing.
LLAMA_API enum ostinato_status ostinato_check_residency(const struct llama_model * model, const struct ostinato_residency * residency);

// Makes exactly the experts of a file hot: they are computed from the expert pool in every forward pass, the others by the CPU branch.
// Call it after loading the model and before making its first context. Refused for weights on a GPU and for repacked ones.
LLAMA_API enum ostinato_status ostinato_load_residency(const struct llama_model * model, const char * path);

// The same with the experts where hot[layer * n_experts + expert] != 0.
LLAMA_API enum ostinato_status ostinato_set_residency(const struct llama_model * model, const uint8_t * hot, size_t n);

// A copy of the set that the model runs with; NO_RESIDENCY without one.
LLAMA_API enum ostinato_status ostinato_get_residency(const struct llama_model * model, struct ostinato_residency ** residency);

enum ostinato_residency_state {
    OSTINATO_RESIDENCY_NONE    = 0, // nobody asked for one
    OSTINATO_RESIDENCY_APPLIED = 1,
    OSTINATO_RESIDENCY_REFUSED = 2, // and none was applied before: the model runs on the stock nodes
};

struct ostinato_residency_status {
    enum ostinato_residency_state state;
    uint64_t generation; // of the set applied, as n_hot and pool_bytes; else 0
    uint64_t n_hot;
    uint64_t pool_bytes;
};

// Afterwards ostinato_last_error() is the reason of the last refusal for this model, "" where there was none.
LLAMA_API enum ostinato_status ostinato_get_residency_status(const struct llama_model * model, struct ostinato_residency_status * status);

// One device that has layers of the model. Figures since the model was loaded.
struct ostinato_device_status {
    char     name[32];
    bool     is_gpu;
    uint64_t pool_capacity; // bytes
    uint64_t pool_used;     // bytes
    uint64_t n_published;   // steps of layers that had cold routes; 0 on a CPU, as the next two
    uint64_t n_cold;        // cold routes
    uint64_t waited_ns;     // by the GPU for the CPU branch
    uint64_t n_cpu;         // cold routes that the CPU branch computed
    uint64_t cpu_busy_ns;   // by the CPU branch, from seeing a request to its answer
    uint64_t n_uploaded;    // experts
    uint64_t uploaded_bytes;
    uint64_t staging_bytes;
    double   cpu_row_bytes_per_s;  // measured speeds with the kind of experts that takes most bytes: of the CPU branch with one row per expert,
    double   cpu_rows_bytes_per_s; // with 16 rows,
    double   link_bytes_per_s;     // and of uploads; 0 where nothing was measured
    uint64_t n_linked;       // cold routes that the GPU computed a share of in place
    int32_t  link_columns;   // that share, of the same kind of experts; 0 for none
    int32_t  hidden_columns; // and its experts' hidden columns
    uint64_t borrowed_bytes;   // in staging memory, of cold experts that it serves at this moment
    uint64_t n_borrowed;       // experts copied there since the model was loaded
    uint64_t graph_captures;   // CUDA graphs captured on the device by this process,
    uint64_t graph_replays;    // passes that replayed one,
    uint64_t direct_passes;    // and that were submitted operator by operator
    uint64_t n_prefetched;     // experts copied before their layer's router had run,
    uint64_t n_foreseen;       // and those of them that it chose
    uint64_t decode_waited_ns; // of waited_ns and
    uint64_t decode_busy_ns;   // cpu_busy_ns, in steps of one token
    uint64_t pool_room;        // bytes of experts, as the model's file has them, that fit the pool whatever their layers
    double   in_place_bytes_per_s; // measured speed at which the GPU computes its share in place beside the CPU branch; 0 where it has none
    uint64_t pool_unlearned;   // of pool_room, what a set should take that nobody has learned: the rest serves better lent
};

// Lends staging memory to exactly these cold experts until a pass stages uploads in it, and none by the engine's own choice from now on: to replay what was recorded. hot[n_layers * n_experts]
// as in ostinato_set_residency: 1 for an expert that borrows. `n_lent`: how many there was memory for. No pass may be computing.
LLAMA_API enum ostinato_status ostinato_set_borrowed(const struct llama_model * model, const uint8_t * borrowing, size_t n, size_t * n_lent);

// borrowing[n_layers * n_experts]: 1 for each cold expert that the last pass found in borrowed memory. No pass may be computing.
LLAMA_API enum ostinato_status ostinato_get_borrowed(const struct llama_model * model, uint8_t * borrowing, size_t n);

// Fills devices[0 .. n - 1] and sets `n_devices` to how many there are, 0 where the experts are not divided.
LLAMA_API enum ostinato_status ostinato_get_device_status(
    const struct llama_model * model, struct ostinato_device_status * devices, size_t n, size_t * n_devices);

#define OSTINATO_TIMED_COLD_ROUTES 16

// What the CPU branch took for decode steps of one token, of one layer on a GPU, since the model was loaded: the constants of the cost model follow
// from it (paper 3.2, Appendix B).
struct ostinato_decode_times {
    int32_t  il;
    int64_t  expert_bytes;
    uint64_t steps[OSTINATO_TIMED_COLD_ROUTES]; // with 1, 2, … cold routes; steps with more are not kept
    uint64_t ns[OSTINATO_TIMED_COLD_ROUTES];    // from seeing their requests to answering them, together
};

// Fills layers[0 .. n - 1] and sets `n_layers` to how many there are.
LLAMA_API enum ostinato_status ostinato_get_decode_times(
    const struct llama_model * model, struct ostinato_decode_times * layers, size_t n, size_t * n_layers);

// What the choice of uploads counts with in passes of a size: learned in the first layers that had such passes, and fixed then.
struct ostinato_learned_costs {
    int64_t n_tokens;         // of the smallest such passes; the largest have less than twice as many
    double  link_bytes_per_s; // of uploads, beside the CPU branch
    double  hot_s;            // of the GPU for a layer's hot experts, beside both
    double  chain_s;          // and for those uploaded, after both hot experts and the last upload
    double  cpu;              // the CPU branch's time over what its speeds say: beside uploads,
    double  cpu_alone;        // and without; 1 where that is not known
};

// Of device number `device` in the order of ostinato_get_device_status, by ascending size: fills costs[0 .. n - 1] and sets `n_costs` to how many there are, 0 for
// one that has learned none yet. INVALID_ARGUMENT where there is no such device.
LLAMA_API enum ostinato_status ostinato_get_upload_costs(
    const struct llama_model * model, size_t device, struct ostinato_learned_costs * costs, size_t n, size_t * n_costs);

#ifdef __cplusplus
}
#endif
