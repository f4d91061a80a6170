// Implementation of cold-workers.h.

#include "cold-workers.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

static constexpr std::chrono::milliseconds IDLE_AFTER { 100 };
static constexpr std::chrono::milliseconds LOOK_EVERY { 2 };    // while idle for less than a few seconds
static constexpr std::chrono::milliseconds LOOK_RARELY { 50 };
static constexpr std::chrono::nanoseconds  MEASURED { 100'000'000 };

static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#if defined(__linux__)

static int read_number(const std::string & path, int otherwise) {
    std::ifstream file(path);
    int value;
    return file >> value ? value : otherwise;
}

// One CPU of every physical core that this process may use.
static std::vector<int> usable_cores() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    std::vector<int> cores;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return cores;
    }
    std::set<std::pair<int, int>> seen;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) {
            continue;
        }
        const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
        const int package = read_number(topology + "physical_package_id", 0);
        const int core    = read_number(topology + "core_id", cpu);
        if (seen.insert({ package, core }).second) {
            cores.push_back(cpu);
        }
    }
    return cores;
}

// CPUs that the control group's quota is worth, or a large number.
static int quota_cores() {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    std::string quota;
    double period;
    if (file >> quota >> period && quota != "max" && period > 0) {
        return std::max(1, (int) (std::stod(quota)/period));
    }
    return 1 << 20;
}

static void pin_to(std::thread & thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set); // refused: the thread floats
}

int ostinato_cold_thread_count() {
    const int n_cores = std::min<int>((int) usable_cores().size(), quota_cores());
    return std::max(1, n_cores - 1);
}

#else

int ostinato_cold_thread_count() {
    return std::max(1, (int) std::thread::hardware_concurrency()/2 - 1);
}

#endif

ostinato_cold_workers::ostinato_cold_workers(int n_threads) {
    n_threads = std::max(1, n_threads);
    for (int ith = 0; ith < n_threads; ++ith) {
        threads.emplace_back([this, ith] { ith == 0 ? lead() : follow(ith); });
    }
#if defined(__linux__)
    const std::vector<int> cores = usable_cores();
    for (size_t i = 0; i < threads.size() && cores.size() > threads.size(); ++i) {
        pin_to(threads[i], cores[cores.size() - 1 - i]); // the first core is left to the thread that submits passes
    }
#endif
}

ostinato_cold_workers::~ostinato_cold_workers() {
    {
        std::scoped_lock lock(leader_sleeps, sleeping);
        is_stopping.store(true);
        is_active.store(false);
    }
    wake_leader.notify_all();
    wake_followers.notify_all();
    for (std::thread & thread : threads) {
        thread.join();
    }
}

void ostinato_cold_workers::add(ostinato_cold_client * client) {
    std::lock_guard<std::mutex> lock(mutex);
    clients.push_back(client);
}

void ostinato_cold_workers::remove(ostinato_cold_client * client) {
    std::lock_guard<std::mutex> lock(mutex);
    clients.erase(std::remove(clients.begin(), clients.end(), client), clients.end());
}

void ostinato_cold_workers::reserve(const ostinato_expert_ffn & ffn, int64_t n_routes, int64_t n_tokens) {
    std::lock_guard<std::mutex> lock(mutex);
    for (std::vector<int32_t> * list : { &routes.cold, &routes.groups, &all.cold, &all.groups }) {
        list->reserve(2*n_routes);
    }
    starts.reserve(ffn.down->ne[2] + 1);
    tokens.reserve(n_tokens);
    const size_t needed = ostinato_cold_scratch_bytes(ffn, n_routes, n_tokens) + 64;
    if (needed > scratch_size) {
        scratch.reset(new char[needed]()); // zeroed: its pages exist
        scratch_size = needed;
    }
}

void ostinato_cold_workers::wake() {
    awake_until_ns.store(now_ns() + std::chrono::nanoseconds(IDLE_AFTER).count(), std::memory_order_relaxed);
    if (!is_active.load(std::memory_order_acquire)) {
        { std::lock_guard<std::mutex> lock(leader_sleeps); } // it has seen the new time, or sleeps
        wake_leader.notify_one();
    }
}

bool ostinato_cold_workers::has_request() {
    std::lock_guard<std::mutex> lock(mutex);
    return std::any_of(clients.begin(), clients.end(), [](const ostinato_cold_client * client) {
        return __atomic_load_n(&client->mailbox->request->sequence, __ATOMIC_ACQUIRE) != client->served;
    });
}

