// speeds_by_kind: what a placement measures of layers whose experts are of several kinds, on a machine without a GPU, whose part plain memory plays.
//
// What the CPU branch takes is made up and depends on the type of down alone, so that each layer's figures tell whose they are. A share of the link pays where
// down is Q6_K, and nowhere else.
//
// Prints nothing and returns 0, or one line per failure and 1. Compiled and run by tests/e2e/test_speed_kinds.py.

#include "checks.h"

#include "ostinato/placement.h"

#include "ggml-backend-impl.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "llama.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int32_t N_EXPERTS = 24;
constexpr int64_t N_FF      = 1024;
constexpr int64_t N         = 256; // of in and out

// A measurement of the CPU branch.
struct call {
    ggml_type down;
    int32_t n_rows;
    size_t  n_together;
    int32_t link_columns; // with the GPU beside it

    bool operator==(const call & other) const {
        return down == other.down && n_rows == other.n_rows && n_together == other.n_together && link_columns == other.link_columns;
    }
};

std::vector<call> calls;
std::string told; // by the log

// Seconds per byte with one row.
double seconds_of(ggml_type down) {
    return down == GGML_TYPE_Q4_K ? 1e-10 : down == GGML_TYPE_Q6_K ? 3e-10 : 9e-10;
}

const ostinato_cuda_functions functions = {
    [](size_t bytes) { return calloc(1, bytes); },
    free,
    [](void *, size_t) { return true; },
    [](void *) {},
    [](int, void * dst, const void * src, size_t bytes) { memcpy(dst, src, bytes); return true; },
    [](int, void * dst, int value, size_t bytes) { memset(dst, value, bytes); return true; },
    [](int) { return malloc(1); },
    [](int, void * stream) { free(stream); },
    [](int) { return malloc(1); },
    [](int, void * event) { free(event); },
    [](int) {},
    [](int, ggml_type, int64_t) { return true; },
    [](int) { return ostinato_graph_counts {}; },
    [] { return (uint64_t) 0; },
};

size_t gpu_bytes = 0;

std::vector<int32_t> first(int32_t n) {
    std::vector<int32_t> experts(n);
    std::iota(experts.begin(), experts.end(), 0);
    return experts;
}

// A GPU whose memory is the host's.
ggml_backend_device * played_gpu() {
    static ggml_backend_reg reg = {};
    reg.iface.get_name = [](ggml_backend_reg_t) { return "CUDA"; };
    reg.iface.get_proc_address = [](ggml_backend_reg_t, const char * name) -> void * {
        return strcmp(name, OSTINATO_CUDA_FUNCTIONS) == 0 ? (void *) &functions : nullptr;
    };
    static ggml_backend_device gpu = {};
    gpu.reg = &reg;
    gpu.iface.get_name        = [](ggml_backend_dev_t) { return "CUDA0"; };
    gpu.iface.get_type        = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
    gpu.iface.get_buffer_type = [](ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); };
    gpu.iface.get_memory      = [](ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = gpu_bytes; };
    gpu.iface.init_backend    = [](ggml_backend_dev_t, const char *) { return ggml_backend_cpu_init(); };
    return &gpu;
}

// A model's layers with gate and up in Q4_K or Q8_0, by the type of down.
struct model {
    std::vector<ostinato_expert_ffn> ffns;
    std::vector<ostinato_placed_layer> layers;

