// The choices of upload-choice.h are the best of all, by their own model of time; what upload-costs.h and prefetch.h have learned for them is what was
// measured, and layers count with the speeds that speed-kinds.h says. A part of ostinato-test-operators.

#include "checks.h"

#include "ostinato/prefetch.h"
#include "ostinato/speed-kinds.h"
#include "ostinato/upload-choice.h"
#include "ostinato/upload-costs.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace {

// Uploads never make the later side end later than the CPU branch alone, and are the best of all numbers of uploads in that order, also where uploads
// cost something before the first one pays.
void check_upload_choice() {
    std::mt19937 random(13);
    const int64_t bytes = 1 << 20;
    for (int round = 0; round < 500; ++round) {
        ostinato_speeds speeds;
        speeds.cpu_row  = 1.0/(1e9*(1 + random() % 100));
        speeds.cpu_few  = speeds.cpu_row*(1 + random() % 3);
        speeds.cpu_rows = speeds.cpu_few*(1 + random() % 4);
        speeds.link     = 1.0/(1e9*(1 + random() % 60));
        std::vector<int32_t> rows(random() % 40);
        std::generate(rows.begin(), rows.end(), [&] { return (int32_t) (1 + random() % 20)*(random() % 4 == 0 ? -1 : 1); });
        const int32_t max_uploads = random() % 30;
        ostinato_upload_costs costs = { speeds.link };
        if (round % 2 == 1) {
            costs.hot       = bytes*speeds.cpu_row*(random() % 40)/10.0;
            costs.chain     = bytes*speeds.cpu_row*(random() % 40)/10.0;
            costs.cpu       = 1.0 + random() % 10/10.0;
            costs.cpu_alone = 0.8 + random() % 5/10.0;
        }
        const double head_start = round % 3 == 0 ? bytes*speeds.link*(random() % 30)/10.0 : 0.0;
        double expected = 0.0;
        const std::vector<int32_t> chosen = ostinato_choose_uploads(speeds, costs, bytes, rows, max_uploads, head_start, expected);

        const auto later_side = [&](const std::set<int32_t> & uploaded) {
            double cpu = 0.0;
            for (int32_t i = 0; i < (int32_t) rows.size(); ++i) {
                cpu += uploaded.count(i) ? 0.0 : ostinato_cpu_seconds(speeds, bytes, std::abs(rows[i]));
            }
            const double link = uploaded.empty() ? 0.0 : uploaded.size()*bytes*costs.link - head_start;
            return std::max((uploaded.empty() ? costs.cpu_alone : costs.cpu)*cpu, std::max(costs.hot, link) + costs.chain);
        };
        const std::set<int32_t> distinct(chosen.begin(), chosen.end());
        if (distinct.size() != chosen.size() || (int32_t) chosen.size() > max_uploads ||
                std::any_of(chosen.begin(), chosen.end(), [&](int32_t i) { return rows[i] < 0; })) {
            fail("round %d: an upload is repeated, one too many, or of an expert that cannot be uploaded", round);
        }
        const double found = later_side(distinct);
        if (std::abs(expected - found) > 1e-9*found) {
            fail("round %d: %g s are expected of a step that takes %g s", round, expected, found);
        }
        std::vector<int32_t> order;
        for (int32_t i = 0; i < (int32_t) rows.size(); ++i) {
            if (rows[i] > 0) {
                order.push_back(i);
            }
        }
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return rows[a] > rows[b]; });
        std::set<int32_t> first;
        for (size_t n = 0; n <= std::min<size_t>(order.size(), max_uploads); ++n) {
            if (n > 0) {
                first.insert(order[n - 1]);
            }
            if (later_side(first) < found*(1 - 1e-9)) {
                fail("round %d: %zu uploads end at %g, %zu at %g", round, chosen.size(), found, n, later_side(first));
                break;
            }
        }
    }
}

// The link gets the share with which steps were the shortest, and none where they were hardly shorter than without.
void check_link_choice() {
    std::mt19937 random(17);
    for (int round = 0; round < 500; ++round) {
        const double alone = 1.0 + random() % 100;
        std::vector<ostinato_shared_step> measured(random() % 5);
        for (size_t i = 0; i < measured.size(); ++i) {
            measured[i] = { (int64_t) (64*(i + 1)), alone*(0.5 + random() % 100/100.0), 1.0 };
        }
        const ostinato_shared_step * chosen = ostinato_choose_shared_step(measured, alone);
        double best = std::numeric_limits<double>::infinity();
        for (const ostinato_shared_step & step : measured) {
            best = std::min(best, step.seconds);
        }
        if (chosen ? chosen->seconds != best || best > 0.97*alone : best < 0.96*alone) {
            fail("round %d: the link's share ends at %g of %g, %g is possible", round, chosen ? chosen->seconds : alone, alone, best);
        }
    }
}

