// Implementation of host-arena.h.

#include "host-arena.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#if defined(__linux__)
#include <sys/mman.h>
#endif

static constexpr size_t CHUNK     = 512*1024*1024;
static constexpr size_t HUGE_PAGE = 2*1024*1024;

static size_t align(size_t n, size_t to) {
    return (n + to - 1)/to*to;
}

// The number behind a word at the start of a line, in units of the file; -1 where there is none.
static int64_t number_behind(const std::string & path, const std::string & word) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        if (line.compare(0, word.size(), word) == 0) {
            return strtoll(line.c_str() + word.size(), nullptr, 10);
        }
    }
    return -1;
}

size_t ostinato_memory_to_spare(const std::string & root) {
    constexpr int64_t LEAST_LEFT = 2ll*1024*1024*1024;
    const int64_t total     = number_behind(root + "/proc/meminfo", "MemTotal:")*1024;
    const int64_t available = number_behind(root + "/proc/meminfo", "MemAvailable:")*1024;
    if (total < 0 || available < 0) {
        return ostinato_host_arena::TO_SPARE;
    }
    int64_t spare = available - std::max(LEAST_LEFT, total/10);
    const std::string group = root + "/sys/fs/cgroup/memory.";
    int64_t limit;
    if (std::ifstream(group + "max") >> limit) { // "max" is no number
        const int64_t used = std::max<int64_t>(0, number_behind(group + "current", "")) - std::max<int64_t>(0, number_behind(group + "stat", "inactive_file "));
        spare = std::min(spare, limit - used - std::max(LEAST_LEFT, limit/10));
    }
    return (size_t) std::max<int64_t>(0, spare);
}

ostinato_host_arena::~ostinato_host_arena() {
#if defined(__linux__)
    for (const kind_of_places & kind : kinds) {
        size_t begin = 0;
        for (const size_t end : kind.ends) {
            cuda->unlock_pages(kind.base + begin);
            begin = end;
        }
        if (kind.base) {
            munmap(kind.base, kind.reserved);
        }
    }
#endif
}

int ostinato_host_arena::add_kind(size_t stride, size_t max_places) {
    kind_of_places kind;
    kind.stride = stride;
#if defined(__linux__)
    // a place does not cross chunks, so every chunk may lose one; two more for the ends
    const size_t n_chunks = max_places*stride/CHUNK + 2;
    const size_t bytes    = align((max_places + n_chunks)*stride, HUGE_PAGE) + CHUNK;
    // over-mapped by a huge page, so that the addresses can start at one
    char * mapped = (char *) mmap(nullptr, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        reason = "the system gives no more addresses";
    } else {
        kind.base     = (char *) align((size_t) (uintptr_t) mapped, HUGE_PAGE);
        kind.reserved = bytes;
        if (kind.base > mapped) {
            munmap(mapped, kind.base - mapped);
        }
        munmap(kind.base + bytes, mapped + HUGE_PAGE - kind.base);
    }
#endif
    kinds.push_back(std::move(kind));
    return (int) kinds.size() - 1;
}

bool ostinato_host_arena::add_chunk(kind_of_places & kind) {
#if defined(__linux__)
    const size_t begin = kind.ends.empty() ? 0 : kind.ends.back();
    const size_t room  = is_spared ? std::min(budget, ostinato_memory_to_spare()) : budget;
    const size_t size  = std::min({ align(std::max(kind.stride, CHUNK), HUGE_PAGE), room/HUGE_PAGE*HUGE_PAGE, kind.reserved - begin });
    if (size < kind.stride) {
        reason = is_spared ? "the system has no more memory to spare" : "the asked limit is reached";
        budget = is_spared ? 0 : budget;
        return false;
    }
    char * data = kind.base + begin;
    if (mprotect(data, size, PROT_READ | PROT_WRITE) != 0) {
        reason = "the system gives no more memory";
        budget = 0;
        return false;
    }
    madvise(data, size, MADV_HUGEPAGE);
    if (!cuda->lock_pages(data, size)) {
        madvise(data, size, MADV_DONTNEED);
        mprotect(data, size, PROT_NONE);
        reason = "the system locks no more pages";
        budget = 0;
        return false;
    }
    budget -= size;
    locked += size;
    kind.ends.push_back(begin + size);
    return true;
#else
    (void) kind;
    reason = "page-locking is supported on Linux only";
    return false;
#endif
}

char * ostinato_host_arena::allocate(int number) {
    kind_of_places & kind = kinds[number];
    if (!kind.free_places.empty()) {
        char * data = kind.free_places.back();
        kind.free_places.pop_back();
        return data;
    }
    if (!cuda || !kind.base) {
        reason = cuda ? "the system gives no more addresses" : reason;
        return nullptr;
    }
    if (kind.ends.empty() || kind.ends.back() - kind.used < kind.stride) {
        const size_t end = kind.ends.empty() ? 0 : kind.ends.back();
        if (!add_chunk(kind)) {
            return nullptr;
        }
        kind.used = align(end, kind.stride); // no place crosses chunks
        if (kind.ends.back() - kind.used < kind.stride) {
            return nullptr; // the budget's last chunk holds none
        }
    }
    char * data = kind.base + kind.used;
    kind.used += kind.stride;
    return data;
}
