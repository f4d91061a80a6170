// How kernels read and write words of the mailbox that the other side changes meanwhile, and the clock that limits their waits.

#pragma once

#include <cstdint>

static __device__ __forceinline__ uint32_t load_volatile(const uint32_t * word) {
    return *(const volatile uint32_t *) word;
}

static __device__ __forceinline__ void store_volatile(void * word, const uint32_t value) {
    *(volatile uint32_t *) word = value;
}

static __device__ __forceinline__ uint64_t now_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}