// Costs of uploads are the median of the first layers of their size, those of the nearest size before that, and what was measured at load before any.
void check_upload_costs() {
    ostinato_upload_log log;
    const ostinato_upload_costs first = log.costs(64, 5.0);
    if (first.link != 5.0 || first.hot != 0.0 || first.chain != 0.0 || first.cpu != 1.0 || first.cpu_alone != 1.0) {
        fail("costs that nobody has found");
    }
    const int n_layers = (int) ostinato_upload_log::N_LAYERS;
    for (int n = 0; n < 3*n_layers; ++n) { // some layers are disturbed, and later ones change nothing
        if (n < n_layers && log.costs(127, 5.0).link != 5.0) {
            fail("costs after %d layers", n);
        }
        const double by = n >= n_layers || n % 5 == 4 ? 100.0 : 1.0;
        log.add_shared(64, { 7.0*by, 3.0*by, 4.0*by, 2.0*by });
        log.add_alone(1000, 1.5*by);
    }
    for (const int64_t n_tokens : { 32, 64, 127, 4096 }) {
        const ostinato_upload_costs found = log.costs(n_tokens, 5.0);
        if (found.link != 7.0 || found.hot != 3.0 || found.chain != 4.0 || found.cpu != 2.0 || found.cpu_alone != 1.5) {
            fail("%d tokens: other costs than most layers had, of the link %g", (int) n_tokens, found.link);
        }
    }
    for (int n = 0; n < n_layers; ++n) {
        log.add_shared(512, { 9.0 });
    }
    if (log.costs(128, 5.0).link != 7.0 || log.costs(300, 5.0).link != 9.0 || log.costs(600, 5.0).link != 9.0) {
        fail("costs of another size of passes than the nearest");
    }
}

// The head start is what the link rested in nearly all layers, and stays what it was once it is known.
void check_head_start() {
    ostinato_prefetch prefetch;
    prefetch.add_layer(4);
    for (int n = 0; n < 200; ++n) {
        if (n < 10 && prefetch.head_start(600) != 0.0) {
            fail("a head start after %d layers", n);
        }
        prefetch.add_rest(600, n < 16 ? n % 4 == 3 ? 1.0 : 2e-3 : 5.0);
    }
    const double found = prefetch.head_start(1023);
    if (found < 1.5e-3 || found > 2e-3 || prefetch.head_start(511) != 0.0 || prefetch.head_start(4096) != found) {
        fail("another head start than was measured: %g s", found);
    }
    prefetch.add_step(0, 100, { 2, 30, 1, 90, 3, 91 });
    const std::vector<int32_t> expected = prefetch.expected(0, 100);
    if (expected != std::vector<int32_t> { 1, 2 } || prefetch.expected(0, 10) != std::vector<int32_t> { 1 }) {
        fail("%zu experts are expected, others than those with the most rows", expected.size());
    }
}

