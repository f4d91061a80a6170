// Both sides of the hand-over that gpu_wait.cu measures: a layer's kernels, and the thread that answers them.

#pragma once

#include "gpu_wait_calls.h"
#include "ostinato/mailbox.h"
#include "ostinato/mailbox-words.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

static constexpr int N_FLOATS = 4096; // a token's input, and the answer
static constexpr std::chrono::seconds FREE_AFTER { 2 };
static constexpr std::chrono::seconds STOP_AFTER { 4 };

using steady = std::chrono::steady_clock;

// What the addition found, by variant, in device memory.
struct join_checks {
    uint32_t n_joined; // layers whose answer was added
    uint32_t n_wrong;  // floats of another layer's answer
};

static __global__ void work(const long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

// is_flagged: a node will wait whether or not the layer has cold routes.
static __global__ void publish(const ostinato_mailbox mailbox, const uint8_t * has_cold, const int layer, const bool is_flagged) {
    ostinato_mailbox_state * state = mailbox.state;
    const uint32_t sequence = state->sequence + 1;
    const bool is_published = has_cold[layer] && !state->failed;
    if (is_published) {
        for (int i = threadIdx.x; i < N_FLOATS; i += blockDim.x) {
            mailbox.x[i] = (float) sequence;
        }
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    state->n_cold = is_published;
    if (is_published) {
        state->sequence = sequence;
        __threadfence_system(); // the host sees the inputs before their number
        store_volatile(&mailbox.request->sequence, sequence);
    } else if (is_flagged) {
        store_volatile(&mailbox.request->answer, 1);
    }
}

// As in ops.cu.
static __device__ bool join_wait(const ostinato_mailbox & mailbox, const bool is_counted) {
    ostinato_mailbox_state * state = mailbox.state;
    if (state->n_cold == 0 || state->failed) {
        return false;
    }
    const uint32_t sequence = state->sequence;
    const uint64_t begin    = now_ns();
    uint64_t now = begin;
    while (load_volatile(&mailbox.request->answer) != sequence) {
        now = now_ns();
        if (now - begin > mailbox.timeout_ns || load_volatile(&mailbox.request->failed)) {
            state->failed = 1;
            store_volatile(&mailbox.request->failed, 1);
            __threadfence_system();
            return false;
        }
    }
    __threadfence_system(); // what the host wrote before its answer is read after it
    if (is_counted) {
        state->waited_ns += now - begin;
    }
    return true;
}

static __global__ void join_add(
        const ostinato_mailbox mailbox, const float * gpu, float * dst, join_checks * checks, const bool is_waiting, const bool is_resetting) {
    __shared__ bool has_answer;
    if (threadIdx.x == 0) {
        has_answer = is_waiting ? join_wait(mailbox, blockIdx.x == 0) : mailbox.state->n_cold > 0;
    }
    __syncthreads();
    const bool is_added = has_answer;
    const int i = blockIdx.x*blockDim.x + threadIdx.x;
    const float answer = is_added ? __ldcv(mailbox.out + i) : 0.0f;
    dst[i] = gpu[i] + answer;
    if (is_added && answer != (float) mailbox.state->sequence) {
        atomicAdd(&checks->n_wrong, 1);
    }
    if (i == 0) {
        checks->n_joined += is_added;
        if (is_resetting) {
            store_volatile(&mailbox.request->answer, 0);
        }
    }
}

// The CPU's side: a thread that answers every number, and never calls the driver. It frees a GPU that waits in vain, since the thread that launches
// a graph may be blocked by the full queue behind such a wait.
class responder {
public:
    explicit responder(const ostinato_mailbox & mailbox) : mailbox_(mailbox), thread_([this] { run(); }) {}

    ~responder() {
        is_stopping_ = true;
        thread_.join();
    }

    // Before a replay.
    void begin(const bool is_flagged, const int answer_after_us) {
        is_flagged_      = is_flagged;
        answer_after_us_ = answer_after_us;
        began_           = steady::now();
        is_replaying_    = true;
    }

    void end() { is_replaying_ = false; }

    uint64_t n_answered() const { return n_answered_; }
    uint64_t n_wrong() const { return n_wrong_; }

private:
    void run() {
        uint32_t served = 0;
        while (!is_stopping_.load(std::memory_order_relaxed)) {
            const uint32_t sequence = __atomic_load_n(&mailbox_.request->sequence, __ATOMIC_ACQUIRE);
            if (sequence == served) {
                look_after();
                continue;
            }
            const steady::time_point due = steady::now() + std::chrono::microseconds(answer_after_us_);
            if (mailbox_.x[0] != (float) sequence || mailbox_.x[N_FLOATS - 1] != (float) sequence) {
                ++n_wrong_;
            }
            std::fill(mailbox_.out, mailbox_.out + N_FLOATS, (float) sequence);
            while (answer_after_us_ > 0 && steady::now() < due) {
            }
            served = sequence;
            ++n_answered_;
            __atomic_store_n(&mailbox_.request->answer, is_flagged_ ? 1 : sequence, __ATOMIC_RELEASE);
        }
    }

    // Whatever the GPU waits for is there when a replay takes too long.
    void look_after() {
        if (!is_replaying_) {
            return;
        }
        const steady::duration lasted = steady::now() - began_.load();
        if (lasted > STOP_AFTER) {
            stop("the GPU waits, and could not be freed");
        }
        if (lasted > FREE_AFTER) {
            __atomic_store_n(&mailbox_.request->failed, 1, __ATOMIC_RELEASE);
            __atomic_store_n(&mailbox_.request->answer, 1, __ATOMIC_RELEASE);
        }
    }

    ostinato_mailbox mailbox_;
    std::atomic<bool> is_stopping_ { false };
    std::atomic<bool> is_replaying_ { false };
    std::atomic<steady::time_point> began_ { steady::time_point() };
    std::atomic<bool> is_flagged_ { false };
    std::atomic<int>  answer_after_us_ { 0 };
    std::atomic<uint64_t> n_answered_ { 0 };
    std::atomic<uint64_t> n_wrong_ { 0 }; // numbers that came before their inputs
    std::thread thread_; // the last one: it uses the others
};