void ostinato_cold_workers::lead() {
    // The first allocation of a thread maps memory for it; what serving allocates must find that done. See reserve().
    { std::vector<char> first(64*1024); }
    int64_t idle_since = now_ns();
    const auto stay_awake = [this] {
        awake_until_ns.store(now_ns() + std::chrono::nanoseconds(IDLE_AFTER).count(), std::memory_order_relaxed);
    };
    const auto is_due = [this] { return now_ns() < awake_until_ns.load(std::memory_order_relaxed) || is_stopping.load(); };
    while (!is_stopping.load()) {
        if (is_due()) {
            if (!is_active.load()) {
                {
                    std::lock_guard<std::mutex> asleep(sleeping);
                    is_active.store(true);
                }
                wake_followers.notify_all();
            }
            std::unique_lock<std::mutex> lock(mutex);
            for (int round = 0; round < 1000; ++round) {
                if (serve_one()) {
                    stay_awake();
                } else {
                    relax();
                }
            }
            lock.unlock();
            std::this_thread::yield(); // to who waits for the mutex
            idle_since = now_ns();
            continue;
        }
        is_active.store(false);
        {
            const bool was_busy_lately = now_ns() - idle_since < 5'000'000'000;
            std::unique_lock<std::mutex> lock(leader_sleeps);
            wake_leader.wait_for(lock, was_busy_lately ? LOOK_EVERY : LOOK_RARELY, is_due);
        }
        if (has_request()) {
            stay_awake();
        }
    }
}

void ostinato_cold_workers::follow(int ith) {
    uint32_t done = 0;
    while (!is_stopping.load(std::memory_order_relaxed)) {
        const uint32_t current = job.load(std::memory_order_acquire);
        if (current != done) {
            done = current;
            compute(ith);
            n_working.fetch_sub(1, std::memory_order_acq_rel);
            continue;
        }
        if (is_active.load(std::memory_order_relaxed)) {
            relax();
            continue;
        }
        // A follower may still sleep when a job comes: the leader waits for it, and notified it when it became active.
        std::unique_lock<std::mutex> lock(sleeping);
        wake_followers.wait_for(lock, LOOK_RARELY, [&] { return is_active.load() || is_stopping.load() || job.load() != done; });
    }
}

bool ostinato_cold_workers::serve_one() {
    for (ostinato_cold_client * client : clients) {
        const uint32_t sequence = __atomic_load_n(&client->mailbox->request->sequence, __ATOMIC_ACQUIRE);
        if (sequence != client->served) {
            serve(*client, sequence);
            return true;
        }
    }
    return false;
}

// Sorts the cold routes by expert, then by route: the order in which the GPU listed them is not the same twice.
void ostinato_cold_workers::serve(ostinato_cold_client & client, uint32_t sequence) {
    const int64_t begin_ns = now_ns();
    const ostinato_mailbox & mailbox  = *client.mailbox;
    const ostinato_request request    = *mailbox.request; // a copy: the GPU writes the next one as soon as it has the answer
    const ostinato_cold_layer & layer = client.layers[request.layer];

    std::vector<int32_t> & cold   = routes.cold;
    std::vector<int32_t> & groups = routes.groups;
    const int32_t n_cold = request.n_cold;
    cold.resize(n_cold);
    groups.clear();
    starts.assign(layer.n_experts + 1, 0);
    for (int32_t i = 0; i < n_cold; ++i) {
        starts[mailbox.cold[2*i] + 1]++;
    }
    for (int32_t e = 0; e < layer.n_experts; ++e) {
        if (starts[e + 1] > 0) {
            groups.push_back(e);
            groups.push_back(starts[e] + starts[e + 1]);
        }
        starts[e + 1] += starts[e];
    }
    for (int32_t i = 0; i < n_cold; ++i) {
        cold[starts[mailbox.cold[2*i]]++] = mailbox.cold[2*i + 1];
    }
    int32_t begin = 0;
    for (size_t g = 0; g < groups.size(); g += 2) {
        std::sort(cold.begin() + begin, cold.begin() + groups[g + 1]);
        begin = groups[g + 1];
    }
    if (request.is_staged) {
        std::swap(routes, all);
        client.uploads.decide(mailbox, request, client.layers, all, routes);
        __atomic_store_n(&mailbox.request->decided, request.sequence, __ATOMIC_RELEASE);
    }

    step.k        = request.k;
    step.n_tokens = request.n_tokens;
    step.x        = mailbox.x;
    step.weights  = mailbox.weights;
    step.out      = mailbox.out;
    step.linked       = request.link_columns > 0 ? layer.linked : nullptr;
    step.link_columns = request.link_columns;
    step.tokens   = nullptr;
    if (request.is_sparse) {
        list_tokens(mailbox, sequence);
    }
    const int64_t begin_step_ns = now_ns();
    run_step(layer);
    client.served = sequence;
    __atomic_store_n(&mailbox.request->answer, sequence, __ATOMIC_RELEASE); // the GPU waits for it; what follows has time
    const int64_t end_ns       = now_ns();
    const uint64_t busy_ns     = end_ns - begin_ns;
    const int64_t expert_bytes = (int64_t) ostinato_expert_bytes(*layer.ffn);
    client.n_cpu_routes += routes.cold.size();
    client.busy_ns      += busy_ns;
    client.times.add({ request.layer, request.n_tokens, (int32_t) routes.cold.size(), busy_ns }, layer.speeds, expert_bytes, routes.groups);
    if (request.is_staged) {
        client.uploads.end(request, all, (end_ns - begin_step_ns)*1e-9, ostinato_cpu_seconds(layer.speeds, expert_bytes, routes.groups));
    }
}

