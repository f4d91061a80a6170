// What the parts of ostinato-test-operators share; speeds_by_kind.cpp too.

#pragma once

#include <cstdarg>
#include <cstdio>

inline int n_failed = 0;

// One line for what is not as it should be.
inline void fail(const char * format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    n_failed++;
}

void check_choices();         // choices.cpp: upload-choice.h, upload-costs.h, prefetch.h, speed-kinds.h
void check_pool_moves();      // expert_pool.cpp: expert-pool.h
void check_all_row_kernels(); // row_kernels.cpp: row-kernels.h
