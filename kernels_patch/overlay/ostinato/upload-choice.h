// What of a pass's cold experts the link gets and what the CPU branch: both sides work at once, and the choice makes the later of the two as early
// as it can. In passes of many tokens that is which experts are uploaded (beyond paper 3.3, which decides once per pass), in decode steps how many
// columns of each the GPU computes in place (paper 3.4).
//
// Times are linear in bytes, measured on this machine with the model's own experts. A CPU that has one row per expert is bound by its memory;
// with many rows it is bound by its arithmetic, between them by both. An upload costs the same however many rows the expert has.

#pragma once

#include <cstdint>
#include <vector>

struct ostinato_speeds {
    double cpu_row  = 1.0/40e9;  // seconds per byte of an expert with one row
    double cpu_few  = 1.0/25e9;  // with 4 rows
    double cpu_rows = 1.0/10e9;  // with 16 rows
    double link     = 1.0/20e9;  // seconds per byte uploaded
    double in_place = 1.0/15e9;  // seconds per byte that the GPU computes in place in a decode step, beside the CPU branch
    bool is_default = true;      // nothing was measured
};

// What uploads cost beside the CPU branch; see upload-costs.h.
struct ostinato_upload_costs {
    double link;            // seconds per byte uploaded
    double hot       = 0.0; // seconds of the GPU for hot experts, beside both
    double chain     = 0.0; // and for those uploaded, after both hot experts and the last upload
    double cpu       = 1.0; // the CPU branch's time over what its speeds say: beside uploads,
    double cpu_alone = 1.0; // and without
};

// Seconds of the CPU branch for an expert of so many bytes and rows.
double ostinato_cpu_seconds(const ostinato_speeds & speeds, int64_t bytes, int32_t rows);

// And for a step's experts: `groups` holds, for each of them, its number and where its routes end.
double ostinato_cpu_seconds(const ostinato_speeds & speeds, int64_t bytes, const std::vector<int32_t> & groups);

// The power of two that a pass's tokens reach.
inline int ostinato_size_class(int64_t n_tokens) {
    int n = 0;
    while (n < 31 && n_tokens >> (n + 1) > 0) {
        ++n;
    }
    return n;
}

// A decode step's cold experts with so many of their hidden columns computed by the GPU in place, beside the CPU branch.
struct ostinato_shared_step {
    int64_t columns;
    double seconds;  // until both are through
    double in_place; // seconds per byte of the GPU
};

// The one of `measured` that ends first, nullptr where the CPU branch alone ends about as early: CPU and link read the same memory, which may be all that counts.
const ostinato_shared_step * ostinato_choose_shared_step(const std::vector<ostinato_shared_step> & measured, double alone);

// The experts to upload, as indices into `rows`, at most `max_uploads`. rows[i] < 0: expert i cannot be uploaded, and the CPU has -rows[i] rows of it.
// The link begins `head_start` seconds before the CPU. `seconds` becomes what the step is expected to take.
std::vector<int32_t> ostinato_choose_uploads(
    const ostinato_speeds & speeds, const ostinato_upload_costs & costs, int64_t bytes, const std::vector<int32_t> & rows, int32_t max_uploads,
    double head_start, double & seconds);