// Those that `routes` has routes of, and marks them for JOIN.
void ostinato_cold_workers::list_tokens(const ostinato_mailbox & mailbox, uint32_t sequence) {
    tokens.clear();
    for (const int32_t route : routes.cold) {
        const int32_t token = route/step.k;
        if (mailbox.answered[token] != sequence) {
            mailbox.answered[token] = sequence; // JOIN looks when it has seen the answer
            tokens.push_back(token);
        }
    }
    step.tokens   = tokens.data();
    step.n_listed = (int32_t) tokens.size();
}

// Computes `routes` with the whole team.
void ostinato_cold_workers::run_step(const ostinato_cold_layer & layer) {
    const size_t needed = ostinato_cold_scratch_bytes(*layer.ffn, routes.cold.size(), step.n_tokens) + 64;
    if (needed > scratch_size) { // what measure() asks for before any graph is built
        scratch.reset(new char[needed]);
        scratch_size = needed;
    }
    team = {};
    step.ffn      = layer.ffn;
    step.host     = layer.host;
    step.n_cold   = (int32_t) routes.cold.size();
    step.n_groups = (int32_t) routes.groups.size()/2;
    step.cold     = routes.cold.data();
    step.groups   = routes.groups.data();
    step.gpu      = nullptr;
    step.scratch  = (char *) (((uintptr_t) scratch.get() + 63) & ~(uintptr_t) 63);
    step.team     = &team;

    n_working.store((int32_t) threads.size() - 1, std::memory_order_relaxed);
    job.fetch_add(1, std::memory_order_release); // publishes the step
    compute(0);
    while (n_working.load(std::memory_order_acquire) > 0) {
        relax();
    }
}

double ostinato_cold_workers::measure(
        const ostinato_cold_layer & layer, const std::vector<int32_t> & experts, int32_t n_rows, size_t n_together, const ostinato_beside & beside) {
    wake(); // the leader too: while it is due it waits for the mutex, and would else send the followers to sleep
    std::lock_guard<std::mutex> lock(mutex); // this thread leads
    awake_until_ns.store(std::numeric_limits<int64_t>::max(), std::memory_order_relaxed);
    {
        std::lock_guard<std::mutex> asleep(sleeping);
        is_active.store(true);
    }
    wake_followers.notify_all();

    const std::vector<float> x(n_rows*layer.ffn->n_in(), 0.5f);
    const std::vector<float> weights(n_rows*n_together, 0.1f);
    std::vector<float> out(n_rows*layer.ffn->n_out());
    const auto choose = [&](size_t first) { // token t selects all of the step's experts
        routes.cold.clear();
        routes.groups.clear();
        for (size_t i = 0; i < n_together; ++i) {
            for (int32_t t = 0; t < n_rows; ++t) {
                routes.cold.push_back((int32_t) (t*n_together + i));
            }
            routes.groups.push_back(experts[first + i]);
            routes.groups.push_back((int32_t) routes.cold.size());
        }
    };
    step.k        = (int32_t) n_together;
    step.n_tokens = n_rows;
    step.x        = x.data();
    step.weights  = weights.data();
    step.out      = out.data();
    const std::vector<uint8_t> all_linked(layer.n_experts, 1);
    step.tokens       = nullptr;
    step.linked       = beside.link_columns > 0 ? all_linked.data() : nullptr;
    step.link_columns = beside.link_columns;
    std::vector<double> runs;
    const int64_t end_ns = now_ns() + MEASURED.count();
    while (runs.size() < 4 || now_ns() < end_ns) {
        const int64_t begin_ns = now_ns();
        for (size_t first = 0; first + n_together <= experts.size(); first += n_together) {
            choose(first);
            if (beside.begin) {
                beside.begin();
            }
            run_step(layer);
            if (beside.end) {
                beside.end();
            }
        }
        runs.push_back((now_ns() - begin_ns)*1e-9);
    }
    awake_until_ns.store(now_ns(), std::memory_order_relaxed);
    std::nth_element(runs.begin(), runs.begin() + runs.size()/2, runs.end());
    return runs[runs.size()/2]/((double) (experts.size()/n_together*n_together)*ostinato_expert_bytes(*layer.ffn));
}

void ostinato_cold_workers::compute(int ith) {
    ostinato_compute_cold(step, ith, (int) threads.size());
}

ostinato_cold_workers & ostinato_cold_team(int n_threads) {
    static ostinato_cold_workers instance(n_threads > 0 ? n_threads : ostinato_cold_thread_count());
    return instance;
}
