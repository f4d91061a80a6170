// borrowing [STEPS]: lent memory on a machine without a GPU, whose part plain memory plays.
//
// Decode steps with skewed routes, prefills that overwrite what was lent, and other hot sets in between. While a pass "computes", every slot that its
// tables name has to hold the expert it is named for, and neither may change. After give_back the memory is the pass's alone.
//
// Prints nothing and returns 0, or one line per failure and 1. Compiled and run by tests/e2e/test_bitwise.py.

#include "ostinato/borrowing.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int32_t N_EXPERTS = 32;
constexpr int32_t K         = 4;
constexpr size_t  N_LAYERS  = 4;

int n_failed = 0;

void fail(const char * what, int step, size_t layer, int32_t expert) {
    if (n_failed++ < 20) {
        printf("step %d: layer %zu, expert %d: %s\n", step, layer, expert, what);
    }
}

const std::thread::id main_thread = std::this_thread::get_id();
std::atomic<int> n_refused { 0 };

// Every fifth upload of the borrower's thread fails.
bool copy_memory(int, void * dst, const void * src, size_t bytes) {
    static std::atomic<int> n_uploads { 0 };
    if (std::this_thread::get_id() != main_thread && bytes > N_EXPERTS*sizeof(uint32_t) && ++n_uploads % 5 == 0) {
        n_refused++;
        return false;
    }
    memcpy(dst, src, bytes);
    return true;
}

bool fill_memory(int, void * dst, int value, size_t bytes) {
    memset(dst, value, bytes);
    return true;
}

int n_synchronized = 0;

void synchronize(int) {
    n_synchronized++;
}

struct layer {
    ostinato_expert_ffn ffn;
    std::vector<char> records;
    std::vector<ostinato_host_expert> host;
    std::vector<uint32_t> counts = std::vector<uint32_t>(N_EXPERTS);

    // Layers of different widths are of different kinds.
    layer(size_t number, int64_t n_ff, std::mt19937 & random) {
        ctx.reset(ggml_init({ 4*ggml_tensor_overhead(), nullptr, true }));
        ffn.gate = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_Q8_0, 64, n_ff, N_EXPERTS);
        ffn.up   = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_Q8_0, 64, n_ff, N_EXPERTS);
        ffn.down = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_Q8_0, n_ff, 64, N_EXPERTS);
        const ostinato_record record(ffn);
        records.resize(N_EXPERTS*record.stride);
        std::generate(records.begin(), records.end(), [&] { return (char) random(); });
        for (int32_t e = 0; e < N_EXPERTS; ++e) {
            ostinato_host_expert & expert = host.emplace_back();
            for (size_t w = 0; w < std::size(ostinato_record_weights); ++w) {
                expert.*ostinato_record_weights[w].host = record.at(records.data(), e, w);
            }
            const bool is_page_locked = (e + number) % 7 != 0;
            expert.record = is_page_locked ? records.data() + e*record.stride : nullptr;
        }
    }

    const char * record_of(int32_t expert) const { return records.data() + expert*ostinato_record(ffn).stride; }

private:
    ggml_context_ptr ctx;
};

struct machine {
    std::mt19937 random { 11 };
    ostinato_cuda_functions cuda = {};
    ostinato_pool_memory memory;
    std::vector<std::unique_ptr<layer>> layers;
    std::unique_ptr<ostinato_expert_pool> pool;
    std::unique_ptr<ostinato_borrower> borrower;

    machine() {
        cuda.copy        = copy_memory;
        cuda.fill        = fill_memory;
        cuda.synchronize = synchronize;
        memory = { ggml_backend_cpu_buffer_type(), &cuda, 0 };
        std::vector<ostinato_pool_layer> pool_layers;
        std::vector<ostinato_borrowing_layer> borrowing;
        for (size_t i = 0; i < N_LAYERS; ++i) {
            layers.push_back(std::make_unique<layer>(i, i == 2 ? 96 : 64, random));
            const bool has_zero_slots = i == 3;
            pool_layers.push_back({ &layers[i]->ffn, N_EXPERTS, has_zero_slots ? K : 0 });
            borrowing.push_back({ N_EXPERTS, layers[i]->counts.data(), layers[i]->host.data() });
        }
        const ostinato_expert_pool::hot_sets largest(N_LAYERS, std::vector<int32_t>(N_EXPERTS/2));
        pool = std::make_unique<ostinato_expert_pool>(
            pool_layers, memory, ostinato_expert_pool::bytes_for(pool_layers, largest, memory), 6*ostinato_expert_pool::least_lent(pool_layers));
        borrower = std::make_unique<ostinato_borrower>(memory, std::move(borrowing), 100);
        move_experts();
    }

