// Implementation of upload-choice.h.

#include "upload-choice.h"

#include <algorithm>
#include <cstdlib>

double ostinato_cpu_seconds(const ostinato_speeds & speeds, int64_t bytes, int32_t rows) {
    constexpr int32_t MANY = 16; // rows that share one decoding of the weights
    constexpr int32_t FEW  = 4;
    // more rows never cost less, whatever was measured
    const double few  = std::max(speeds.cpu_row, speeds.cpu_few);
    const double many = std::max(few, speeds.cpu_rows);
    const int32_t rest = rows % MANY;
    double seconds = rows/MANY*many;
    if (rest > FEW) {
        seconds += few + (many - few)*(rest - FEW)/(MANY - FEW);
    } else if (rest > 0) {
        seconds += speeds.cpu_row + (few - speeds.cpu_row)*(rest - 1)/(FEW - 1);
    }
    return bytes*seconds;
}

double ostinato_cpu_seconds(const ostinato_speeds & speeds, int64_t bytes, const std::vector<int32_t> & groups) {
    double seconds = 0.0;
    for (size_t g = 0; g < groups.size(); g += 2) {
        seconds += ostinato_cpu_seconds(speeds, bytes, groups[g + 1] - (g == 0 ? 0 : groups[g - 1]));
    }
    return seconds;
}

const ostinato_shared_step * ostinato_choose_shared_step(const std::vector<ostinato_shared_step> & measured, double alone) {
    constexpr double LEAST = 0.03; // of the time, else it is as likely to be the measurement's
    const ostinato_shared_step * chosen = nullptr;
    double seconds = (1.0 - LEAST)*alone;
    for (const ostinato_shared_step & step : measured) {
        if (step.seconds < seconds) {
            chosen  = &step;
            seconds = step.seconds;
        }
    }
    return chosen;
}

std::vector<int32_t> ostinato_choose_uploads(
        const ostinato_speeds & speeds, const ostinato_upload_costs & costs, int64_t bytes, const std::vector<int32_t> & rows, int32_t max_uploads,
        double head_start, double & seconds) {
    double cpu = 0.0;
    std::vector<int32_t> order;
    for (int32_t i = 0; i < (int32_t) rows.size(); ++i) {
        cpu += ostinato_cpu_seconds(speeds, bytes, std::abs(rows[i]));
        if (rows[i] > 0) {
            order.push_back(i);
        }
    }
    // what costs the CPU most comes first, since every upload costs the link the same
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return rows[a] > rows[b]; });
    order.resize(std::min<size_t>(order.size(), std::max(max_uploads, 0)));
    // a single one may not pay for what all have in common, and several may
    size_t n_best = 0;
    double best   = std::max(costs.cpu_alone*cpu, costs.hot + costs.chain);
    double link   = -head_start;
    for (size_t n = 1; n <= order.size(); ++n) {
        cpu  -= ostinato_cpu_seconds(speeds, bytes, rows[order[n - 1]]);
        link += bytes*costs.link;
        const double later = std::max(costs.cpu*cpu, std::max(costs.hot, link) + costs.chain);
        if (later < best) {
            n_best = n;
            best   = later;
        }
    }
    order.resize(n_best);
    seconds = best;
    return order;
}
