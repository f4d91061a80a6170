// One layer's experts on the CPU branch: compiled and run by cpu_experts.py.
//
// Times the CPU branch's resident threads on one layer's experts: plays the GPU's part of mailbox.h, a step at a time, and waits for each answer.
//
//   cpu_experts MODEL GATE UP DOWN TYPE N_IN N_FF N_EXPERTS K THREADS PAUSE_US STEPS OUT
//
// GATE, UP and DOWN are offsets of the experts' tensors in MODEL, STEPS a file of int32 and float32 as cpu_experts.py writes it. Prints the
// microseconds of every step, one a line, and writes the last answer of each case to OUT.

#include "ostinato/cold-workers.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using steady = std::chrono::steady_clock;

constexpr size_t HUGE_PAGE = 2*1024*1024;

struct file {
    FILE * f;

    file(const char * name, const char * mode) : f(fopen(name, mode)) {
        if (!f) {
            throw std::runtime_error(std::string("cannot open ") + name);
        }
    }
    ~file() { fclose(f); }

    void read(void * data, size_t size) {
        if (fread(data, 1, size, f) != size) {
            throw std::runtime_error("a file ends too early");
        }
    }

    template <typename T> std::vector<T> values(size_t n) {
        std::vector<T> found(n);
        read(found.data(), n*sizeof(T));
        return found;
    }
};

// In huge pages, as the engine keeps experts.
void load(ggml_tensor * t, file & model, long offset) {
    const size_t size = ggml_nbytes(t);
    char * memory = (char *) mmap(nullptr, size + 2*HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw std::runtime_error("no memory for the experts");
    }
    memory = (char *) (((uintptr_t) memory + HUGE_PAGE - 1) & ~(uintptr_t) (HUGE_PAGE - 1));
    madvise(memory, size, MADV_HUGEPAGE);
    if (fseek(model.f, offset, SEEK_SET) != 0) {
        throw std::runtime_error("the model has no such offset");
    }
    model.read(memory, size);
    t->data = memory;
}

int run(char ** argv) {
    file model(argv[1], "rb");
    const long offsets[] = { atol(argv[2]), atol(argv[3]), atol(argv[4]) };
    const ggml_type type = (ggml_type) atoi(argv[5]);
    const int64_t n_in = atol(argv[6]), n_ff = atol(argv[7]);
    const int32_t n_experts = atoi(argv[8]), k = atoi(argv[9]), n_threads = atoi(argv[10]), pause_us = atoi(argv[11]);

    ggml_context_ptr ctx(ggml_init({ 4*ggml_tensor_overhead(), nullptr, true }));
    ggml_tensor * gate = ggml_new_tensor_3d(ctx.get(), type, n_in, n_ff, n_experts);
    ggml_tensor * up   = ggml_new_tensor_3d(ctx.get(), type, n_in, n_ff, n_experts);
    ggml_tensor * down = ggml_new_tensor_3d(ctx.get(), type, n_ff, n_in, n_experts);
    load(gate, model, offsets[0]);
    load(up,   model, offsets[1]);
    load(down, model, offsets[2]);
    ostinato_expert_ffn ffn;
    ffn.gate = gate;
    ffn.up   = up;
    ffn.down = down;
    std::vector<ostinato_host_expert> host;
    for (int32_t e = 0; e < n_experts; ++e) {
        host.push_back(ostinato_expert_in_tensors(ffn, e));
    }

    file steps(argv[12], "rb");
    const auto head = steps.values<int32_t>(2); // steps, most tokens
    const auto is_hot = steps.values<int32_t>(n_experts);
    auto x = steps.values<float>(head[1]*n_in);
    std::vector<float> weights(head[1]*k), out(head[1]*n_in);
    std::vector<int32_t> cold(2*head[1]*k);
    ostinato_request request = {};
    ostinato_mailbox mailbox;
    mailbox.request = &request;
    mailbox.cold    = cold.data();
    mailbox.weights = weights.data();
    mailbox.x       = x.data();
    mailbox.out     = out.data();
    mailbox.n_experts = n_experts;
    ostinato_cold_client client;
    client.mailbox = &mailbox;
    client.layers.push_back({ &ffn, host.data(), n_experts });
    client.uploads.add_layer(n_experts);

    ostinato_cold_workers workers(n_threads);
    workers.reserve(ffn, head[1]*k, head[1]);
    workers.add(&client);
    file answers(argv[13], "wb");
    for (int32_t step = 0; step < head[0]; ++step) {
        const auto shape = steps.values<int32_t>(2); // tokens, whether it is the last of its case
        const auto ids = steps.values<int32_t>(shape[0]*k);
        steps.read(weights.data(), ids.size()*sizeof(float));
        int32_t n_cold = 0;
        for (size_t route = 0; route < ids.size(); ++route) {
            if (!is_hot[ids[route]]) {
                cold[2*n_cold]     = ids[route];
                cold[2*n_cold + 1] = (int32_t) route;
                ++n_cold;
            }
        }
        workers.wake();
        const auto begins = steady::now() + std::chrono::microseconds(pause_us);
        while (steady::now() < begins) {
        }
        const auto started = steady::now();
        request.layer    = 0;
        request.n_tokens = shape[0];
        request.k        = k;
        request.n_cold   = n_cold;
        __atomic_store_n(&request.sequence, (uint32_t) step + 1, __ATOMIC_RELEASE);
        while (__atomic_load_n(&request.answer, __ATOMIC_ACQUIRE) != (uint32_t) step + 1) {
        }
        printf("%.2f\n", std::chrono::duration<double, std::micro>(steady::now() - started).count());
        if (shape[1]) {
            fwrite(out.data(), sizeof(float), shape[0]*n_in, answers.f);
        }
    }
    workers.remove(&client);
    return 0;
}

}

int main(int argc, char ** argv) {
    if (argc != 14) {
        fprintf(stderr, "expected 13 arguments, found %d: run cpu_experts.py\n", argc - 1);
        return 2;
    }
    ggml_cpu_init(); // the tables that ggml's row kernels read
    try {
        return run(argv);
    } catch (const std::exception & error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
