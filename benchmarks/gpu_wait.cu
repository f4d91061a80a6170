// How a GPU should wait for the CPU branch inside a CUDA graph: in a kernel that reads a word of page-locked memory, as JOIN does
// (overlay/ostinato/ops.cu), or by the stream's own wait for a value. Measured as time per layer over the same graph without any hand-over.
//
// A layer is a kernel in attention's place, PUBLISH, a kernel in the hot experts' place, the wait, and the addition. Layers with cold routes send
// a number that a thread answers; the others send nothing. Variants:
//
//   kernel        the addition's blocks wait for answer == sequence, each for itself
//   value         nodes: wait for answer == 1, write answer = 0; then the addition
//   value, batch  the same in one node
//   value, reset  a node waits, the addition writes answer = 0
//
// A graph's arguments are frozen, so the value that a node waits for is the same in every layer and replay, and is taken back after each wait. And
// a node always waits: in a layer without cold routes PUBLISH writes the value itself.
//
//   nvcc -O3 -std=c++17 -arch=native -I kernels_patch/overlay -o gpu_wait benchmarks/gpu_wait.cu && ./gpu_wait gpu_wait.json
//
// It needs CUDA 12 and takes about ten seconds. Waits end: the kernel's after 1 s, the others' after 2 s, when the answering thread writes the
// value. A variant that a driver refuses or that has failed is left out, and both outputs say why. The exit status is 1 where one has failed: it
// has not waited for an answer, or has waited in vain.

#include "gpu_wait_calls.h"
#include "gpu_wait_sides.cuh"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

static constexpr int N_THREADS    = 1024;
static constexpr int ATTENTION_US = 20;
static constexpr int HOT_US       = 10;
static constexpr int WARM_UP      = 15;
static constexpr int REPLAYS      = 200;
static constexpr int MAX_LAYERS   = 43;
static constexpr uint64_t JOIN_TIMEOUT_NS = 1'000'000'000;

enum class waiting { none, kernel, value, batch, reset_by_add };

struct variant {
    const char * name;
    waiting how;
    std::string failure = {}; // why it is left out
    cudaGraphExec_t graph = nullptr;
    std::vector<double> times_us = {};

    bool is_flagged() const { return how != waiting::none && how != waiting::kernel; }
};

struct test_case {
    int cold_percent; // of layers
    int answer_after_us;
};

static constexpr test_case CASES[] = { { 0, 0 }, { 50, 0 }, { 100, 0 }, { 100, 20 } };