    void move_experts() {
        ostinato_expert_pool::hot_sets hot(N_LAYERS);
        for (auto & experts : hot) {
            for (int32_t e = 0; e < N_EXPERTS; ++e) {
                experts.push_back(e);
            }
            std::shuffle(experts.begin(), experts.end(), random);
            experts.resize(random() % (N_EXPERTS/2));
        }
        borrower->stop();
        pool->set_hot(hot, [&](size_t i, int32_t e) { return layers[i]->host[e]; });
        borrower->reset(*pool);
    }

    std::vector<std::vector<int32_t>> tables() const {
        std::vector<std::vector<int32_t>> all;
        for (size_t i = 0; i < N_LAYERS; ++i) {
            const int32_t * table = (const int32_t *) borrower->index_table(i)->data;
            all.emplace_back(table, table + N_EXPERTS);
        }
        return all;
    }

    // Slots that are not the layer's own.
    size_t check_tables(const std::vector<std::vector<int32_t>> & all, int step) const {
        size_t n_borrowed = 0;
        for (size_t i = 0; i < N_LAYERS; ++i) {
            const std::vector<int32_t> hot = pool->slots_of_experts(i);
            const ggml_tensor * gate = pool->slots(i).gate;
            const ostinato_record record(layers[i]->ffn);
            for (int32_t e = 0; e < N_EXPERTS; ++e) {
                const int32_t slot = all[i][e];
                if (hot[e] >= 0 && slot != hot[e]) {
                    fail("a hot expert has another slot", step, i, e);
                }
                if (hot[e] >= 0 || slot < 0) {
                    continue;
                }
                n_borrowed++;
                if (!layers[i]->host[e].record || i == 3) {
                    fail("it cannot be borrowed", step, i, e);
                }
                if (memcmp((const char *) gate->data + slot*record.stride, layers[i]->record_of(e), record.stride) != 0) {
                    fail("its slot holds something else", step, i, e);
                }
            }
        }
        return n_borrowed;
    }

    // Few experts have most routes, others by turns.
    std::vector<std::vector<int32_t>> routes(int step) {
        std::vector<std::vector<int32_t>> chosen(N_LAYERS);
        for (auto & experts : chosen) {
            std::geometric_distribution<int32_t> rank(0.25);
            while (experts.size() < K) {
                const int32_t e = (rank(random) + step/100*5) % N_EXPERTS;
                if (std::find(experts.begin(), experts.end(), e) == experts.end()) {
                    experts.push_back(e);
                }
            }
        }
        return chosen;
    }
};

void wait_us(int64_t us) {
    std::this_thread::sleep_for(std::chrono::microseconds(us));
}

} // namespace