    explicit model(const std::vector<ggml_type> & downs) : ffns(downs.size()), ctx(ggml_init({ 3*downs.size()*ggml_tensor_overhead(), nullptr, true })) {
        for (size_t i = 0; i < downs.size(); ++i) {
            const ggml_type type = downs[i] == GGML_TYPE_Q8_0 ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_K;
            ffns[i].gate = ggml_new_tensor_3d(ctx.get(), type, N, N_FF, N_EXPERTS);
            ffns[i].up   = ggml_new_tensor_3d(ctx.get(), type, N, N_FF, N_EXPERTS);
            ffns[i].down = ggml_new_tensor_3d(ctx.get(), downs[i], N_FF, N, N_EXPERTS);
            layers.push_back({ (int32_t) (i + 3), N_EXPERTS, 2, played_gpu(), &ffns[i], &ffns[i], nullptr });
        }
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));
        ggml_backend_buffer_clear(buffer.get(), 0);
    }

    // On a GPU that not all experts fit.
    std::unique_ptr<ostinato_placement> placed() const {
        std::vector<ostinato_pool_layer> all;
        for (const ostinato_expert_ffn & ffn : ffns) {
            all.push_back({ &ffn, N_EXPERTS, 0 });
        }
        const ostinato_expert_pool::hot_sets hot(ffns.size(), first(N_EXPERTS));
        gpu_bytes = ostinato_expert_pool::bytes_for(all, hot, { ggml_backend_cpu_buffer_type(), &functions, 0 })/20*19;
        ostinato_limits limits;
        limits.margin_bytes   = 0;
        limits.n_threads      = 1;
        limits.borrow_percent = 0;
        limits.copy_blocks    = 5;
        auto placement = std::make_unique<ostinato_placement>(layers, limits);
        placement->claim_memory();
        return placement;
    }

private:
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
};

// The calls for a kind of so many experts.
std::vector<call> calls_for(ggml_type down, size_t n) {
    return { { down, 1, n, 0 }, { down, 4, n, 0 }, { down, 16, n, 0 }, { down, 1, 2, 0 }, { down, 1, 2, 256 }, { down, 1, 2, 512 } }; // blocks have 256 columns
}

// Whether the speeds are those of experts with such a down.
bool is_of(const ostinato_speeds & speeds, ggml_type down) {
    const double one = seconds_of(down);
    return !speeds.is_default && speeds.cpu_row == one && speeds.cpu_few == 4*one && speeds.cpu_rows == 16*one && speeds.link != ostinato_speeds().link;
}

// Seconds that are expected of the CPU branch for a row of an expert of the layer, as a step of two tokens that has none else is served.
double expected_of(const ostinato_placement & placement, size_t layer, int32_t expert) {
    const auto predicted_ns = [&] { return placement.view()[0].prefill.predicted_ns; };
    const uint64_t before_ns = predicted_ns();
    const ostinato_mailbox & mailbox = *placement.mailbox(layer);
    ostinato_request & request = *mailbox.request;
    mailbox.cold[0] = expert;
    mailbox.cold[1] = 0;
    mailbox.weights[0] = 1.0f;
    request.layer    = placement.mailbox_layer(layer);
    request.n_tokens = 2;
    request.k        = 2;
    request.n_cold   = 1;
    __atomic_store_n(&request.sequence, request.sequence + 1, __ATOMIC_RELEASE);
    const auto ends_at = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (predicted_ns() == before_ns && std::chrono::steady_clock::now() < ends_at) { // it is counted behind the answer
        std::this_thread::yield();
    }
    return (predicted_ns() - before_ns)*1e-9;
}

