// Implementation of borrowing.h.

#include "borrowing.h"

#include "llama-impl.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <new>

static constexpr double DECAY      = 0.97; // of every score, by decode step
static constexpr double HYSTERESIS = 2.0;
static constexpr double SHARE      = 0.25; // of the link's time
static constexpr double MAX_WEIGHT = 1e18;
static constexpr size_t BATCH      = 4;    // uploads between two looks at the counters
static constexpr std::chrono::milliseconds LOOK_EVERY { 2 };

using clock_type = std::chrono::steady_clock;

ostinato_borrower::ostinato_borrower(const ostinato_pool_memory & memory, std::vector<ostinato_borrowing_layer> sources, int32_t percent) :
    memory(memory), layers(std::move(sources)), percent(percent), hot(layers.size()), places_of(layers.size()) {
    for (const ostinato_borrowing_layer & layer : layers) {
        n_columns = std::max<size_t>(n_columns, (layer.n_experts + 63)/64*64);
        sums.emplace_back(layer.n_experts, 0.0);
    }
    shadow.assign(layers.size()*n_columns, -1);
    seen.assign(layers.size()*n_columns, 0);
    ctx.reset(ggml_init({ layers.size()*ggml_tensor_overhead(), nullptr, true }));
    buffer.reset(ggml_backend_buft_alloc_buffer(memory.buft, shadow.size()*sizeof(int32_t)));
    if (!buffer) {
        throw std::bad_alloc();
    }
    // weights: the scheduler runs an operator where its weights are, and never moves them
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (size_t i = 0; i < layers.size(); ++i) {
        ggml_tensor * t = tables.emplace_back(ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, layers[i].n_experts));
        t->buffer = buffer.get();
        t->data   = (char *) ggml_backend_buffer_get_base(buffer.get()) + i*n_columns*sizeof(int32_t);
    }
    write_tables();
    thread = std::thread([this] { run(); });
}

ostinato_borrower::~ostinato_borrower() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        is_stopping = true;
    }
    changed.notify_all();
    thread.join();
}

void ostinato_borrower::write_tables() {
    memory.copy(ggml_backend_buffer_get_base(buffer.get()), shadow.data(), shadow.size()*sizeof(int32_t));
    in_force = shadow;
    is_switch_due.store(false);
}

ostinato_borrower::expert_sets ostinato_borrower::borrowed() {
    std::lock_guard<std::mutex> lock(mutex);
    expert_sets found(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
        for (int32_t e = 0; e < layers[i].n_experts && !hot[i].empty(); ++e) {
            if (in_force[i*n_columns + e] >= 0 && hot[i][e] < 0) {
                found[i].push_back(e);
            }
        }
    }
    return found;
}

void ostinato_borrower::end_uploads(std::unique_lock<std::mutex> & lock) {
    generation++;
    changed.notify_all();
    changed.wait(lock, [&] { return !is_copying; });
}

void ostinato_borrower::stop() {
    std::unique_lock<std::mutex> lock(mutex);
    end_uploads(lock);
    places.clear();
}

void ostinato_borrower::reset(const ostinato_expert_pool & pool) {
    stop();
    std::unique_lock<std::mutex> lock(mutex);
    std::vector<int32_t> n_listed(layers.size(), 0); // by kind: layers that lie nearer to the places reach more of them
    for (size_t i = 0; i < layers.size(); ++i) {
        hot[i]       = pool.slots_of_experts(i);
        ostinato_lent_places & lent = places_of[i];
        lent   = pool.lent_places(i);
        lent.n = (int32_t) ((int64_t) lent.n*percent/100);
        for (int32_t & n = n_listed[lent.kind]; n < lent.n; ++n) {
            places.push_back({ lent.kind, lent.base + n*lent.stride, n });
        }
        std::copy(hot[i].begin(), hot[i].end(), shadow.begin() + i*n_columns);
    }
    write_tables();
    changed.notify_all();
}

void ostinato_borrower::begin_decode(bool is_idle) {
    n_steps.fetch_add(1);
    if (is_switch_due.load() || is_staging.load()) {
        std::lock_guard<std::mutex> lock(mutex);
        if (is_staging.load() && !is_idle) {
            memory.cuda->synchronize(memory.device); // nothing may stage any more, nor see the tables change
            is_idle = true;
        }
        if (is_idle) {
            if (is_switch_due.load()) {
                write_tables();
            }
            is_staging.store(false);
            returned_to = nullptr;
        }
    }
    changed.notify_all();
}