int main(int argc, char ** argv) {
    const int n_steps = argc > 1 ? atoi(argv[1]) : 1500;
    machine m;
    int64_t n_cold   = 0;
    int64_t n_served = 0;
    size_t n_kept_in_all = 0;
    for (int step = 0; step < n_steps; ++step) {
        m.borrower->begin_decode(step % 3 != 0); // the GPU is busy now and then: nothing may change for this pass
        const auto before = m.tables();
        size_t n_told = 0;
        for (const auto & experts : m.borrower->borrowed()) {
            n_told += experts.size();
        }
        if (m.check_tables(before, step) != n_told) {
            fail("other experts are told than the tables name", step, 0, 0);
        }
        const auto routes = m.routes(step);
        wait_us(300);
        for (size_t i = 0; i < N_LAYERS; ++i) {
            const std::vector<int32_t> hot = m.pool->slots_of_experts(i);
            for (const int32_t e : routes[i]) {
                m.layers[i]->counts[e]++;
                n_cold   += hot[e] < 0;
                n_served += hot[e] < 0 && before[i][e] >= 0;
            }
        }
        m.check_tables(before, step);
        if (m.tables() != before) {
            fail("the tables changed during a pass", step, 0, 0);
        }
        if (step % 100 == 75) { // a prefill stages uploads, in all of the memory or in a part
            const char * limit = step % 200 == 75 ? (const char *) UINTPTR_MAX : m.pool->staging_end(3);
            m.borrower->give_back(limit);
            const size_t n_kept = m.borrower->view().n_borrowed;
            std::vector<std::pair<char *, size_t>> staging;
            for (size_t i = 0; i < N_LAYERS; ++i) {
                const ostinato_lent_places lent = m.pool->lent_places(i);
                const size_t bytes = lent.base < limit ? std::min<size_t>(lent.n*lent.stride, limit - lent.base) : 0;
                staging.emplace_back(lent.base, bytes);
                memset(lent.base, 0x5a, bytes);
            }
            wait_us(4000);
            for (const auto & [data, bytes] : staging) {
                if (!std::all_of(data, data + bytes, [](char c) { return c == 0x5a; })) {
                    fail("the borrower wrote where a pass stages", step, 0, 0);
                }
            }
            m.borrower->begin_decode(false); // while it still computes: it is waited for
            if (m.check_tables(m.tables(), step) != n_kept) {
                fail("the tables name what is not there, or not all that is", step, 0, 0);
            }
            if (step % 200 == 75 && n_kept != 0) {
                fail("experts stay borrowed", step, 0, 0);
            }
            n_kept_in_all += n_kept;
        }
        if (step % 500 == 499) {
            m.move_experts();
            if (m.check_tables(m.tables(), step) != 0) {
                fail("experts that moved are still borrowed", step, 0, 0);
            }
        }
    }
    const ostinato_borrowing_view view = m.borrower->view();
    if (view.n_uploaded < 20 || n_served*10 < n_cold) {
        printf("only %lld of %lld cold routes met a borrowed expert, after %llu uploads\n", (long long) n_served, (long long) n_cold,
            (unsigned long long) view.n_uploaded);
        n_failed++;
    }
    if (n_refused == 0) {
        printf("no upload failed\n");
        n_failed++;
    }
    if (n_kept_in_all == 0) {
        printf("no expert stayed borrowed through a prefill that stages in a part of the memory\n");
        n_failed++;
    }
    if (n_synchronized == 0) {
        printf("a busy GPU was not waited for\n");
        n_failed++;
    }

    // as asked, and no longer by itself
    ostinato_expert_pool::hot_sets asked(N_LAYERS);
    for (size_t i = 0; i < N_LAYERS; ++i) {
        asked[i] = { 1, 2, 3 };
    }
    const size_t n_lent = m.borrower->set(asked);
    m.borrower->begin_decode(true);
    const auto as_asked = m.tables();
    if (m.check_tables(as_asked, -1) != n_lent || n_lent == 0) {
        fail("other experts than asked for are borrowed", -1, 0, 0);
    }
    for (int step = 0; step < 20; ++step) {
        for (auto & counts : m.layers) {
            counts->counts[9] += 5;
        }
        wait_us(1000);
        m.borrower->begin_decode(true);
    }
    if (m.tables() != as_asked) {
        fail("it changed what was asked for", -1, 0, 0);
    }
    const uint64_t n_before = m.borrower->view().n_uploaded;
    if (m.borrower->set(asked) != n_lent || m.tables() != as_asked || m.borrower->view().n_uploaded != n_before) {
        fail("what is there already is copied again", -1, 0, 0);
    }
    const size_t n_other = m.borrower->set({ { 2 }, { 4 }, {}, {} });
    if (m.check_tables(m.tables(), -1) != n_other) {
        fail("other experts than asked for next are borrowed", -1, 0, 0);
    }
    return n_failed == 0 ? 0 : 1;
}
