// The choices of upload-choice.h are the best of all, by their own model of time. A part of ostinato-test-operators.

#include "checks.h"

#include "ostinato/upload-choice.h"

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

} // namespace

void check_choices() {
    check_upload_choice();
    check_link_choice();
}
