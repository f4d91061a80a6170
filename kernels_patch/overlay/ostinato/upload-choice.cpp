// Implementation of upload-choice.h.

#include "upload-choice.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

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

int64_t ostinato_choose_link_columns(const ostinato_speeds & speeds, int64_t columns, int64_t step) {
    int64_t chosen = 0;
    double seconds = speeds.cpu_row_in_step;
    for (int64_t c = step; c < columns; c += step) {
        const double share = (double) c/columns;
        const double later = std::max(share*speeds.in_place_beside_cpu, (1.0 - share)*speeds.cpu_row_beside_link);
        if (later < seconds) {
            chosen  = c;
            seconds = later;
        }
    }
    return chosen;
}

std::vector<int32_t> ostinato_choose_uploads(
        const ostinato_speeds & speeds, int64_t bytes, const std::vector<int32_t> & rows, int32_t max_uploads, double head_start) {
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
    double link = -head_start;
    std::vector<int32_t> uploads;
    for (const int32_t i : order) {
        const double next_cpu  = cpu - ostinato_cpu_seconds(speeds, bytes, rows[i]);
        const double next_link = link + bytes*speeds.link;
        if ((int32_t) uploads.size() == max_uploads || std::max(next_cpu, next_link) >= std::max(cpu, link)) {
            break;
        }
        uploads.push_back(i);
        cpu  = next_cpu;
        link = next_link;
    }
    return uploads;
}
