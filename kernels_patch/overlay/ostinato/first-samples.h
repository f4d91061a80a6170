// The first N values of something that is measured while passes compute. What follows from them stays as it is once there are N: it decides which kernel
// computes an expert, and the same prompt is to be computed the same way each time.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

template <size_t N>
class ostinato_first_samples {
public:
    bool is_fixed() const { return n == N; }

    void add(double value) {
        if (!is_fixed()) {
            values[n++] = value;
        }
    }

    // Of N values, that which a share of them is below.
    double quantile(double share) const {
        auto sorted = values;
        const auto at = sorted.begin() + (size_t) (share*N);
        std::nth_element(sorted.begin(), at, sorted.end());
        return *at;
    }

private:
    std::array<double, N> values = {};
    size_t n = 0;
};
