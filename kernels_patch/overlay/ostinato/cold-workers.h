// The resident threads of the CPU branch for layers on GPUs (paper 3.4, Appendix A): one team per process, pinned once, serving the mailboxes of
// all GPUs and models in turn.
//
// While passes run the threads spin: a layer's answer is due within tens of microseconds. They stop IDLE_AFTER after the last request or
// wake(), and then only look for requests now and then, so that a missed wake() costs milliseconds and never a hang.

#pragma once

#include "cpu-branch.h"
#include "mailbox.h"
#include "step-times.h"
#include "uploads.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

// What one GPU of one model sends its requests to.
struct ostinato_cold_client {
    const ostinato_mailbox * mailbox = nullptr;
    std::vector<ostinato_cold_layer> layers; // by the mailbox's numbers
    ostinato_uploads uploads;
    uint32_t served = 0;  // sequence of the last answer

    explicit ostinato_cold_client(const ostinato_upload_limits & limits = {}) : uploads(limits) {}

    // since the model was loaded
    std::atomic<uint64_t> n_cpu_routes { 0 };
    std::atomic<uint64_t> busy_ns { 0 };        // from seeing a request to answering it
    ostinato_step_times times;
};

// Threads that are worth having: physical cores that this process may use, less one for the thread that submits passes; within the
// CPU quota of its control group.
int ostinato_cold_thread_count();

// What works beside the steps that are measured.
struct ostinato_beside {
    int32_t link_columns = 0;         // that the CPU branch leaves out
    std::function<void()> begin = {}; // called before each step,
    std::function<void()> end   = {}; // and after it, for the step to last as long as both
};

class ostinato_cold_workers {
public:
    // Throws std::system_error when threads cannot be made.
    explicit ostinato_cold_workers(int n_threads);
    ~ostinato_cold_workers();

    ostinato_cold_workers(const ostinato_cold_workers &) = delete;
    ostinato_cold_workers & operator=(const ostinato_cold_workers &) = delete;

    // The client's mailbox is served until it is removed. Neither may be called while a pass of the client computes.
    void add(ostinato_cold_client * client);
    void remove(ostinato_cold_client * client);

    // Memory for steps of so many cold routes of the layer, so that serving one allocates nothing: while a GPU waits, the thread that submits the pass
    // may be in a driver call that holds the process's memory map.
    void reserve(const ostinato_expert_ffn & ffn, int64_t n_routes, int64_t n_tokens);

    // A pass is about to be submitted.
    void wake();

    // Seconds per byte of the given experts, each with so many rows and so many of them in a step: the median of several runs. No pass may be computing.
    double measure(
        const ostinato_cold_layer & layer, const std::vector<int32_t> & experts, int32_t n_rows, size_t n_together, const ostinato_beside & beside = {});

    int n_threads() const { return (int) threads.size(); }

private:
    void lead();
    void follow(int ith);
    bool has_request();
    bool serve_one();
    void serve(ostinato_cold_client & client, uint32_t sequence);
    void list_tokens(const ostinato_mailbox & mailbox, uint32_t sequence);
    void run_step(const ostinato_cold_layer & layer);
    void compute(int ith);

    std::vector<std::thread> threads; // the first one leads
    std::atomic<bool> is_stopping { false };

    std::mutex mutex;         // guards clients and the step; the leader's while it is awake
    std::mutex leader_sleeps; // what leader and followers sleep with
    std::mutex sleeping;
    std::condition_variable wake_leader;
    std::condition_variable wake_followers;
    std::vector<ostinato_cold_client *> clients;
    std::atomic<int64_t> awake_until_ns { 0 };
    std::atomic<bool> is_active { false };

    // the step in progress
    ostinato_cold_step step = {};
    alignas(64) std::atomic<uint32_t> job { 0 };
    alignas(64) std::atomic<int32_t> n_working { 0 };
    alignas(64) ostinato_team team = {};
    ostinato_cold_routes routes; // that the CPU branch computes
    ostinato_cold_routes all;    // of a step that uploads
    std::vector<int32_t> starts;
    std::vector<int32_t> tokens; // of a sparse step
    std::unique_ptr<char[]> scratch;
    size_t scratch_size = 0;
};

// The threads of this process, made when they are first asked for.
ostinato_cold_workers & ostinato_cold_team(int n_threads);
