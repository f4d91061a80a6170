// Implementation of host-arena.h.

#include "host-arena.h"

#include <algorithm>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

static constexpr size_t CHUNK     = 1024*1024*1024;
static constexpr size_t HUGE_PAGE = 2*1024*1024;

static size_t align(size_t n, size_t to) {
    return (n + to - 1)/to*to;
}

ostinato_host_arena::~ostinato_host_arena() {
#if defined(__linux__)
    for (const chunk & c : chunks) {
        cuda->unlock_pages(c.data);
        munmap(c.data, c.size);
    }
#endif
}

bool ostinato_host_arena::add_chunk(size_t at_least) {
#if defined(__linux__)
    const size_t size = std::min(align(std::max(at_least, CHUNK), HUGE_PAGE), budget/HUGE_PAGE*HUGE_PAGE);
    if (size < at_least) {
        return false;
    }
    // over-mapped by a huge page, so that the chunk can start at one
    char * mapped = (char *) mmap(nullptr, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        reason = "the system gives no more memory";
        return false;
    }
    char * data = (char *) align((size_t) (uintptr_t) mapped, HUGE_PAGE);
    if (data > mapped) {
        munmap(mapped, data - mapped);
    }
    munmap(data + size, mapped + HUGE_PAGE - data);
    madvise(data, size, MADV_HUGEPAGE);
    if (!cuda->lock_pages(data, size)) {
        munmap(data, size);
        reason = "the system locks no more pages";
        budget = 0;
        return false;
    }
    budget -= size;
    locked += size;
    chunks.push_back({ data, size, 0 });
    return true;
#else
    (void) at_least;
    reason = "page-locking is supported on Linux only";
    return false;
#endif
}

char * ostinato_host_arena::allocate(size_t bytes) {
    if (!cuda) {
        return nullptr;
    }
    std::vector<char *> & places = free_places[bytes];
    if (!places.empty()) {
        char * data = places.back();
        places.pop_back();
        return data;
    }
    const size_t taken = align(bytes, 64);
    if ((chunks.empty() || chunks.back().size - chunks.back().used < taken) && !add_chunk(taken)) {
        return nullptr;
    }
    chunk & last = chunks.back();
    char * data = last.data + last.used;
    last.used += taken;
    return data;
}
