// Host memory for cold experts: anonymous 2 MiB pages, page-locked in chunks, within a budget (paper 3.1 step 3). The GPU reads page-locked
// memory nine times as fast as other memory, and the CPU branch loses no time to page faults or small pages.

#pragma once

#include "cuda-functions.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

class ostinato_host_arena {
public:
    ostinato_host_arena(const ostinato_cuda_functions * cuda, size_t budget) : cuda(cuda), budget(budget) {}
    ~ostinato_host_arena();

    ostinato_host_arena(const ostinato_host_arena &) = delete;
    ostinato_host_arena & operator=(const ostinato_host_arena &) = delete;

    // Memory aligned to 64 bytes, or nullptr when the budget is spent or the system locks no more pages. Not initialised.
    char * allocate(size_t bytes);

    // For the next allocate() of the same size.
    void release(char * data, size_t bytes) { free_places[bytes].push_back(data); }

    size_t locked_bytes() const { return locked; }

    // Why less than the budget could be locked, "" where that did not happen.
    const std::string & refusal() const { return reason; }

private:
    struct chunk {
        char * data;
        size_t size;
        size_t used;
    };

    bool add_chunk(size_t at_least);

    const ostinato_cuda_functions * cuda;
    size_t budget;
    size_t locked = 0;
    std::string reason;
    std::vector<chunk> chunks;
    std::map<size_t, std::vector<char *>> free_places;
};
