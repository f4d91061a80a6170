// Implementation of expert-pool.h.

#include "expert-pool.h"

#include <iterator>
#include <new>

ostinato_expert_pool::ostinato_expert_pool(const std::vector<ostinato_pool_layer> & sources, ggml_backend_buffer_type_t buft) {
    ctx.reset(ggml_init({
        /*.mem_size   =*/ sources.size()*(std::size(ostinato_per_expert_tensors) + 1)*ggml_tensor_overhead(),
        /*.mem_buffer =*/ nullptr,
        /*.no_alloc   =*/ true,
    }));

    for (const ostinato_pool_layer & source : sources) {
        const int64_t n_slots = (int64_t) source.hot.size() + source.k;
        entry e;
        e.slots     = *source.ffn;
        e.zero_slot = (int32_t) source.hot.size();
        for (const auto & [member, dim] : ostinato_per_expert_tensors) {
            const ggml_tensor * experts = source.ffn->*member;
            if (!experts) {
                continue;
            }
            int64_t ne[GGML_MAX_DIMS] = { experts->ne[0], experts->ne[1], experts->ne[2], experts->ne[3] };
            ne[dim] = n_slots;
            ggml_tensor * slots = ggml_new_tensor(ctx.get(), experts->type, GGML_MAX_DIMS, ne);
            ggml_format_name(slots, "%s (pool)", experts->name);
            e.slots.*member = slots;
        }
        e.index_table = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, source.n_experts);
        layers.push_back(e);
    }

    buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft));
    if (!buffer) {
        throw std::bad_alloc();
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(buffer.get(), 0);

    std::vector<char> expert;
    for (size_t i = 0; i < sources.size(); ++i) {
        const ostinato_pool_layer & source = sources[i];
        for (const auto & [member, dim] : ostinato_per_expert_tensors) {
            const ggml_tensor * experts = source.ffn->*member;
            if (!experts) {
                continue;
            }
            const size_t bytes = experts->nb[dim];
            expert.resize(bytes);
            for (size_t slot = 0; slot < source.hot.size(); ++slot) {
                ggml_backend_tensor_get(experts, expert.data(), source.hot[slot]*bytes, bytes);
                ggml_backend_tensor_set(const_cast<ggml_tensor *>(layers[i].slots.*member), expert.data(), slot*bytes, bytes);
            }
        }
        std::vector<int32_t> table(source.n_experts, -1);
        for (size_t slot = 0; slot < source.hot.size(); ++slot) {
            table[source.hot[slot]] = (int32_t) slot;
        }
        ggml_backend_tensor_set(layers[i].index_table, table.data(), 0, table.size()*sizeof(int32_t));
    }
}
