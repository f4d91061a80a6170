// Implementation of uploads.h.

#include "uploads.h"

#include "record.h"

#include <algorithm>

const ostinato_expert_ffn * ostinato_staging_of(const ostinato_cold_layer & layer, const ostinato_upload_limits & limits, int64_t n_tokens) {
    if (!ostinato_can_stage(*layer.ffn)) {
        return nullptr;
    }
    return n_tokens >= limits.choice_tokens ? layer.staging : nullptr;
}

// A staging buffer's place as memory.
struct staging_memory {
    char * base;
    size_t stride;

    explicit staging_memory(const ostinato_expert_ffn & staging) { // the first weight is where a record begins
        const ggml_tensor * first = staging.gate ? staging.gate : staging.up ? staging.up : staging.gate_up;
        base   = (char *) first->data;
        stride = first->nb[2];
    }

    char * at(int64_t place) const { return base + place*(int64_t) stride; }
};

void ostinato_uploads::add_layer(int32_t n_experts) {
    prefetch.add_layer(n_experts);
    // while a GPU waits, nothing is allocated
    rows.reserve(n_experts);
    last.place_of.reserve(n_experts);
    is_taken.reserve(4*n_experts);
}

void ostinato_uploads::decide(
        const ostinato_mailbox & mailbox, const ostinato_request & request, const std::vector<ostinato_cold_layer> & layers,
        const ostinato_cold_routes & all, ostinato_cold_routes & kept) {
    const ostinato_cold_layer & layer = layers[request.layer];
    const int32_t n_places     = places_of(*layer.staging); // once: the next pass may be announced meanwhile
    const int64_t expert_bytes = (int64_t) ostinato_expert_bytes(*layer.ffn);
    const uint32_t now         = epoch.load();
    const bool is_same_pass    = last.epoch == now && last.layer + 1 == request.layer && last.n_tokens == request.n_tokens;
    const bool is_next         = is_same_pass && last.is_followed;
    if (is_same_pass) {
        learn(request);
    }
    if (is_next) {
        prefetch.add_rest(request.n_tokens, request.rest_us*1e-6);
    }
    const double head_start = prefetch.head_start(request.n_tokens);
    const bool is_ahead     = is_next && head_start > 0.0;

    rows.clear();
    for (size_t g = 0; g < all.groups.size(); g += 2) {
        rows.push_back(layer.pinned[all.groups[g]] ? all.rows_of(g) : -all.rows_of(g));
    }
    const bool is_all = request.n_tokens >= limits.all_tokens;
    const ostinato_upload_costs costs = is_all ? ostinato_upload_costs { 0.0 } : log.costs(request.n_tokens, layer.speeds.link);
    double expected = 0.0;
    const std::vector<int32_t> chosen =
        ostinato_choose_uploads(layer.speeds, costs, expert_bytes, rows, n_places, is_ahead ? head_start : 0.0, expected);

    std::fill_n(mailbox.decided_slots, mailbox.n_experts, -1);
    mailbox.request->n_copies     = 0;
    mailbox.request->n_prefetched = 0;
    is_taken.assign(n_places, 0);
    stage(mailbox, layer, chosen, all, is_ahead);

    const bool is_followed = request.is_followed && ostinato_staging_of(layers[request.layer + 1], limits, request.n_tokens);
    last.place_of.assign(mailbox.n_experts, -1);
    if (is_followed && head_start > 0.0) {
        look_ahead(mailbox, request, layer, layers[request.layer + 1]);
    }
    last.epoch       = now;
    last.layer       = request.layer;
    last.n_tokens    = request.n_tokens;
    last.is_followed = is_followed;
    last.cpu         = 0.0;
    last.expected    = is_all ? 0.0 : expected;

    kept.cold.clear();
    kept.groups.clear();
    for (size_t g = 0; g < all.groups.size(); g += 2) {
        if (mailbox.decided_slots[all.groups[g]] < 0) {
            kept.cold.insert(kept.cold.end(), all.cold.begin() + all.begin_of(g), all.cold.begin() + all.groups[g + 1]);
            kept.groups.push_back(all.groups[g]);
            kept.groups.push_back((int32_t) kept.cold.size());
        }
    }
}

void ostinato_uploads::end(const ostinato_request & request, const ostinato_cold_routes & all, double seconds, double predicted) {
    prefetch.add_step(request.layer, request.n_tokens, all.groups);
    last.cpu = predicted > 0.0 ? seconds/predicted : 0.0;
    last.cpu_seconds = seconds;
    if (last.bytes == 0 && last.cpu > 0.0) {
        log.add_alone(request.n_tokens, last.cpu);
    }
}

