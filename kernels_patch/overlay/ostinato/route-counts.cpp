// Allocation and reading of the counters described in route-counts.h.

#include "route-counts.h"

#include "ggml.h"

#include <algorithm>
#include <map>
#include <new>

ostinato_route_counts::ostinato_route_counts(std::vector<ostinato_counted_layer> counted) : layers(std::move(counted)) {
    std::map<ggml_backend_buffer_type_t, std::vector<size_t>> by_buft;
    for (size_t i = 0; i < layers.size(); ++i) {
        by_buft[layers[i].buft].push_back(i);
        n_experts_max = std::max(n_experts_max, layers[i].n_experts);
    }

    tensors.resize(layers.size());
    for (const auto & [buft, indices] : by_buft) {
        ggml_context_ptr ctx { ggml_init({
            /*.mem_size   =*/ indices.size()*ggml_tensor_overhead(),
            /*.mem_buffer =*/ nullptr,
            /*.no_alloc   =*/ true,
        }) };
        for (const size_t i : indices) {
            tensors[i] = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, layers[i].n_experts, OSTINATO_PHASE_COUNT);
            ggml_format_name(tensors[i], "ostinato_routes-%d", layers[i].il);
        }
        ggml_backend_buffer_ptr buffer { ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft) };
        if (!buffer) {
            throw std::bad_alloc();
        }
        // weights: the scheduler runs an operator where its weights are, and never moves them
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_backend_buffer_clear(buffer.get(), 0);

        contexts.push_back(std::move(ctx));
        buffers .push_back(std::move(buffer));
    }

    for (int phase = 0; phase < OSTINATO_PHASE_COUNT; ++phase) {
        seen  [phase].resize(layers.size()*n_experts_max);
        totals[phase].resize(layers.size()*n_experts_max);
    }
}

void ostinato_route_counts::read(ostinato_phase phase, uint64_t * counts) {
    std::lock_guard<std::mutex> lock(mutex);

    std::vector<uint32_t> row(n_experts_max);
    for (size_t i = 0; i < layers.size(); ++i) {
        const size_t n = layers[i].n_experts;
        ggml_backend_tensor_get(tensors[i], row.data(), phase*tensors[i]->nb[1], n*sizeof(uint32_t));
        for (size_t e = 0; e < n; ++e) {
            const size_t at = i*n_experts_max + e;
            totals[phase][at] += (uint32_t) (row[e] - seen[phase][at]); // right across one wrap between two reads
            seen  [phase][at]  = row[e];
        }
    }
    std::copy(totals[phase].begin(), totals[phase].end(), counts);
}
