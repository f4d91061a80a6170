// All weights of one expert as one piece of memory. Pools, the staging buffer and page-locked host memory hold experts in this form, so that one
// number names an expert's place in each of them, one copy moves it, and products read a place through tensors that differ in their start only.
//
// Layers whose experts have the same weights have records of one kind.

#pragma once

#include "cpu-branch.h"

#include <array>
#include <cstddef>
#include <iterator>
#include <vector>

// The weights of an expert in the order in which they lie in a record, and where they are in host memory.
struct ostinato_record_weight {
    const ggml_tensor * ostinato_expert_ffn::* member;
    const char * ostinato_host_expert::* host;
};

inline constexpr ostinato_record_weight ostinato_record_weights[] = {
    { &ostinato_expert_ffn::gate,    &ostinato_host_expert::gate    },
    { &ostinato_expert_ffn::up,      &ostinato_host_expert::up      },
    { &ostinato_expert_ffn::gate_up, &ostinato_host_expert::gate_up },
    { &ostinato_expert_ffn::down,    &ostinato_host_expert::down    },
};

struct ostinato_record {
    std::array<size_t, std::size(ostinato_record_weights)> offsets = {}; // 0 where there is no such weight
    size_t stride  = 0; // bytes from a record to the next: whole blocks of every weight, since kernels count in blocks
    size_t padding = 0; // the most zero bytes behind a weight: see ostinato_record_padding

    explicit ostinato_record(const ostinato_expert_ffn & ffn);

    // The record's weight number i in memory that starts with record 0.
    char * at(char * base, size_t record, size_t i) const { return base + record*stride + offsets[i]; }
};

// Bytes behind the last row of a weight that kernels read and multiply by zero: what they find there must be finite.
size_t ostinato_record_padding(const ggml_tensor * weight);

// True where records of both are of one kind.
bool ostinato_is_like(const ostinato_expert_ffn & a, const ostinato_expert_ffn & b);

// By layer, the number of its kind, in the order in which the kinds are first met.
std::vector<size_t> ostinato_record_kinds(const std::vector<const ostinato_expert_ffn *> & layers);
