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

// Uploads never make the later side end later than the CPU branch alone, and are the best of all numbers of uploads in that order.
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
        const std::vector<int32_t> chosen = ostinato_choose_uploads(speeds, bytes, rows, max_uploads);

        const auto later_side = [&](const std::set<int32_t> & uploaded) {
            double cpu = 0.0;
            for (int32_t i = 0; i < (int32_t) rows.size(); ++i) {
                cpu += uploaded.count(i) ? 0.0 : ostinato_cpu_seconds(speeds, bytes, std::abs(rows[i]));
            }
            return std::max(cpu, uploaded.size()*bytes*speeds.link);
        };
        const std::set<int32_t> distinct(chosen.begin(), chosen.end());
        if (distinct.size() != chosen.size() || (int32_t) chosen.size() > max_uploads ||
                std::any_of(chosen.begin(), chosen.end(), [&](int32_t i) { return rows[i] < 0; })) {
            fail("round %d: an upload is repeated, one too many, or of an expert that cannot be uploaded", round);
        }
        const double found = later_side(distinct);
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

// The link gets what makes the later side end first, and nothing where the CPU branch alone ends as early.
void check_link_choice() {
    std::mt19937 random(17);
    for (int round = 0; round < 500; ++round) {
        ostinato_speeds speeds;
        speeds.cpu_row_in_step     = 1.0/(1e9*(10 + random() % 100));
        speeds.cpu_row_beside_link = speeds.cpu_row_in_step*(1.0 + random() % 100/100.0);
        speeds.in_place_beside_cpu = round % 10 == 0 ? std::numeric_limits<double>::infinity() : 1.0/(1e9*(5 + random() % 50));
        const int64_t step = 32 << random() % 4, columns = step*(1 + random() % 12);
        const auto ends = [&](int64_t c) {
            const double share = (double) c/columns;
            return c == 0 ? speeds.cpu_row_in_step : std::max(share*speeds.in_place_beside_cpu, (1 - share)*speeds.cpu_row_beside_link);
        };
        const int64_t chosen = ostinato_choose_link_columns(speeds, columns, step);
        if (chosen < 0 || chosen >= columns || chosen % step != 0) {
            fail("round %d: %lld of %lld columns in steps of %lld", round, (long long) chosen, (long long) columns, (long long) step);
        }
        for (int64_t c = 0; c < columns; c += step) {
            if (ends(c) < ends(chosen)*(1 - 1e-9) || (c < chosen && ends(c) <= ends(chosen))) {
                fail("round %d: %lld columns end at %g, %lld at %g", round, (long long) chosen, ends(chosen), (long long) c, ends(c));
            }
        }
    }
}

} // namespace

void check_choices() {
    check_upload_choice();
    check_link_choice();
}