void ostinato_borrower::give_back(const char * limit) {
    if (is_staging.load() && limit <= returned_to) {
        return; // since the last decode step
    }
    std::unique_lock<std::mutex> lock(mutex);
    is_staging.store(true);
    returned_to = std::max(returned_to, limit);
    end_uploads(lock);
    for (lent_place & place : places) {
        if (place.id >= 0 && (place.data < limit || !place.is_serving)) {
            put(place, false);
            place.id = -1;
            is_switch_due.store(true);
        }
    }
}

// Whether the table of its layer names the place's expert.
void ostinato_borrower::put(lent_place & place, bool is_serving) {
    place.is_serving = is_serving;
    shadow[place.layer*n_columns + place.id] = is_serving ? places_of[place.layer].slot + place.index : -1;
}

size_t ostinato_borrower::set(const expert_sets & wanted) {
    std::unique_lock<std::mutex> lock(mutex);
    is_manual = true;
    end_uploads(lock);
    is_staging.store(false);
    returned_to = nullptr;
    size_t n = 0;
    for (lent_place & place : places) { // what is there already stays
        const bool is_kept = place.is_serving && place.id >= 0 &&
            std::find(wanted[place.layer].begin(), wanted[place.layer].end(), place.id) != wanted[place.layer].end();
        if (place.id >= 0 && !is_kept) {
            put(place, false);
            place.id = -1;
        }
        n += is_kept;
    }
    write_tables();
    for (size_t i = 0; i < wanted.size(); ++i) {
        for (const int32_t id : wanted[i]) {
            if (shadow[i*n_columns + id] >= 0) {
                continue;
            }
            const auto place = std::find_if(
                places.begin(), places.end(), [&](const lent_place & p) { return p.id < 0 && p.kind == places_of[i].kind && p.index < places_of[i].n; });
            if (hot[i][id] >= 0 || !layers[i].host[id].record || place == places.end()) {
                continue;
            }
            memory.copy(place->data, layers[i].host[id].record, places_of[i].stride);
            place->layer = i;
            place->id    = id;
            put(*place, true);
            n_uploaded++;
            ++n;
        }
    }
    write_tables();
    return n;
}

ostinato_borrowing_view ostinato_borrower::view() {
    std::lock_guard<std::mutex> lock(mutex);
    ostinato_borrowing_view v;
    v.n_uploaded = n_uploaded;
    for (const lent_place & place : places) {
        if (place.id >= 0) {
            v.n_borrowed++;
            v.bytes += places_of[place.layer].stride;
        }
    }
    return v;
}

// Uses since the last look, while passes may be submitted. A score that decays needs no pass over all experts: what a use adds grows instead.
void ostinato_borrower::read_uses() {
    const uint64_t n = n_steps.load();
    weight *= std::pow(DECAY, -(double) (n - n_steps_seen));
    n_steps_seen = n;
    std::vector<uint32_t> row(n_columns);
    for (size_t i = 0; i < layers.size(); ++i) {
        memory.copy(row.data(), layers[i].counts, layers[i].n_experts*sizeof(uint32_t));
        for (int32_t e = 0; e < layers[i].n_experts; ++e) {
            sums[i][e] += (uint32_t) (row[e] - seen[i*n_columns + e])*weight;
            seen[i*n_columns + e] = row[e];
        }
    }
    if (weight > MAX_WEIGHT) {
        for (auto & layer : sums) {
            std::for_each(layer.begin(), layer.end(), [&](double & sum) { sum /= weight; });
        }
        weight = 1.0;
    }
}

bool ostinato_borrower::is_worth_it(const expert & newcomer, const lent_place & place) const {
    return place.id < 0 ? score(newcomer) > 0.0 : score(newcomer) > HYSTERESIS*score({ place.layer, place.id });
}