// Layers whose experts have the same types and shapes are of one kind, wherever they are.
void check_speed_kinds() {
    struct made { ggml_type up, down; int64_t n_ff, n_experts; };
    const std::vector<made> wanted = {
        { GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, 512, 8 }, { GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, 512, 8 }, { GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, 512, 8 },
        { GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, 256, 64 }, { GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, 512, 8 }, { GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, 512, 8 },
    };
    const ggml_context_ptr ctx(ggml_init({ 2*wanted.size()*ggml_tensor_overhead(), nullptr, true }));
    std::vector<ostinato_expert_ffn> ffns(wanted.size());
    std::vector<const ostinato_expert_ffn *> layers;
    for (size_t i = 0; i < wanted.size(); ++i) {
        ffns[i].gate_up = ggml_new_tensor_3d(ctx.get(), wanted[i].up, 256, 2*wanted[i].n_ff, wanted[i].n_experts);
        ffns[i].down    = ggml_new_tensor_3d(ctx.get(), wanted[i].down, wanted[i].n_ff, 256, wanted[i].n_experts);
        layers.push_back(&ffns[i]);
    }
    const std::vector<ostinato_speed_kind> kinds = ostinato_speed_kinds(layers);
    const std::vector<std::vector<size_t>> expected = { { 0, 2 }, { 1, 4, 5 }, { 3 } };
    if (kinds.size() != expected.size()) {
        return fail("%zu kinds of experts in place of %zu", kinds.size(), expected.size());
    }
    for (size_t k = 0; k < kinds.size(); ++k) {
        const size_t bytes = ggml_nbytes(ffns[expected[k][0]].gate_up) + ggml_nbytes(ffns[expected[k][0]].down); // of a layer
        if (kinds[k].layers != expected[k] || kinds[k].bytes != bytes*expected[k].size() ||
                kinds[k].expert_bytes != (int64_t) bytes/wanted[expected[k][0]].n_experts || kinds[k].measured != -1) {
            fail("kind %zu has other layers or bytes than its experts", k);
        }
    }
    // one layer of 64 small experts has more bytes than three of 8 larger ones
    if (ostinato_main_kind(kinds) != 2 || ostinato_main_kind({ kinds[0], kinds[1] }) != 1 || ostinato_main_kind({ kinds[0], kinds[0] }) != 0) {
        fail("the kind with the most bytes is another one than number %zu", ostinato_main_kind(kinds));
    }
    if (ostinato_type_names(kinds[0].types) != "gate_up q4_K, down q6_K") {
        fail("types are told as %s", ostinato_type_names(kinds[0].types).c_str());
    }
}

// Whose speeds stand for each kind, and in which order they are measured.
void check_measuring_plan() {
    constexpr ggml_type NONE = GGML_TYPE_COUNT;
    constexpr ggml_type Q4 = GGML_TYPE_Q4_K, Q5 = GGML_TYPE_Q5_K, Q6 = GGML_TYPE_Q6_K;
    const auto kind = [](ggml_type gate, ggml_type up, ggml_type down, size_t cold_bytes, bool is_measurable = true) {
        return ostinato_kind_facts { { gate, up, NONE, down }, cold_bytes, is_measurable };
    };
    const struct {
        const char * name;
        std::vector<ostinato_kind_facts> kinds;
        std::vector<size_t> order;
        std::vector<int32_t> measured;
    } cases[] = {
        { "one kind", { kind(Q4, Q4, Q4, 0) }, { 0 }, { 0 } },
        { "one kind that cannot be measured", { kind(Q4, Q4, Q4, 5, false) }, {}, { -1 } },
        { "the most cold bytes first", { kind(Q4, Q4, Q4, 5), kind(Q4, Q4, Q6, 6), kind(Q5, Q5, Q6, 5) }, { 1, 0, 2 }, { 0, 1, 2 } },
        { "the most alike, not the largest", { kind(Q4, Q4, Q6, 9, false), kind(Q5, Q5, Q6, 8), kind(Q4, Q4, Q4, 1) }, { 1, 2 }, { 2, 1, 2 } },
        { "of several alike the first measured", { kind(Q4, Q4, Q6, 9, false), kind(Q4, Q4, Q4, 1), kind(Q4, Q4, Q5, 2) }, { 2, 1 }, { 2, 1, 2 } },
        { "a weight that neither has makes nothing alike", { kind(NONE, Q4, Q4, 9, false), kind(NONE, Q5, Q5, 8), kind(Q5, Q5, Q4, 1) }, { 1, 2 }, { 2, 1, 2 } },
        { "nothing alike", { kind(Q4, Q4, Q4, 9, false), kind(Q5, Q5, Q5, 1), kind(Q6, Q6, Q6, 2) }, { 2, 1 }, { 2, 1, 2 } },
        { "no more than four", { kind(Q4, Q4, Q4, 1), kind(Q5, Q5, Q5, 2), kind(Q4, Q4, Q5, 5), kind(Q5, Q5, Q6, 6), kind(Q6, Q6, Q6, 3), kind(Q4, Q6, Q6, 4) },
            { 3, 2, 5, 4 }, { 2, 3, 2, 3, 4, 5 } },
    };
    for (const auto & each : cases) {
        const ostinato_measuring_plan plan = ostinato_plan_measuring(each.kinds);
        if (plan.order != each.order || plan.measured != each.measured) {
            fail("kinds to measure, %s: another order or other speeds", each.name);
        }
    }
}

} // namespace

void check_choices() {
    check_upload_choice();
    check_link_choice();
    check_upload_costs();
    check_head_start();
    check_speed_kinds();
    check_measuring_plan();
}
