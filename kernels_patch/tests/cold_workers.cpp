// cold_workers [STEPS]: the resident threads of the CPU branch against the same step computed in place by one thread, bit for bit.
//
// Plays the GPU's part of mailbox.h on a machine without one: publishes steps with random routes in random order, waits for the answer, and takes
// uploads and shares of the link where a step has them. Thousands of steps of one to some tokens, two clients by turns, teams of one to three
// threads, pauses in which the threads fall asleep with and without being woken, a step that was waited for in vain, and a thread that stalls or
// ends. Passes of several layers copy into a real staging buffer, ahead too, and find there what each layer computes from.
//
// Prints nothing and returns 0, or one line per failure and 1. Compiled and run by tests/e2e/test_bitwise.py.

#include "ostinato/cold-workers.h"
#include "ostinato/record.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace {

constexpr int32_t N_EXPERTS  = 24;
constexpr int32_t K          = 4;
constexpr int64_t N          = 256; // of every dimension
constexpr int32_t MAX_TOKENS = 48;
constexpr int32_t N_STAGED   = 3;   // slots of the staging buffer

constexpr float NOTHING = 1e30f; // what is read where nothing was written

int n_failed = 0;

// What the leader does at its next step.
std::atomic<int> stall_ms { 0 };
const std::thread::id main_thread = std::this_thread::get_id();

void fail(const char * what, int step, long long found) {
    if (n_failed++ < 20) {
        printf("step %d: %s (%lld)\n", step, what, found);
    }
}

// One layer's experts in host memory, and a staging buffer that holds some of them.
struct experts {
    ostinato_expert_ffn ffn;
    ostinato_expert_ffn staging;
    std::vector<ostinato_host_expert> host;
    std::vector<uint8_t> pinned = std::vector<uint8_t>(N_EXPERTS, 1);
    std::vector<uint8_t> linked = std::vector<uint8_t>(N_EXPERTS, 0);

    experts(ggml_type type, uint32_t seed) {
        ctx.reset(ggml_init({ 8*ggml_tensor_overhead(), nullptr, true }));
        const auto weight = [&](int64_t n) { return ggml_new_tensor_3d(ctx.get(), type, N, N, n); };
        ggml_tensor * all[] = { weight(N_EXPERTS), weight(N_EXPERTS), weight(N_EXPERTS) };
        staging.gate = weight(N_STAGED);
        staging.up   = weight(N_STAGED);
        staging.down = weight(N_STAGED);
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));
        std::mt19937 random(seed);
        std::normal_distribution<float> normal(0.0f, 0.1f);
        for (ggml_tensor * t : all) {
            std::vector<float> values(ggml_nelements(t));
            std::generate(values.begin(), values.end(), [&] { return normal(random); });
            ggml_quantize_chunk(type, values.data(), t->data, 0, ggml_nrows(t), N, nullptr);
        }
        ffn.gate = all[0];
        ffn.up   = all[1];
        ffn.down = all[2];
        for (int32_t e = 0; e < N_EXPERTS; ++e) {
            host.push_back(ostinato_expert_in_tensors(ffn, e));
            pinned[e] = e % 5 != 0;
            linked[e] = e % 3 != 0;
        }
    }

private:
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
};

// What a GPU and its mailbox have, in plain memory.
struct client {
    ostinato_request request = {};
    std::vector<int32_t> cold    = std::vector<int32_t>(2*MAX_TOKENS*K);
    std::vector<float>   weights = std::vector<float>(MAX_TOKENS*K);
    std::vector<float>   x       = std::vector<float>(MAX_TOKENS*N);
    std::vector<float>   out     = std::vector<float>(MAX_TOKENS*N);
    std::vector<ostinato_copy> copies = std::vector<ostinato_copy>(5*N_EXPERTS);
    std::vector<int32_t> slots   = std::vector<int32_t>(N_EXPERTS);
    std::vector<uint32_t> answered = std::vector<uint32_t>(MAX_TOKENS);
    ostinato_mailbox mailbox;
    ostinato_cold_client served;

    explicit client(experts & layer, const ostinato_upload_limits & limits = {}) : served(limits) {
        mailbox.request       = &request;
        mailbox.cold          = cold.data();
        mailbox.weights       = weights.data();
        mailbox.x             = x.data();
        mailbox.out           = out.data();
        mailbox.answered      = answered.data();
        mailbox.copies        = copies.data();
        mailbox.decided_slots = slots.data();
        mailbox.n_experts     = N_EXPERTS;
        served.mailbox        = &mailbox;
        ostinato_cold_layer entry = { &layer.ffn, layer.host.data(), N_EXPERTS };
        entry.staging = &layer.staging;
        entry.pinned  = layer.pinned.data();
        entry.linked  = layer.linked.data();
        served.layers.push_back(entry);
        served.uploads.add_layer(N_EXPERTS);
    }
};

