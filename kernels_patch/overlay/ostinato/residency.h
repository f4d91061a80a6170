// The residency set as a file: which experts of a model are hot, and where that choice comes from (paper 3.1 step 3).
//
// Format and its reasons: docs/residency-file.md. The Python side, which writes these files, is profiles/residency.py; both readers refuse
// the same files with the same words. This one knows neither llama nor ggml: whether a set fits a loaded model is decided in engine.cpp.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

struct ostinato_residency {
    std::string fingerprint;      // of the model's GGUF headers: SHA-256, 64 lowercase hex digits
    uint64_t generation   = 0;    // counts a model's sets from 1; 0: made in memory, not read from a file
    uint64_t created_at_s = 0;    // unix time
    std::string provenance;       // JSON text for people and for the daemon; opaque here
    int32_t n_experts     = 0;    // per layer, the largest where layers differ
    std::vector<int32_t> layers;             // the model's index of each MoE layer, ascending
    std::vector<std::vector<int32_t>> hot;   // per layer, ascending

    size_t n_hot() const;
};

bool operator==(const ostinato_residency & a, const ostinato_residency & b);

// "" and the set in `out`, or what was expected and what was found; `out` is then untouched. Throws std::bad_alloc only.
std::string ostinato_parse_residency_bytes(const void * data, size_t size, ostinato_residency & out);

// The same for a file, whose name is UTF-8. Throws std::bad_alloc only.
std::string ostinato_read_residency_file(const std::string & path, ostinato_residency & out);

// True for 64 lowercase hex digits.
bool ostinato_is_fingerprint(const std::string & text);
