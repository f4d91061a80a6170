// What row-tiles-amx.h needs of a processor, in plain C++: the tests run its kernels with it where there is no AMX.

#pragma once

#include "ostinato/row-kernels.h"

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#pragma GCC diagnostic ignored "-Wpsabi" // vectors of 64 bytes are passed between functions of one program only

struct amx_model {
    using ints   = int32_t __attribute__((vector_size(64)));
    using floats = float __attribute__((vector_size(64)));

    static void transpose_rows(const char * w, size_t row_bytes, ints * dwords) {
        for (int r = 0; r < 16; ++r) {
            int32_t row[4];
            memcpy(row, w + r*row_bytes, sizeof(row));
            for (int d = 0; d < 4; ++d) {
                dwords[d][r] = row[d];
            }
        }
    }

    static ints offsets(size_t row_bytes) {
        ints result = {};
        for (int r = 0; r < 16; ++r) {
            result[r] = (int32_t) (r*row_bytes);
        }
        return result;
    }

    static ints gather(const char * at, const ints & offsets) {
        ints result = {};
        for (int r = 0; r < 16; ++r) {
            int32_t dword;
            memcpy(&dword, at + offsets[r], sizeof(dword));
            result[r] = dword;
        }
        return result;
    }

    static ints repeat(const int8_t * values) {
        ints result;
        for (int i = 0; i < 4; ++i) {
            memcpy((char *) &result + 16*i, values, 16);
        }
        return result;
    }

    static ints look_up(const ints & table, const ints & codes) {
        ints result = codes;
        for (size_t i = 0; i < sizeof(result); ++i) {
            ((char *) &result)[i] = ((const char *) &table)[((const char *) &codes)[i] & 0x0f];
        }
        return result;
    }

    static floats from_f16(const ints & v) {
        floats result = {};
        for (int r = 0; r < 16; ++r) {
            result[r] = ggml_fp16_to_fp32((ggml_fp16_t) (v[r] & 0xffff));
        }
        return result;
    }

    static floats fma(const floats & a, const floats & b, const floats & c) {
        floats result = {};
        for (int r = 0; r < 16; ++r) {
            result[r] = std::fmaf(a[r], b[r], c[r]);
        }
        return result;
    }

    static floats fma(const floats & a, float b, const floats & c) { return fma(a, floats {} + b, c); }

    static floats fnma(const floats & a, float b, const floats & c) { return fma(a, floats {} - b, c); }

    // As in the processor, a tile of another shape than the configuration's cannot be used.
    struct registers {
        uint8_t config[64] = {};
        uint8_t tiles[8][16][64] = {};

        size_t row_bytes(int tile) const {
            uint16_t bytes;
            memcpy(&bytes, config + 16 + 2*tile, sizeof(bytes));
            return bytes;
        }

        int rows(int tile) const { return config[48 + tile]; }
    };

    static registers & of_this_thread() {
        static thread_local registers r;
        return r;
    }

    static void store_config(void * config) { memcpy(config, of_this_thread().config, sizeof(of_this_thread().config)); }

    static void load_config(const void * config) {
        of_this_thread() = {};
        memcpy(of_this_thread().config, config, sizeof(of_this_thread().config));
    }

    template <int T>
    static void zero() {
        memset(of_this_thread().tiles[T], 0, sizeof(of_this_thread().tiles[T]));
    }

    template <int T>
    static void load(const void * from, size_t step) {
        registers & r = of_this_thread();
        zero<T>();
        for (int row = 0; row < r.rows(T); ++row) {
            memcpy(r.tiles[T][row], (const char *) from + row*step, r.row_bytes(T));
        }
    }

    template <int T>
    static void store(void * to, size_t step) {
        const registers & r = of_this_thread();
        for (int row = 0; row < r.rows(T); ++row) {
            memcpy((char *) to + row*step, r.tiles[T][row], r.row_bytes(T));
        }
    }

    template <int SUM, int A, int B>
    static void dot() {
        registers & r = of_this_thread();
        if (r.config[0] != 1 || r.rows(SUM) != r.rows(A) || r.row_bytes(A) != 4*(size_t) r.rows(B) || r.row_bytes(SUM) != r.row_bytes(B)) {
            abort(); // the processor raises an invalid instruction
        }
        for (int m = 0; m < r.rows(A); ++m) {
            for (size_t n = 0; n < r.row_bytes(SUM)/4; ++n) {
                int32_t sum;
                memcpy(&sum, r.tiles[SUM][m] + 4*n, sizeof(sum));
                for (int k = 0; k < r.rows(B); ++k) {
                    for (int i = 0; i < 4; ++i) {
                        sum += (int8_t) r.tiles[A][m][4*k + i]*(int8_t) r.tiles[B][k][4*n + i];
                    }
                }
                memcpy(r.tiles[SUM][m] + 4*n, &sum, sizeof(sum));
            }
        }
    }
};

#define OSTINATO_AMX amx_of_model
#define OSTINATO_AMX_TARGET
#define OSTINATO_AMX_MACHINE amx_model
#include "ostinato/row-tiles-amx.h"