// A step's cold routes, in the order of the experts, without those of `uploaded`.
struct reference {
    std::vector<int32_t> cold;
    std::vector<int32_t> groups;

    reference(const std::vector<std::pair<int32_t, int32_t>> & routes, const std::set<int32_t> & uploaded) {
        std::vector<std::pair<int32_t, int32_t>> sorted = routes;
        std::sort(sorted.begin(), sorted.end());
        for (const auto & [expert, route] : sorted) {
            if (uploaded.count(expert)) {
                continue;
            }
            if (groups.empty() || groups[groups.size() - 2] != expert) {
                groups.push_back(expert);
                groups.push_back(0);
            }
            cold.push_back(route);
            groups.back() = (int32_t) cold.size();
        }
    }

    std::vector<float> compute(const client & c, const ostinato_cold_layer & layer, int32_t n_tokens, int32_t link_columns) const {
        std::vector<char> scratch(ostinato_cold_scratch_bytes(*layer.ffn, cold.size(), n_tokens) + 64);
        std::vector<float> out(n_tokens*N);
        ostinato_team team = {};
        ostinato_cold_step step = {};
        step.ffn      = layer.ffn;
        step.host     = layer.host;
        step.k        = K;
        step.n_tokens = n_tokens;
        step.n_cold   = (int32_t) cold.size();
        step.n_groups = (int32_t) groups.size()/2;
        step.cold     = cold.data();
        step.groups   = groups.data();
        step.x        = c.x.data();
        step.weights  = c.weights.data();
        step.out      = out.data();
        step.scratch  = (char *) (((uintptr_t) scratch.data() + 63) & ~(uintptr_t) 63);
        step.team     = &team;
        step.linked       = link_columns > 0 ? layer.linked : nullptr;
        step.link_columns = link_columns;
        ostinato_compute_cold(step, 0, 1);
        return out;
    }
};

