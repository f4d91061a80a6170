// Row kernels of every kind that this processor has against ggml's own. A part of ostinato-test-operators.

#include "checks.h"

#include "ostinato/row-kernels.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

// Random rows of a type, and inputs in the form that a kernel takes.
class tile_fixture {
public:
    tile_fixture(const ostinato_row_kernel & kernel, int64_t columns, uint32_t seed) :
        kernel(kernel), columns(columns), row_bytes(ggml_row_size(kernel.type, columns)) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal(0.0f, 1.0f);
        std::vector<float> values(OSTINATO_TILE*columns);
        std::generate(values.begin(), values.end(), [&] { return normal(random); });
        weights.resize(OSTINATO_TILE*row_bytes);
        ggml_quantize_chunk(kernel.type, values.data(), weights.data(), 0, OSTINATO_TILE, columns, nullptr);
        for (int row = 0; row < 4 && kernel.type == GGML_TYPE_MXFP4; ++row) { // scales around the first that is a normal number
            for (size_t block = 0; block < row_bytes; block += ggml_type_size(kernel.type)) {
                weights[row*row_bytes + block] = (char) row;
            }
        }
        for (int i = 0; i < OSTINATO_TILE_INPUTS; ++i) {
            std::generate(values.begin(), values.begin() + columns, [&] { return normal(random); });
            inputs.emplace_back(ostinato_input_row_bytes(kernel, columns));
            ostinato_input_row(kernel, values.data(), inputs.back().data(), columns);
            x.push_back(inputs.back().data());
        }
    }

    // By row and input.
    std::vector<float> product(int n_x) const {
        float out[OSTINATO_TILE][OSTINATO_TILE_INPUTS];
        ostinato_dot_tile(kernel, columns, out, weights.data(), row_bytes, weights.data(), x.data(), n_x);
        std::vector<float> result;
        for (const auto & row : out) {
            result.insert(result.end(), row, row + n_x);
        }
        return result;
    }

    std::vector<float> product_row_by_row(int n_x) const {
        std::vector<float> result(OSTINATO_TILE*n_x);
        for (int row = 0; row < OSTINATO_TILE; ++row) {
            const char * w = weights.data() + row*row_bytes;
            ostinato_dot_rows(kernel, columns, result.data() + row*n_x, w, w, x.data(), n_x);
        }
        return result;
    }

    // Of a row's weights, the root of the sum of their squares.
    double length(int row) const {
        std::vector<float> plain(columns);
        ggml_get_type_traits(kernel.type)->to_float(weights.data() + row*row_bytes, plain.data(), columns);
        double sum = 0.0;
        for (const float weight : plain) {
            sum += (double) weight*weight;
        }
        return std::sqrt(sum);
    }

private:
    ostinato_row_kernel kernel;
    int64_t columns;
    size_t row_bytes;
    std::vector<char> weights;
    std::vector<std::vector<char>> inputs;
    std::vector<const char *> x;
};

// Tiles against ggml's kernels, row by row. Does nothing where this CPU has none.
void check_tiles(int most_bits) {
    for (const ggml_type type : { GGML_TYPE_MXFP4, GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K }) {
        const bool is_k = ggml_blck_size(type) == 256;
        for (const int64_t columns : is_k ? std::vector<int64_t> { 256, 768, 1024 } : std::vector<int64_t> { 64, 128, 320, 1024 }) {
            const ostinato_row_kernel ours = ostinato_find_row_kernel(type, columns, most_bits);
            if (!ours.tile) {
                continue;
            }
            const uint32_t seed = (uint32_t) (type*10000 + columns);
            const tile_fixture tile(ours, columns, seed);
            const tile_fixture of_ggml(ostinato_find_row_kernel(type, columns, 0), columns, seed);
            for (int n_x = 1; n_x <= OSTINATO_TILE_INPUTS; ++n_x) {
                const std::vector<float> found    = tile.product(n_x);
                const std::vector<float> expected = of_ggml.product_row_by_row(n_x);
                for (size_t i = 0; i < expected.size(); ++i) {
                    if (!(std::fabs(found[i] - expected[i]) <= 2e-6*std::sqrt((double) columns)*tile.length((int) i/n_x))) {
                        fail("%s: tiles of at most %d bits, %d columns, %d inputs: product %zu is %g, of ggml %g", ggml_type_name(type), most_bits,
                            (int) columns, n_x, i, found[i], expected[i]);
                    }
                }
            }
        }
    }
}

// Our kernels against ggml's: the same integers, other orders of summing. Does nothing where this CPU has none of ours.
void check_row_kernels(int most_bits) {
    const int64_t columns = 1024;
    std::mt19937 random(9);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    for (const ggml_type type : { GGML_TYPE_MXFP4, GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K }) {
        const ostinato_row_kernel ours  = ostinato_find_row_kernel(type, columns, most_bits);
        const ostinato_row_kernel ggmls = ostinato_find_row_kernel(type, columns, 0);
        std::vector<float> values(columns);
        std::generate(values.begin(), values.end(), [&] { return normal(random); });
        std::vector<char> weight(ggml_row_size(type, columns));
        ggml_quantize_chunk(type, values.data(), weight.data(), 0, 1, columns, nullptr);
        for (int n_x = 1; n_x <= OSTINATO_TILE_INPUTS; ++n_x) {
            std::vector<std::vector<char>> rows[2];
            std::vector<const char *> x[2];
            for (int i = 0; i < n_x; ++i) {
                std::generate(values.begin(), values.end(), [&] { return normal(random); });
                int k = 0;
                for (const ostinato_row_kernel & kernel : { ours, ggmls }) {
                    rows[k].emplace_back(ostinato_input_row_bytes(kernel, columns));
                    ostinato_input_row(kernel, values.data(), rows[k].back().data(), columns);
                    x[k].push_back(rows[k].back().data());
                    ++k;
                }
            }
            std::vector<float> out[2] = { std::vector<float>(n_x), std::vector<float>(n_x) };
            ostinato_dot_rows(ours,  columns, out[0].data(), weight.data(), weight.data(), x[0].data(), n_x);
            ostinato_dot_rows(ggmls, columns, out[1].data(), weight.data(), weight.data(), x[1].data(), n_x);
            for (int i = 0; i < n_x; ++i) {
                if (!(std::fabs(out[0][i] - out[1][i]) <= 2e-5f*std::sqrt((float) columns))) {
                    fail("%s: %d rows: expected %g, found %g", ggml_type_name(type), n_x, out[1][i], out[0][i]);
                }
            }
        }
    }
}

} // namespace

void check_all_row_kernels() {
    for (const int most_bits : { 512, 256 }) {
        check_row_kernels(most_bits);
        check_tiles(most_bits);
    }
}
