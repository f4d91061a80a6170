// Row kernels of every kind that this processor has against ggml's own, and AMX tiles over a model of the processor. A part of ostinato-test-operators.

#include "amx-model.h"
#include "checks.h"

#include "ostinato/row-kernels.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace {

// A tile against its rows one by one.
void check_tile(ggml_type type, const ostinato_row_kernel & kernel, int64_t columns, const std::vector<const char *> & x, std::mt19937 & random) {
    if (!kernel.tile) {
        return;
    }
    std::normal_distribution<float> normal(0.0f, 1.0f);
    const size_t row_bytes = ggml_row_size(type, columns);
    std::vector<float> values(OSTINATO_TILE*columns);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    std::vector<char> weights(OSTINATO_TILE*row_bytes);
    ggml_quantize_chunk(type, values.data(), weights.data(), 0, OSTINATO_TILE, columns, nullptr);
    float tile[OSTINATO_TILE][OSTINATO_TILE_INPUTS];
    ostinato_dot_tile(kernel, columns, tile, weights.data(), row_bytes, weights.data(), x.data(), (int) x.size());
    for (int row = 0; row < OSTINATO_TILE; ++row) {
        const char * w = weights.data() + row*row_bytes;
        std::vector<float> expected(x.size());
        ostinato_dot_rows(kernel, columns, expected.data(), w, w, x.data(), (int) x.size());
        for (size_t i = 0; i < x.size(); ++i) {
            if (!(std::fabs(tile[row][i] - expected[i]) <= 2e-5f*std::sqrt((float) columns))) {
                fail("%s: row %d of a tile, input %zu of %zu: expected %g, found %g", ggml_type_name(type), row, i, x.size(), expected[i], tile[row][i]);
            }
        }
    }
}

// Random rows of a type, and inputs in the form that a kernel takes.
class tile_fixture {
public:
    tile_fixture(const ostinato_row_kernel & kernel, int64_t columns, uint32_t seed) : columns(columns), row_bytes(ggml_row_size(kernel.type, columns)) {
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

    std::vector<float> product(decltype(ostinato_row_kernel::tile) tile, int n_x) const {
        float out[OSTINATO_TILE][OSTINATO_TILE_INPUTS];
        tile(columns, out, weights.data(), row_bytes, weights.data(), x.data(), n_x);
        std::vector<float> result;
        for (const auto & row : out) {
            result.insert(result.end(), row, row + n_x);
        }
        return result;
    }

    std::vector<float> product_row_by_row(const ostinato_row_kernel & kernel, int n_x) const {
        std::vector<float> result(OSTINATO_TILE*n_x);
        for (int row = 0; row < OSTINATO_TILE; ++row) {
            const char * w = weights.data() + row*row_bytes;
            ostinato_dot_rows(kernel, columns, result.data() + row*n_x, w, w, x.data(), n_x);
        }
        return result;
    }

private:
    int64_t columns;
    size_t row_bytes;
    std::vector<char> weights;
    std::vector<std::vector<char>> inputs;
    std::vector<const char *> x;
};

void expect_bits(const std::vector<float> & expected, const std::vector<float> & found, const char * what, ggml_type type, int64_t columns, int n_x) {
    for (size_t i = 0; i < expected.size(); ++i) {
        if (memcmp(&expected[i], &found[i], sizeof(float)) != 0) {
            fail("%s: %s, %d columns, %d inputs: product %zu is %.9g, of the other tile %.9g", ggml_type_name(type), what, (int) columns, n_x, i, found[i],
                expected[i]);
            return;
        }
    }
}

// Tiles that tile registers add up against those of vectors, bit for bit: in a model of the instructions, and with the instructions where this CPU has them.
void check_amx_tiles() {
    for (const ggml_type type : { GGML_TYPE_MXFP4, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K }) {
        const bool is_k = ggml_blck_size(type) == 256;
        for (const int64_t columns : is_k ? std::vector<int64_t> { 256, 768 } : std::vector<int64_t> { 64, 128, 320 }) {
            const ostinato_row_kernel vectors  = ostinato_find_row_kernel(type, columns, 512);
            const ostinato_row_kernel amx      = ostinato_find_row_kernel(type, columns);
            const ostinato_row_kernel ggmls    = ostinato_find_row_kernel(type, columns, 0);
            ostinato_row_kernel model          = ggmls;
            model.is_split = !is_k;
            model.amx      = amx_of_model::tile_of(type);
            const uint32_t seed = (uint32_t) (type*10000 + columns);
            const tile_fixture of_vectors(vectors, columns, seed);
            const tile_fixture of_ggml(ggmls, columns, seed);
            const tile_fixture of_model(model, columns, seed);
            for (int n_x = 1; n_x <= OSTINATO_TILE_INPUTS; ++n_x) {
                const std::vector<float> found = of_model.product(model.amx, n_x);
                if (vectors.tile) {
                    expect_bits(of_vectors.product(vectors.tile, n_x), found, "modelled tile registers", type, columns, n_x);
                }
                if (amx.amx) {
                    expect_bits(of_vectors.product(vectors.tile, n_x), of_vectors.product(amx.amx, n_x), "tile registers", type, columns, n_x);
                }
                const std::vector<float> expected = of_ggml.product_row_by_row(ggmls, n_x);
                for (size_t i = 0; i < expected.size(); ++i) {
                    if (!(std::fabs(found[i] - expected[i]) <= 2e-5f*std::sqrt((float) columns))) {
                        fail("%s: modelled tile registers, %d columns, %d inputs: product %zu is %g, of ggml %g", ggml_type_name(type), (int) columns, n_x, i,
                            found[i], expected[i]);
                    }
                }
            }
        }
    }
}

// A kernel leaves the tile registers in the shape that other code of the thread gave them, and in its own where there was none.
void check_shape_of_tile_registers() {
    ostinato_row_kernel kernel = ostinato_find_row_kernel(GGML_TYPE_Q4_K, 256, 0);
    kernel.amx = amx_of_model::tile_of(kernel.type);
    const tile_fixture fixture(kernel, 256, 1);
    amx_model::load_config(amx_model::registers {}.config);
    amx_of_model::tile_config now;
    for (const int n_x : { 9, 16, 8 }) {
        fixture.product(kernel.amx, n_x);
        amx_model::store_config(&now);
        if (!(now == amx_of_model::tile_config(n_x == 9 ? 12 : n_x))) {
            fail("tile registers: not in the shape for %d inputs", n_x);
        }
    }
    amx_of_model::tile_config foreign(16);
    std::swap(foreign.rows[0], foreign.rows[7]);
    amx_model::load_config(&foreign);
    fixture.product(kernel.amx, 16);
    amx_model::store_config(&now);
    if (!(now == foreign)) {
        fail("tile registers: not in the shape that they had");
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
            check_tile(type, ours, columns, x[0], random);
        }
    }
}

} // namespace

void check_all_row_kernels() {
    check_row_kernels(OSTINATO_AMX_BITS);
    check_row_kernels(512);
    check_row_kernels(256);
    check_amx_tiles();
    check_shape_of_tile_registers();
}
