// Kinds of experts on one GPU, whose speeds are measured once each: layers whose experts have the same types, shapes and strides (record.h). Files mix
// types, and the CPU computes some of them much faster than others, so each layer counts with the speeds and with the link's share of its own kind.
//
// Measuring a kind takes about a second of loading a model. So at most OSTINATO_MAX_MEASURED_KINDS kinds of a GPU are measured, those with the most bytes of cold experts
// first. Layers of the other kinds, and of kinds with too few experts in page-locked memory, count with what was found for the measured kind whose types
// are most alike.

#pragma once

#include "record.h"
#include "upload-choice.h"

#include "ggml.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

// Types of an expert's weights, in the order of ostinato_record_weights; GGML_TYPE_COUNT where there is no such weight.
using ostinato_weight_types = std::array<ggml_type, std::size(ostinato_record_weights)>;

ostinato_weight_types ostinato_types_of(const ostinato_expert_ffn & ffn);

// For logs: "gate q4_K, up q4_K, down q6_K".
std::string ostinato_type_names(const ostinato_weight_types & types);

// Layers of one GPU whose experts are of one kind.
struct ostinato_speed_kind {
    ostinato_weight_types types = {};
    int64_t expert_bytes = 0;
    size_t  bytes = 0;          // of all experts of its layers
    std::vector<size_t> layers; // by their numbers on the GPU

    // What its layers count with.
    ostinato_speeds speeds;
    double  link_percent = 0.0; // of the hidden columns, read in place in decode
    int32_t measured     = -1;  // the kind with whose experts that was found: its own number, or another's in its place; -1: nothing was
};

// The layers' kinds, in the order in which they are first met.
std::vector<ostinato_speed_kind> ostinato_speed_kinds(const std::vector<const ostinato_expert_ffn *> & layers);

// The kind with the most bytes of experts, the first of several: whose figures stand for the GPU where there is room for one. `kinds` is not empty.
size_t ostinato_main_kind(const std::vector<ostinato_speed_kind> & kinds);

// What decides whether a kind is measured.
struct ostinato_kind_facts {
    ostinato_weight_types types;
    size_t cold_bytes;  // of experts that are not hot at this moment
    bool is_measurable; // a layer of it has a staging buffer and enough experts in page-locked memory
};

struct ostinato_measuring_plan {
    std::vector<size_t>  order;    // kinds to measure, one after the other
    std::vector<int32_t> measured; // by kind: which of them stands for it, see ostinato_speed_kind; -1 where none is measured
};

constexpr size_t OSTINATO_MAX_MEASURED_KINDS = 4;

// A measured kind stands for itself. For any other stands the one with the most weights of the same type, of several the one measured first.
ostinato_measuring_plan ostinato_plan_measuring(const std::vector<ostinato_kind_facts> & kinds);