class bench {
public:
    bench() {
        require(cudaSetDevice(0), "no CUDA device");
        require(cudaDeviceGetAttribute(&n_processors_, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
        require(cudaDeviceGetAttribute(&clock_khz_, cudaDevAttrClockRate, 0), "cudaDeviceGetAttribute");
        require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
        require(cudaEventCreate(&begin_), "cudaEventCreate");
        require(cudaEventCreate(&end_), "cudaEventCreate");
        mailbox_.request = page_locked<ostinato_request>(1);
        mailbox_.x       = page_locked<float>(N_FLOATS);
        mailbox_.out     = page_locked<float>(N_FLOATS);
        mailbox_.state   = on_device<ostinato_mailbox_state>(1);
        mailbox_.timeout_ns = JOIN_TIMEOUT_NS;
        has_cold_ = on_device<uint8_t>(MAX_LAYERS);
        gpu_      = on_device<float>(N_FLOATS);
        dst_      = on_device<float>(N_FLOATS);
        checks_   = on_device<join_checks>(variants_.size());
        void * word = nullptr;
        require(cudaHostGetDevicePointer(&word, &mailbox_.request->answer, 0), "cudaHostGetDevicePointer");
        answer_ = (CUdeviceptr) word;
        responder_.emplace(mailbox_);
    }

    const std::vector<variant> & variants() const { return variants_; }

    void capture(const int n_layers) {
        for (variant & v : variants_) {
            if (v.graph) {
                require(cudaGraphExecDestroy(v.graph), "cudaGraphExecDestroy");
                v.graph = nullptr;
            }
            if (v.failure.empty()) {
                v.failure = capture(v, n_layers);
            }
        }
        if (!variants_[0].failure.empty()) {
            stop(variants_[0].failure);
        }
    }

    // Every variant in turn, so that the clock's changes reach all of them.
    // Returns how many layers were published in a replay.
    int measure(const int n_layers, const test_case & c) {
        std::vector<uint8_t> has_cold(MAX_LAYERS);
        int n_published = 0;
        for (int layer = 0; layer < n_layers; ++layer) {
            has_cold[layer] = (layer + 1)*c.cold_percent/100 != layer*c.cold_percent/100;
            n_published += has_cold[layer];
        }
        require(cudaMemcpy(has_cold_, has_cold.data(), has_cold.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
        require(cudaMemset(checks_, 0, variants_.size()*sizeof(join_checks)), "cudaMemset");
        require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        for (variant & v : variants_) {
            v.times_us.clear();
        }
        for (int round = -WARM_UP; round < REPLAYS; ++round) {
            for (variant & v : variants_) {
                if (!v.failure.empty()) {
                    continue;
                }
                const uint64_t n_before = responder_->n_answered();
                const std::optional<double> us = replay(v, c.answer_after_us);
                if (us && round >= 0) {
                    v.times_us.push_back(*us);
                }
                const uint64_t n_answered = responder_->n_answered() - n_before;
                if (v.failure.empty() && n_answered != (uint64_t) (v.how == waiting::none ? 0 : n_published)) {
                    fail(v, "a replay ended after " + std::to_string(n_answered) + " of " + std::to_string(n_published) + " answers");
                }
            }
        }
        check(n_published);
        return n_published;
    }

    // False once a variant has failed.
    bool is_right() const { return is_right_; }

private:
    template <typename T> static T * page_locked(const size_t n) {
        void * memory = nullptr;
        require(cudaHostAlloc(&memory, n*sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
        std::fill((char *) memory, (char *) memory + n*sizeof(T), 0);
        return (T *) memory;
    }

    template <typename T> static T * on_device(const size_t n) {
        void * memory = nullptr;
        require(cudaMalloc(&memory, n*sizeof(T)), "cudaMalloc");
        require(cudaMemset(memory, 0, n*sizeof(T)), "cudaMemset");
        return (T *) memory;
    }

    long long cycles(const int us) const { return (long long) us*clock_khz_/1000; }

    void add_layer(const variant & v, const int layer) {
        work<<<n_processors_, 256, 0, stream_>>>(cycles(ATTENTION_US));
        if (v.how != waiting::none) {
            publish<<<1, N_THREADS, 0, stream_>>>(mailbox_, has_cold_, layer, v.is_flagged());
        }
        work<<<n_processors_, 256, 0, stream_>>>(cycles(HOT_US));
        switch (v.how) {
            case waiting::none:
                return;
            case waiting::kernel:
                break;
            case waiting::value:
                operations_.wait(stream_, answer_);
                operations_.reset(stream_, answer_);
                break;
            case waiting::batch:
                operations_.wait_and_reset(stream_, answer_);
                break;
            case waiting::reset_by_add:
                operations_.wait(stream_, answer_);
                break;
        }
        join_add<<<N_FLOATS/N_THREADS, N_THREADS, 0, stream_>>>(
            mailbox_, gpu_, dst_, checks_ + (&v - variants_.data()), v.how == waiting::kernel, v.how == waiting::reset_by_add);
    }

    // Returns why there is no graph, or nothing.
    std::string capture(variant & v, const int n_layers) {
        std::string failure;
        cudaGraph_t graph = nullptr;
        require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
        try {
            for (int layer = 0; layer < n_layers; ++layer) {
                add_layer(v, layer);
                accept(cudaGetLastError(), "launching a kernel");
            }
        } catch (const std::string & reason) {
            failure = reason;
        }
        const cudaError_t captured = cudaStreamEndCapture(stream_, &graph); // always, or the stream goes on capturing
        try {
            if (failure.empty()) {
                accept(captured, "cudaStreamEndCapture");
                accept(cudaGraphInstantiate(&v.graph, graph, 0), "cudaGraphInstantiate");
            }
        } catch (const std::string & reason) {
            failure = reason;
        }
        if (graph) {
            require(cudaGraphDestroy(graph), "cudaGraphDestroy");
        }
        (void) cudaGetLastError(); // what was refused must not be taken for the next call's error
        return failure;
    }

    // Microseconds with the launch, which a decode step pays too; nothing where the GPU waited in vain, which `v` is told.
    std::optional<double> replay(variant & v, const int answer_after_us) {
        __atomic_store_n(&mailbox_.request->answer, 0, __ATOMIC_RELEASE);
        responder_->begin(v.is_flagged(), answer_after_us);
        require(cudaEventRecord(begin_, stream_), "cudaEventRecord");
        require(cudaGraphLaunch(v.graph, stream_), "cudaGraphLaunch");
        require(cudaEventRecord(end_, stream_), "cudaEventRecord");
        wait_for_end();
        responder_->end();
        if (__atomic_load_n(&mailbox_.request->failed, __ATOMIC_ACQUIRE)) {
            fail(v, "it waited in vain");
            mailbox_.request->failed = 0;
            require(cudaMemset(&mailbox_.state->failed, 0, sizeof(mailbox_.state->failed)), "cudaMemset");
            require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
            return std::nullopt;
        }
        float ms = 0;
        require(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
        return ms*1e3;
    }

    void fail(variant & v, const std::string & reason) {
        is_right_ = false;
        v.failure = reason;
        std::this_thread::sleep_for(std::chrono::milliseconds(10)); // what the answering thread still does is not taken for the next replay's
    }

    // The answering thread sees to it that the end comes.
    void wait_for_end() {
        cudaError_t error = cudaErrorNotReady;
        while (error == cudaErrorNotReady) {
            error = cudaEventQuery(end_);
        }
        require(error, "a replay");
        (void) cudaGetLastError(); // "not ready" is kept as the last error
    }

    void check(const int n_published) {
        std::vector<join_checks> checks(variants_.size());
        require(cudaMemcpy(checks.data(), checks_, checks.size()*sizeof(join_checks), cudaMemcpyDeviceToHost), "cudaMemcpy");
        for (size_t i = 1; i < variants_.size(); ++i) {
            const uint32_t n_expected = (uint32_t) (n_published*(WARM_UP + REPLAYS));
            if (variants_[i].failure.empty() && (checks[i].n_wrong > 0 || checks[i].n_joined != n_expected)) {
                fail(variants_[i], std::to_string(checks[i].n_wrong) + " floats were not the answer, " + std::to_string(checks[i].n_joined) + " of "
                    + std::to_string(n_expected) + " answers were added");
            }
        }
        if (!variants_[0].failure.empty()) {
            stop("nothing to compare with: " + variants_[0].failure);
        }
        if (responder_->n_wrong() > 0) {
            stop("a number reached the host before its inputs");
        }
    }

    std::vector<variant> variants_ = {
        { "without", waiting::none }, { "kernel", waiting::kernel }, { "value", waiting::value }, { "value, batch", waiting::batch },
        { "value, reset", waiting::reset_by_add },
    };
    memory_operations operations_;
    ostinato_mailbox mailbox_;
    CUdeviceptr answer_ = 0;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
    uint8_t * has_cold_ = nullptr;
    float * gpu_ = nullptr;
    float * dst_ = nullptr;
    join_checks * checks_ = nullptr;
    int n_processors_ = 0;
    int clock_khz_ = 0;
    bool is_right_ = true;
    std::optional<responder> responder_;
};

static double quantile(std::vector<double> values, const double q) {
    const size_t i = (size_t) (q*(double) (values.size() - 1) + 0.5);
    std::nth_element(values.begin(), values.begin() + i, values.end());
    return values[i];
}

static void write_head(FILE * json) {
    cudaDeviceProp device;
    int driver = 0;
    int runtime = 0;
    require(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    require(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    require(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    fprintf(json, "{\"device\": \"%s\", \"driver\": %d, \"runtime\": %d, \"attention_us\": %d, \"hot_us\": %d, \"floats\": %d, \"rows\": [",
        device.name, driver, runtime, ATTENTION_US, HOT_US, N_FLOATS);
    printf("%s, driver %d: us per layer over a graph without hand-over, medians of %d replays (* the shortest)\n\n", device.name, driver, REPLAYS);
    printf("%6s %9s %8s %8s", "layers", "published", "answered", "without");
}

// Each replay is compared with the one without hand-over of the same round.
static void write_row(FILE * json, const std::vector<variant> & variants, const int n_layers, const int n_published, const test_case & c) {
    const std::vector<double> & without = variants[0].times_us;
    std::vector<std::vector<double>> added(variants.size());
    double least = 1e30;
    for (size_t i = 1; i < variants.size(); ++i) {
        for (size_t r = 0; variants[i].failure.empty() && r < without.size(); ++r) {
            added[i].push_back((variants[i].times_us[r] - without[r])/n_layers);
        }
        least = added[i].empty() ? least : std::min(least, quantile(added[i], 0.5));
    }
    const double without_us = quantile(without, 0.5)/n_layers;
    fprintf(json, "{\"layers\": %d, \"published\": %d, \"answer_after_us\": %d, \"replays\": %zu, \"without_us\": %.3f, \"added_us\": {", n_layers,
        n_published, c.answer_after_us, without.size(), without_us);
    printf("\n%6d %9d %5d us %8.2f", n_layers, n_published, c.answer_after_us, without_us);
    for (size_t i = 1; i < variants.size(); ++i) {
        fprintf(json, "%s\"%s\": ", i > 1 ? ", " : "", variants[i].name);
        if (added[i].empty()) {
            fprintf(json, "null");
            printf(" %13s ", "-");
            continue;
        }
        const double median = quantile(added[i], 0.5);
        fprintf(json, "{\"median\": %.3f, \"quartiles\": [%.3f, %.3f]}", median, quantile(added[i], 0.25), quantile(added[i], 0.75));
        printf(" %13.2f%c", median, median == least ? '*' : ' ');
    }
    fprintf(json, "}}");
}

static void write_failures(FILE * json, const std::vector<variant> & variants) {
    fprintf(json, "], \"left_out\": {");
    printf("\n");
    const char * separator = "";
    for (const variant & v : variants) {
        if (!v.failure.empty()) {
            fprintf(json, "%s\"%s\": \"%s\"", separator, v.name, v.failure.c_str());
            printf("left out: %s: %s\n", v.name, v.failure.c_str());
            separator = ", ";
        }
    }
    fprintf(json, "}}\n");
}

int main(int argc, char ** argv) {
    if (argc != 2) {
        stop("expected the file to write: gpu_wait OUT.json");
    }
    setenv("CUDA_MODULE_LOADING", "EAGER", 0); // to load a kernel at its first use, the driver may wait for the GPU, which waits for the host
    bench b;
    FILE * json = fopen(argv[1], "w");
    if (!json) {
        stop(std::string("cannot write ") + argv[1]);
    }
    write_head(json);
    for (size_t i = 1; i < b.variants().size(); ++i) {
        printf(" %13s ", b.variants()[i].name);
    }
    const char * separator = "\n";
    for (const int n_layers : { 8, MAX_LAYERS }) {
        b.capture(n_layers);
        for (const test_case & c : CASES) {
            const int n_published = b.measure(n_layers, c);
            fprintf(json, "%s", separator);
            separator = ",\n";
            write_row(json, b.variants(), n_layers, n_published, c);
            fflush(nullptr);
        }
    }
    write_failures(json, b.variants());
    if (fclose(json) != 0) {
        stop(std::string("cannot write ") + argv[1]);
    }
    return b.is_right() ? 0 : 1;
}
