// Implementation of record.h.

#include "record.h"

#include <algorithm>
#include <numeric>

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t) 63;
}

size_t ostinato_record_padding(const ggml_tensor * weight) {
    constexpr int64_t COLUMNS = 512; // as ggml's CUDA backend pads rows
    const int64_t rest = weight->ne[0] % COLUMNS;
    return ggml_is_quantized(weight->type) && rest != 0 ? ggml_row_size(weight->type, COLUMNS - rest) : 0;
}

ostinato_record::ostinato_record(const ostinato_expert_ffn & ffn) {
    size_t unit  = 64;
    size_t bytes = 0;
    for (size_t i = 0; i < offsets.size(); ++i) {
        if (const ggml_tensor * weight = ffn.*ostinato_record_weights[i].member) {
            const size_t padding_of = ostinato_record_padding(weight);
            offsets[i] = bytes;
            bytes   = align64(bytes + weight->nb[2] + padding_of);
            padding = std::max(padding, padding_of);
            unit    = std::lcm(unit, ggml_type_size(weight->type));
        }
    }
    stride = (bytes + unit - 1)/unit*unit;
}

bool ostinato_is_like(const ostinato_expert_ffn & a, const ostinato_expert_ffn & b) {
    return std::all_of(std::begin(ostinato_record_weights), std::end(ostinato_record_weights), [&](const ostinato_record_weight & weight) {
        const ggml_tensor * x = a.*weight.member;
        const ggml_tensor * y = b.*weight.member;
        return !x == !y && (!x || (x->type == y->type && x->ne[0] == y->ne[0] && x->nb[2] == y->nb[2]));
    });
}

std::vector<size_t> ostinato_record_kinds(const std::vector<const ostinato_expert_ffn *> & layers) {
    std::vector<size_t> kinds;
    std::vector<const ostinato_expert_ffn *> first;
    for (const ostinato_expert_ffn * ffn : layers) {
        size_t kind = 0;
        while (kind < first.size() && !ostinato_is_like(*first[kind], *ffn)) {
            ++kind;
        }
        if (kind == first.size()) {
            first.push_back(ffn);
        }
        kinds.push_back(kind);
    }
    return kinds;
}