// What the last layer's uploads took, which the next one's request tells.
void ostinato_uploads::learn(const ostinato_request & request) {
    if (last.bytes > 0 && last.cpu > 0.0 && request.copy_us > 0) {
        log.add_shared(request.n_tokens, { request.copy_us*1e-6/last.bytes, request.hot_us*1e-6, request.chain_us*1e-6, last.cpu });
        if (last.expected > 0.0) {
            n_steps++;
            ns          += (uint64_t) (1e9*std::max(last.cpu_seconds, 1e-6*(std::max(request.hot_us, request.copy_us) + request.chain_us)));
            expected_ns += (uint64_t) (1e9*last.expected);
        }
    }
}

// Gives every chosen expert its place: the one where it is already, or a free one. What was prefetched in vain is written over.
void ostinato_uploads::stage(
        const ostinato_mailbox & mailbox, const ostinato_cold_layer & layer, const std::vector<int32_t> & chosen, const ostinato_cold_routes & all, bool is_ahead) {
    size_t n_there = 0;
    for (const int32_t c : chosen) {
        const int32_t expert = all.groups[2*c];
        const int32_t place  = is_ahead ? last.place_of[expert] : -1;
        if (place >= 0 && place < (int32_t) is_taken.size()) {
            is_taken[place] = 1;
            mailbox.decided_slots[expert] = place;
            ++n_there;
        }
    }
    int32_t place = -1;
    int32_t most  = 0;
    for (const int32_t c : chosen) {
        const int32_t expert = all.groups[2*c];
        if (mailbox.decided_slots[expert] < 0) {
            place = next_free(place + 1);
            is_taken[place] = 1;
            mailbox.decided_slots[expert] = place;
            add_copies(mailbox, layer, expert, place);
        }
        most = std::max(most, mailbox.decided_slots[expert] + 1);
    }
    note_places(mailbox.request->n_tokens, most);
    last.bytes = (int64_t) ((chosen.size() - n_there)*ostinato_expert_bytes(*layer.ffn));
    n_uploaded += chosen.size();
    n_foreseen += n_there;
    bytes      += last.bytes;
}

// A step of so many tokens uses the first n places.
void ostinato_uploads::note_places(int64_t n_tokens, int32_t n) {
    std::atomic<int32_t> & most = most_places[ostinato_size_class(n_tokens)];
    most.store(std::max(most.load(), n));
}

int32_t ostinato_uploads::next_free(int32_t place) const {
    return (int32_t) (std::find(is_taken.begin() + place, is_taken.end(), 0) - is_taken.begin());
}

void ostinato_uploads::add_copies(const ostinato_mailbox & mailbox, const ostinato_cold_layer & layer, int32_t expert, int32_t place) {
    const ostinato_host_expert & from = layer.host[expert];
    const staging_memory memory(*layer.staging);
    if (from.record) {
        mailbox.copies[mailbox.request->n_copies++] = { from.record, memory.at(place), (int64_t) memory.stride };
        return;
    }
    for (const ostinato_record_weight & weight : ostinato_record_weights) {
        if (const ggml_tensor * to = layer.staging->*weight.member) {
            mailbox.copies[mailbox.request->n_copies++] = {
                from.*weight.host, (char *) to->data + place*to->nb[2], (int64_t) (layer.ffn->*weight.member)->nb[2] };
        }
    }
}

// Whether the step computes from memory between `begin` and `end`. Places of another layer's kind have another size.
bool ostinato_uploads::is_computed_from(const ostinato_expert_ffn & staging, const char * begin, const char * end) const {
    const staging_memory memory(staging);
    const int64_t first = std::max<int64_t>(0, (begin - memory.base)/(int64_t) memory.stride);
    for (int64_t place = first; place < (int64_t) is_taken.size() && memory.at(place) < end; ++place) {
        if (is_taken[place] && memory.at(place + 1) > begin) {
            return true;
        }
    }
    return false;
}

// Lists what the next layer will probably upload, as much as the link has time for.
void ostinato_uploads::look_ahead(
        const ostinato_mailbox & mailbox, const ostinato_request & request, const ostinato_cold_layer & layer, const ostinato_cold_layer & next) {
    const staging_memory memory(*next.staging);
    const double most      = prefetch.head_start(request.n_tokens)/(next.speeds.link*ostinato_expert_bytes(*next.ffn));
    const int32_t n_places = places_of(*next.staging);
    int32_t & n = mailbox.request->n_prefetched;
    int32_t place = -1;
    for (const int32_t expert : prefetch.expected(request.layer + 1, request.n_tokens)) {
        if (n + 1 > most || n == mailbox.n_experts) {
            break;
        }
        if (!next.pinned[expert] || !next.host[expert].record) {
            continue;
        }
        do {
            ++place;
        } while (place < n_places && is_computed_from(*layer.staging, memory.at(place), memory.at(place + 1)));
        if (place >= n_places) {
            break;
        }
        mailbox.copies[mailbox.request->n_copies + n++] = { next.host[expert].record, memory.at(place), (int64_t) memory.stride };
        last.place_of[expert] = place;
        note_places(request.n_tokens, place + 1);
    }
    n_prefetched += n;
    bytes        += n*ostinato_expert_bytes(*next.ffn);
}