bool wait_for(const uint32_t & word, uint32_t value, std::chrono::milliseconds longest) {
    const auto ends_at = std::chrono::steady_clock::now() + longest;
    while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != value) {
        if (std::chrono::steady_clock::now() > ends_at) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

class gpu {
public:
    gpu(ostinato_cold_workers & workers, experts & layer, uint32_t seed) : workers(workers), layer(layer), c(layer), random(seed) {
        workers.reserve(layer.ffn, MAX_TOKENS*K, MAX_TOKENS);
        workers.add(&c.served);
    }

    ~gpu() { workers.remove(&c.served); }

    // Some tokens' cold routes, as PUBLISH lists them.
    void publish(int32_t n_tokens, bool is_staged, int32_t link_columns) {
        std::normal_distribution<float> normal;
        std::generate(c.x.begin(), c.x.end(), [&] { return normal(random); });
        std::generate(c.weights.begin(), c.weights.end(), [&] { return normal(random); });
        std::vector<int32_t> experts(N_EXPERTS);
        std::iota(experts.begin(), experts.end(), 0);
        routes.clear();
        for (int32_t t = 0; t < n_tokens; ++t) {
            std::shuffle(experts.begin(), experts.end(), random);
            for (int32_t i = 0; i < K; ++i) {
                const bool is_hot = n_tokens >= OSTINATO_SPARSE_TOKENS && t % 5 == 3; // all its routes
                if ((random() % 3 != 0 && !is_hot) || (t == 0 && i == 0)) {
                    routes.emplace_back(experts[i], t*K + i);
                }
            }
        }
        std::shuffle(routes.begin(), routes.end(), random);
        std::fill(c.out.begin(), c.out.end(), NOTHING);
        if (n_tokens >= OSTINATO_SPARSE_TOKENS) { // the inputs of tokens without cold routes are not sent
            std::set<int32_t> cold_tokens;
            for (const auto & [expert, route] : routes) {
                cold_tokens.insert(route/K);
            }
            for (int32_t t = 0; t < n_tokens; ++t) {
                if (!cold_tokens.count(t)) {
                    std::fill_n(c.x.begin() + t*N, N, NOTHING);
                }
            }
        }
        for (size_t i = 0; i < routes.size(); ++i) {
            c.cold[2*i]     = routes[i].first;
            c.cold[2*i + 1] = routes[i].second;
        }
        c.request.layer        = 0;
        c.request.n_tokens     = n_tokens;
        c.request.k            = K;
        c.request.n_cold       = (int32_t) routes.size();
        c.request.is_staged    = is_staged;
        c.request.link_columns = link_columns;
        c.request.is_sparse    = n_tokens >= OSTINATO_SPARSE_TOKENS;
        __atomic_store_n(&c.request.sequence, ++sequence, __ATOMIC_RELEASE);
    }

    // Takes the decision about uploads, as the copying kernel does, and the answer, as JOIN does.
    void join(int step) {
        std::set<int32_t> uploaded;
        if (c.request.is_staged) {
            if (!wait_for(c.request.decided, sequence, PATIENCE)) {
                fail("no decision about uploads", step, c.request.decided);
                return;
            }
            uploaded = check_uploads(step);
        }
        if (!wait_for(c.request.answer, sequence, PATIENCE)) {
            fail("no answer", step, c.request.answer);
            return;
        }
        const std::vector<float> expected =
            reference(routes, uploaded).compute(c, c.served.layers[0], c.request.n_tokens, c.request.link_columns);
        std::set<int32_t> computed; // tokens that the CPU branch has routes of
        for (const auto & [expert, route] : routes) {
            if (!uploaded.count(expert)) {
                computed.insert(route/K);
            }
        }
        for (int32_t t = 0; t < c.request.n_tokens; ++t) {
            const float * row = c.out.data() + t*N;
            if (!c.request.is_sparse || computed.count(t)) {
                if (memcmp(expected.data() + t*N, row, N*sizeof(float)) != 0) {
                    fail("another result than the one computed in place", step, t);
                }
            } else if (std::any_of(row, row + N, [](float v) { return v != NOTHING; })) {
                fail("a row of a token that nobody asked for", step, t);
            }
            if (c.request.is_sparse && (c.answered[t] == sequence) != (computed.count(t) > 0)) {
                fail("a token that is said to have a row and has none, or the other way round", step, t);
            }
            n_unread += c.request.is_sparse && !computed.count(t);
        }
    }

    bool is_answered_within(std::chrono::milliseconds longest) const { return wait_for(c.request.answer, sequence, longest); }

    static constexpr std::chrono::milliseconds PATIENCE { 20'000 };

private:
    std::set<int32_t> check_uploads(int step) {
        std::set<int32_t> uploaded;
        for (int32_t e = 0; e < N_EXPERTS; ++e) {
            if (c.slots[e] < 0) {
                continue;
            }
            uploaded.insert(e);
            const bool is_selected = std::any_of(routes.begin(), routes.end(), [&](const auto & route) { return route.first == e; });
            if (!is_selected || !layer.pinned[e] || c.slots[e] >= N_STAGED) {
                fail("an upload of an expert that nobody selected, that is not page-locked, or to no slot", step, e);
            }
        }
        std::set<const char *> from;
        for (int32_t i = 0; i < c.request.n_copies; ++i) {
            from.insert(c.copies[i].src);
        }
        for (const int32_t e : uploaded) {
            const ostinato_host_expert & at = layer.host[e];
            if (!from.count(at.gate) || !from.count(at.up) || !from.count(at.down)) {
                fail("an uploaded expert's weights are not all copied", step, e);
            }
        }
        if (c.request.n_copies != 3*(int32_t) uploaded.size()) {
            fail("another number of copies than of uploaded weights", step, c.request.n_copies);
        }
        n_uploaded += uploaded.size();
        return uploaded;
    }

    ostinato_cold_workers & workers;
    experts & layer;
    client c;
    std::mt19937 random;
    std::vector<std::pair<int32_t, int32_t>> routes;
    uint32_t sequence = 0;

public:
    size_t n_uploaded = 0;
    size_t n_unread   = 0; // rows of sparse steps that JOIN does not read
};

void run(ggml_type type, int n_threads, int n_steps) {
    experts layer(type, 3);
    ostinato_cold_workers workers(n_threads);
    gpu first(workers, layer, 5);
    gpu second(workers, layer, 6);
    std::mt19937 random(7);
    const int64_t link_step = ostinato_link_step(layer.ffn);
    workers.wake();
    for (int step = 0; step < n_steps; ++step) {
        const int32_t n_tokens  = random() % 40 == 0 ? MAX_TOKENS : random() % 4 == 0 ? 2 + random() % 7 : 1;
        const bool is_staged    = n_tokens >= 8;
        const int32_t link      = n_tokens <= 4 && random() % 2 == 0 && link_step < N ? (int32_t) link_step : 0;
        const bool is_first     = random() % 2 == 0;
        gpu & one = is_first ? first : second;
        if (step % 997 == 996) { // beyond the time after which the threads sleep
            std::this_thread::sleep_for(std::chrono::milliseconds(150));
            if (step % 2 == 0) {
                workers.wake();
            }
        }
        if (step % 13 == 0) { // both at once
            first.publish(1, false, 0);
            second.publish(2, false, link);
            first.join(step);
            second.join(step);
            continue;
        }
        one.publish(n_tokens, is_staged, link);
        one.join(step);
    }
    if (first.n_uploaded + second.n_uploaded == 0) {
        fail("nothing was uploaded", n_steps, 0);
    }
    if (first.n_unread + second.n_unread == 0) {
        fail("no step had tokens without an answer", n_steps, 0);
    }
}

// Threads that are busy for longer than a GPU waits still answer, and the next step after that.
void check_stall() {
    using std::chrono::milliseconds;
    static experts layer(GGML_TYPE_Q8_0, 3);
    ostinato_cold_workers workers(2);
    gpu one(workers, layer, 5);
    workers.wake();
    stall_ms = 400;
    one.publish(1, false, 0);
    if (one.is_answered_within(milliseconds(50))) {
        fail("an answer of threads that stall", 0, 0);
    }
    one.join(0);
    one.publish(3, false, 0);
    one.join(1);
}

// Layers whose records differ in size, over one staging buffer.
struct stack {
    static constexpr int32_t N_LAYERS = 4;
    static constexpr size_t  N_PLACES = 16;

    std::vector<std::unique_ptr<experts>> layers;
    std::vector<ostinato_expert_ffn> staging = std::vector<ostinato_expert_ffn>(N_LAYERS);
    std::vector<std::vector<char>> records;
    std::vector<char> memory;
    ggml_context_ptr ctx;

    stack() : ctx(ggml_init({ 4*N_LAYERS*ggml_tensor_overhead(), nullptr, true })) {
        size_t size = 0;
        for (int32_t i = 0; i < N_LAYERS; ++i) {
            experts & e = *layers.emplace_back(std::make_unique<experts>(i % 3 == 2 ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_K, 10 + i));
            const ostinato_record record(e.ffn);
            size = std::max(size, N_PLACES*record.stride);
            std::vector<char> & place = records.emplace_back(N_EXPERTS*record.stride);
            for (int32_t n = 0; n < N_EXPERTS; ++n) {
                ostinato_host_expert & at = e.host[n];
                for (size_t w = 0; w < std::size(ostinato_record_weights); ++w) {
                    if (const ggml_tensor * weight = e.ffn.*ostinato_record_weights[w].member) {
                        char * to = record.at(place.data(), n, w);
                        memcpy(to, (const char *) weight->data + n*weight->nb[2], weight->nb[2]);
                        at.*ostinato_record_weights[w].host = to;
                    }
                }
                at.record = place.data() + n*record.stride;
            }
        }
        memory.resize(size);
        for (int32_t i = 0; i < N_LAYERS; ++i) {
            const ostinato_record record(layers[i]->ffn);
            for (size_t w = 0; w < std::size(ostinato_record_weights); ++w) {
                if (const ggml_tensor * weight = layers[i]->ffn.*ostinato_record_weights[w].member) {
                    ggml_tensor * t = ggml_new_tensor_3d(ctx.get(), weight->type, N, N, size/record.stride);
                    t->data  = record.at(memory.data(), 0, w);
                    t->nb[2] = record.stride;
                    staging[i].*ostinato_record_weights[w].member = t;
                }
            }
        }
    }

    // Makes these the client's layers.
    void serve_with(client & c, ostinato_cold_workers & workers) const {
        c.served.layers.clear();
        for (int32_t i = 0; i < N_LAYERS; ++i) {
            const experts & e = *layers[i];
            ostinato_cold_layer entry = { &e.ffn, e.host.data(), N_EXPERTS };
            entry.staging = &staging[i];
            entry.pinned  = e.pinned.data();
            c.served.layers.push_back(entry);
            c.served.uploads.add_layer(N_EXPERTS);
            workers.reserve(e.ffn, MAX_TOKENS*K, MAX_TOKENS);
        }
    }
};

// A step of MAX_TOKENS tokens of a stack's layer that may upload; its cold routes are listed already.
void publish_staged(client & c, int32_t layer, uint32_t sequence) {
    c.request.layer       = layer;
    c.request.n_tokens    = MAX_TOKENS;
    c.request.k           = K;
    c.request.is_staged   = 1;
    c.request.is_followed = layer + 1 < stack::N_LAYERS;
    __atomic_store_n(&c.request.sequence, sequence, __ATOMIC_RELEASE);
}

// A GPU that copies what the leader lists, as late as the second stream may: what was prefetched when the next layer's step begins to copy.
void check_prefetch(int n_passes) {
    constexpr int32_t HEAD_START_US = 1000;
    stack s;
    ostinato_cold_workers workers(2);
    client c(*s.layers[0], ostinato_upload_limits { 8, std::numeric_limits<int64_t>::max(), HEAD_START_US });
    s.serve_with(c, workers);
    for (ostinato_cold_layer & layer : c.served.layers) { // a link for which the head start is worth some experts
        layer.speeds.link = HEAD_START_US*1e-6/(5.5*ostinato_expert_bytes(s.layers[0]->ffn));
    }
    workers.add(&c.served);
    workers.wake();
    std::mt19937 random(11);
    std::vector<ostinato_copy> ahead;
    const auto copy = [](const ostinato_copy & one) { memcpy(one.dst, one.src, one.bytes); };
    uint32_t sequence = 0;
    for (int pass = 0; pass < n_passes; ++pass) {
        c.served.uploads.max_places.store(pass % 5 == 4 ? 6 : (int32_t) stack::N_PLACES);
        const int32_t only = pass % 7 == 5 ? 1 : pass % 7 == 6 ? 2 : -1; // the layer after the last one published, in the next pass
        if (only == 2) { // decode steps have used the memory meanwhile
            std::for_each(ahead.begin(), ahead.end(), copy);
            ahead.clear();
            std::fill(s.memory.begin(), s.memory.end(), 0x55);
            c.served.uploads.forget();
        }
        for (int32_t layer = 0; layer < stack::N_LAYERS; ++layer) {
            if (only >= 0 ? layer != only : random() % 16 == 0) { // nobody is cold: nothing is published
                std::for_each(ahead.begin(), ahead.end(), copy);
                ahead.clear();
                continue;
            }
            c.request.n_cold = 0;
            for (int32_t t = 0; t < MAX_TOKENS; ++t) {
                for (int32_t i = 0; i < K; ++i) { // each layer likes six experts of its own
                    const int32_t expert = random() % 8 != 0 ? (int32_t) ((7*layer + (random() + i) % 6) % N_EXPERTS) : (int32_t) (random() % N_EXPERTS);
                    c.cold[2*c.request.n_cold]     = expert;
                    c.cold[2*c.request.n_cold + 1] = t*K + i;
                    c.request.n_cold++;
                }
            }
            publish_staged(c, layer, ++sequence);
            if (!wait_for(c.request.decided, sequence, gpu::PATIENCE)) {
                return fail("no decision about uploads", pass, layer);
            }
            std::for_each(ahead.begin(), ahead.end(), copy);
            std::for_each(c.copies.begin(), c.copies.begin() + c.request.n_copies, copy);
            const auto first_ahead = c.copies.begin() + c.request.n_copies;
            ahead.assign(first_ahead, first_ahead + c.request.n_prefetched);
            if (!c.request.is_followed && !ahead.empty()) {
                fail("a prefetch for no layer", pass, layer);
            }
            // the next layer's copies may come before this layer's products
            const std::vector<char> before = s.memory;
            std::for_each(ahead.begin(), ahead.end(), copy);
            const ostinato_record record(s.layers[layer]->ffn);
            std::set<int32_t> places;
            for (int32_t e = 0; e < N_EXPERTS; ++e) {
                const int32_t place = c.slots[e];
                if (place < 0) {
                    continue;
                }
                if (place >= c.served.uploads.max_places || !places.insert(place).second || !s.layers[layer]->pinned[e]) {
                    fail("an expert in no place of its own", pass, e);
                }
                if (memcmp(s.memory.data() + place*record.stride, s.layers[layer]->host[e].record, record.stride) != 0) {
                    fail("another expert's weights in a place", pass, e);
                }
            }
            std::copy(before.begin(), before.end(), s.memory.begin()); // they come later after all
            if (!wait_for(c.request.answer, sequence, gpu::PATIENCE)) {
                return fail("no answer", pass, layer);
            }
        }
    }
    workers.remove(&c.served);
    const uint64_t n_prefetched = c.served.uploads.n_prefetched;
    const uint64_t n_foreseen   = c.served.uploads.n_foreseen;
    if (n_foreseen < (uint64_t) n_passes || 4*n_foreseen < 3*n_prefetched) {
        fail("most of what is prefetched is wanted", (int) n_prefetched, n_foreseen);
    }
}

// Layers of two kinds of experts: where the CPU is slow and the link is fast, all that can be uploaded is, now and ahead; where it is the other way round
// nothing is. What the CPU branch was expected to take for the rest follows each layer's own speeds, too.
void check_speeds_of_kinds() {
    constexpr int N_PASSES = 3; // fewer steps than those after which costs of uploads are learned
    stack s;
    ostinato_cold_workers workers(2);
    client c(*s.layers[0], ostinato_upload_limits { 8, std::numeric_limits<int64_t>::max(), 1000 });
    s.serve_with(c, workers);
    const auto is_fast = [&](int32_t layer) { return s.layers[layer]->ffn.down->type == GGML_TYPE_Q4_K; }; // over the link
    for (int32_t i = 0; i < stack::N_LAYERS; ++i) {
        ostinato_speeds & speeds = c.served.layers[i].speeds;
        const double slow = 1.0/ostinato_expert_bytes(s.layers[i]->ffn); // a second for an expert
        speeds.cpu_row    = speeds.cpu_few = speeds.cpu_rows = is_fast(i) ? slow : 1e-6*slow;
        speeds.link       = is_fast(i) ? 1e-6*slow : slow;
        speeds.is_default = false;
    }
    workers.add(&c.served);
    workers.wake();
    uint32_t sequence = 0;
    double predicted  = 0.0; // seconds
    for (int pass = 0; pass < N_PASSES; ++pass) {
        for (int32_t layer = 0; layer < stack::N_LAYERS; ++layer) {
            for (int32_t i = 0; i < MAX_TOKENS*K; ++i) {
                c.cold[2*i]     = i % N_EXPERTS;
                c.cold[2*i + 1] = i;
            }
            c.request.n_cold = MAX_TOKENS*K;
            publish_staged(c, layer, ++sequence);
            if (!wait_for(c.request.answer, sequence, gpu::PATIENCE)) {
                return fail("no answer", pass, layer);
            }
            for (int32_t e = 0; e < N_EXPERTS; ++e) {
                const bool is_uploaded = c.slots[e] >= 0;
                if (is_uploaded != (is_fast(layer) && s.layers[layer]->pinned[e])) {
                    fail("an upload that the speeds of another layer are a reason for", layer, e);
                }
                predicted += is_uploaded ? 0.0 : is_fast(layer) ? 1.0 : 1e-6; // whatever its rows, up to 16
            }
            const bool is_ahead = pass > 0 && layer + 1 < stack::N_LAYERS && is_fast(layer + 1);
            if ((c.request.n_prefetched > 0) != is_ahead) {
                fail("copies ahead by the speeds of another layer than theirs", layer, c.request.n_prefetched);
            }
        }
    }
    workers.remove(&c.served); // and with it the last step is counted
    const double found = c.served.times.prefill_sums().predicted_ns*1e-9;
    if (std::abs(found - predicted) > 1e-6*predicted) {
        fail("another time is expected of the CPU branch than by each layer's speeds, in ns", (int) predicted, (long long) (found*1e9));
    }
}

} // namespace

// Stands before the library's.
void ostinato_compute_cold(const ostinato_cold_step & step, int ith, int n_threads) {
    if (ith == 0 && std::this_thread::get_id() != main_thread) {
        std::this_thread::sleep_for(std::chrono::milliseconds(stall_ms.exchange(0)));
    }
    static const auto next = (void (*)(const ostinato_cold_step &, int, int)) dlsym(RTLD_NEXT, "_Z21ostinato_compute_coldRK18ostinato_cold_stepii");
    next(step, ith, n_threads);
}

int main(int argc, char ** argv) {
    const int n_steps = argc > 1 ? atoi(argv[1]) : 2000;
    ggml_cpu_init(); // the tables that ggml's row kernels read
    run(GGML_TYPE_Q8_0, 1, n_steps);
    run(GGML_TYPE_MXFP4, 2, n_steps);
    run(GGML_TYPE_Q4_K, 3, n_steps/10); // more threads than some machines have cores, which wait for each other for long
    check_stall();
    check_prefetch(n_steps/10);
    check_speeds_of_kinds();
    return n_failed == 0 ? 0 : 1;
}