// The cold experts with the highest scores, each with the place that is free or holds the lowest score, as far as that is worth it.
std::vector<ostinato_borrower::upload> ostinato_borrower::choose(size_t at_most) {
    std::vector<expert> newcomers;
    std::vector<uint8_t> is_borrowed(layers.size()*n_columns, 0);
    for (const lent_place & place : places) {
        if (place.id >= 0) {
            is_borrowed[place.layer*n_columns + place.id] = 1;
        }
    }
    for (size_t i = 0; i < layers.size(); ++i) {
        for (int32_t e = 0; places_of[i].n > 0 && e < layers[i].n_experts; ++e) {
            if (hot[i][e] < 0 && sums[i][e] > 0.0 && !is_borrowed[i*n_columns + e] && layers[i].host[e].record) {
                newcomers.push_back({ i, e });
            }
        }
    }
    const size_t n = std::min(newcomers.size(), 16*at_most); // some layers may reach no place that is worth it
    std::partial_sort(
        newcomers.begin(), newcomers.begin() + n, newcomers.end(), [&](const expert & a, const expert & b) { return score(a) > score(b); });
    std::vector<size_t> order(places.size()); // from the cheapest to give up, and from the last: uploads are staged in the first ones
    for (size_t p = 0; p < places.size(); ++p) {
        order[p] = places.size() - 1 - p;
    }
    const auto worth = [&](size_t p) { return places[p].id < 0 ? -1.0 : score({ places[p].layer, places[p].id }); };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return worth(a) < worth(b); });

    std::vector<upload> chosen;
    std::vector<uint8_t> is_taken(places.size(), 0);
    for (size_t i = 0; i < n && chosen.size() < at_most; ++i) {
        const ostinato_lent_places & lent = places_of[newcomers[i].layer];
        for (const size_t p : order) {
            if (is_taken[p] || places[p].kind != lent.kind || places[p].index >= lent.n) {
                continue;
            }
            if (is_worth_it(newcomers[i], places[p])) {
                is_taken[p] = 1;
                chosen.push_back({ p, newcomers[i] });
            }
            break;
        }
    }
    return chosen;
}

// Waits until what `shadow` says is in force. False where everything was given back meanwhile.
bool ostinato_borrower::switch_tables(std::unique_lock<std::mutex> & lock, uint64_t now) {
    is_switch_due.store(true);
    changed.wait(lock, [&] { return !is_switch_due.load() || generation != now || is_stopping; });
    return generation == now && !is_stopping;
}

bool ostinato_borrower::copy(std::unique_lock<std::mutex> & lock, const upload & u, uint64_t now) {
    if (generation != now || is_stopping) {
        return false;
    }
    is_copying = true;
    lock.unlock();
    bool is_done = true;
    try {
        memory.copy(places[u.place].data, layers[u.wanted.layer].host[u.wanted.id].record, places_of[u.wanted.layer].stride);
    } catch (const std::exception &) {
        is_done = false;
    }
    lock.lock();
    is_copying = false;
    changed.notify_all();
    if (!is_done && n_failed++ == 0) {
        LLAMA_LOG_WARN("%s: an expert could not be copied to borrowed memory; the CPU branch computes it\n", __func__);
    }
    return is_done && generation == now;
}

// Puts the uploads' experts in place of what is there. Decode steps read cold experts over the same link: after each upload it rests.
void ostinato_borrower::lend(std::unique_lock<std::mutex> & lock, const std::vector<upload> & uploads) {
    if (uploads.empty()) {
        return;
    }
    const uint64_t now = generation;
    bool has_victims = false;
    for (const upload & u : uploads) {
        lent_place & place = places[u.place];
        if (place.id >= 0) {
            put(place, false);
            has_victims = true;
        }
        place.id    = u.wanted.id; // on its way
        place.layer = u.wanted.layer;
    }
    std::vector<uint8_t> is_there(uploads.size(), 0);
    if (!has_victims || switch_tables(lock, now)) {
        for (size_t i = 0; i < uploads.size() && generation == now && !is_stopping; ++i) {
            const auto begin = clock_type::now();
            is_there[i] = copy(lock, uploads[i], now);
            n_uploaded += is_there[i];
            changed.wait_for(lock, (clock_type::now() - begin)*(1.0/SHARE - 1.0), [&] { return is_stopping || generation != now; });
        }
    }
    if (generation != now) {
        return; // all were given back
    }
    for (size_t i = 0; i < uploads.size(); ++i) {
        if (is_there[i]) {
            put(places[uploads[i].place], true);
        } else {
            places[uploads[i].place].id = -1;
        }
    }
    switch_tables(lock, now);
}

void ostinato_borrower::run() {
    std::unique_lock<std::mutex> lock(mutex);
    uint64_t steps_before = 0;
    while (!is_stopping) {
        changed.wait(lock, [&] { return is_stopping || (n_steps.load() != steps_before && !places.empty() && !is_manual && !is_staging.load()); });
        if (is_stopping) {
            break;
        }
        lock.unlock();
        steps_before = n_steps.load();
        bool is_read = true;
        try {
            read_uses();
        } catch (const std::exception &) {
            is_read = false;
        }
        lock.lock();
        if (!is_read) {
            break; // the device fails, and so will the next pass
        }
        if (!is_staging.load() && !is_manual && !places.empty()) {
            lend(lock, choose(BATCH));
        }
        changed.wait_for(lock, LOOK_EVERY, [&] { return is_stopping; }); // looking costs driver calls beside the thread that submits passes
    }
}
