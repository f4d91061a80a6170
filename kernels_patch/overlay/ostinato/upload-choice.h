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
    double cpu_row_in_step     = 1.0/40e9; // with one row, in a decode step, which has few experts
    double cpu_row_beside_link = 1.0/30e9; // the same while the link works,
    double in_place_beside_cpu = 1.0/15e9; // where the GPU computes them in place
    bool is_default = true;      // nothing was measured
};

// Seconds of the CPU branch for an expert of so many bytes and rows.
double ostinato_cpu_seconds(const ostinato_speeds & speeds, int64_t bytes, int32_t rows);

// The power of two that a pass's tokens reach.
inline int ostinato_size_class(int64_t n_tokens) {
    int n = 0;
    while (n < 31 && n_tokens >> (n + 1) > 0) {
        ++n;
    }
    return n;
}

// Of the hidden columns of each cold expert of a decode step, how many the GPU computes in place: a multiple of `step` below `columns`, 0 where the
// CPU branch alone ends no later. CPU and link read the same memory, which may be all that counts.
int64_t ostinato_choose_link_columns(const ostinato_speeds & speeds, int64_t columns, int64_t step);

// The experts to upload, as indices into `rows`, at most `max_uploads`. rows[i] < 0: expert i cannot be uploaded, and the CPU has -rows[i] rows of it.
// The link begins `head_start` seconds before the CPU.
std::vector<int32_t> ostinato_choose_uploads(
    const ostinato_speeds & speeds, int64_t bytes, const std::vector<int32_t> & rows, int32_t max_uploads, double head_start = 0.0);