// Q4_K with two layers, Q6_K behind Q4_K with one that is all cold, and Q8_0 of which nearly all are hot.
void check_mixed_types() {
    const model m({ GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_Q4_K, GGML_TYPE_Q8_0 });
    const auto placement = m.placed();
    calls.clear();
    placement->apply({ first(12), {}, first(14), first(20) });
    std::vector<call> expected = calls_for(GGML_TYPE_Q6_K, N_EXPERTS); // it has the most bytes of cold experts
    for (const call & next : calls_for(GGML_TYPE_Q4_K, 12)) {
        expected.push_back(next);
    }
    if (calls != expected) {
        fail("%zu measurements, and not those of two kinds", calls.size());
    }
    const ostinato_memory_view view = placement->view()[0];
    if (view.kinds.size() != 3) {
        return fail("%zu kinds", view.kinds.size());
    }
    const ostinato_kind_view & q4 = view.kinds[0];
    const ostinato_kind_view & q6 = view.kinds[1];
    const ostinato_kind_view & q8 = view.kinds[2];
    if (q4.layers != std::vector<int32_t> { 3, 5 } || q6.layers != std::vector<int32_t> { 4 } || q8.layers != std::vector<int32_t> { 6 }) {
        fail("other layers of a kind");
    }
    if (q4.measured != 0 || q6.measured != 1 || q8.measured != 1) {
        fail("kinds %d, %d and %d were measured", q4.measured, q6.measured, q8.measured);
    }
    if (!is_of(q4.speeds, GGML_TYPE_Q4_K) || !is_of(q6.speeds, GGML_TYPE_Q6_K) || !is_of(q8.speeds, GGML_TYPE_Q6_K)) {
        fail("other speeds than those of each kind");
    }
    if (q4.link_columns != 0 || q6.link_columns != N_FF/2 || q8.link_columns != N_FF/2) {
        fail("%d, %d and %d columns are read in place", q4.link_columns, q6.link_columns, q8.link_columns);
    }
    for (size_t layer = 0; layer < m.layers.size(); ++layer) {
        const ostinato_link * link = placement->link(layer, 1);
        if ((link ? link->columns : 0) != (layer == 0 || layer == 2 ? 0 : N_FF/2)) {
            fail("layer %zu has %d columns in place", layer, link ? link->columns : 0);
        }
    }
    placement->reserve(2);
    for (size_t layer = 0; layer < m.layers.size(); ++layer) {
        const double expected_s = ostinato_expert_bytes(m.ffns[layer])*seconds_of(layer == 0 || layer == 2 ? GGML_TYPE_Q4_K : GGML_TYPE_Q6_K);
        if (const double found_s = expected_of(*placement, layer, N_EXPERTS - 1); std::abs(found_s - expected_s) > 2e-9) {
            fail("layer %zu is expected to take %g s, and not %g s", layer, found_s, expected_s);
        }
    }
    if (told.find("not measured, they count with the speeds of gate q4_K, up q4_K, down q6_K") == std::string::npos) {
        fail("nobody is told whose speeds stand for others");
    }
    // Q4_K has the most bytes, Q6_K the most cold ones
    if (!is_of(view.speeds, GGML_TYPE_Q4_K) || view.link_columns != 0 || view.hidden_columns != N_FF) {
        fail("another kind's figures stand for the device");
    }
    placement->apply({ {}, {}, {}, {} });
    if (calls != expected || placement->view()[0].kinds[2].measured != 1) {
        fail("what is known was measured again");
    }
}

// Whoever cannot be measured yet is when it can.
void check_one_kind() {
    const model m({ GGML_TYPE_Q6_K, GGML_TYPE_Q6_K });
    const auto placement = m.placed();
    if (placement->mailbox(0)->copy_blocks != 5) {
        fail("uploads are copied by %d blocks", placement->mailbox(0)->copy_blocks);
    }
    calls.clear();
    placement->apply({ first(18), first(17) });
    const ostinato_memory_view before = placement->view()[0];
    if (!calls.empty() || before.kinds.size() != 1 || before.kinds[0].measured != -1 || !before.speeds.is_default || before.link_columns != 0) {
        fail("speeds of 6 and 7 experts");
    }
    placement->apply({ first(18), first(16) });
    const ostinato_memory_view after = placement->view()[0];
    if (calls != calls_for(GGML_TYPE_Q6_K, 8) || after.kinds[0].measured != 0 || !is_of(after.speeds, GGML_TYPE_Q6_K) || after.link_columns != N_FF/2) {
        fail("no speeds of 8 experts");
    }
}

} // namespace

// Stand before the library's: steps of the CPU branch, and what the GPU reads in place beside them.
double ostinato_cold_workers::measure(
        const ostinato_cold_layer & layer, const std::vector<int32_t> &, int32_t n_rows, size_t n_together, const ostinato_beside & beside) {
    const ggml_type down = layer.ffn->down->type;
    calls.push_back({ down, n_rows, n_together, beside.link_columns });
    if (beside.begin) {
        beside.begin();
        beside.end();
    }
    const double shared = (double) beside.link_columns/layer.ffn->n_ff();
    return n_rows*seconds_of(down)*(down == GGML_TYPE_Q6_K ? 1.0 - shared/2 : 1.0 + shared);
}

enum ggml_status ggml_backend_graph_compute(ggml_backend_t, ggml_cgraph *) {
    return GGML_STATUS_SUCCESS;
}

int main() {
    ggml_cpu_init(); // the tables that ggml's row kernels read
    llama_log_set([](ggml_log_level, const char * text, void *) { told += text; }, nullptr);
    check_mixed_types();
    check_one_kind();
    return n_failed == 0 ? 0 : 1;
}
