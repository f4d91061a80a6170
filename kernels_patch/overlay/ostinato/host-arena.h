// Host memory for cold experts: anonymous 2 MiB pages, page-locked in chunks, within a budget (paper 3.1 step 3). The GPU reads page-locked
// memory nine times as fast as other memory, and the CPU branch loses no time to page faults or small pages.
//
// Places of one kind lie at multiples of one stride from one address, so that they are the experts of one tensor to whoever reads them in place.

#pragma once

#include "cuda-functions.h"

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

// Bytes that can be page-locked at this moment and leave the system a tenth of its memory, at least 2 GiB: file pages that nobody needs count as free. Within
// the limit of the control group. `root` is where /proc and /sys are; without them there is no limit.
size_t ostinato_memory_to_spare(const std::string & root = "");

class ostinato_host_arena {
public:
    // As a budget: what the system can spare when memory is asked for. A model may be larger than the machine's memory.
    static constexpr size_t TO_SPARE = std::numeric_limits<size_t>::max();

    ostinato_host_arena(const ostinato_cuda_functions * cuda, size_t budget) : cuda(cuda), budget(budget), is_spared(budget == TO_SPARE) {}
    ~ostinato_host_arena();

    ostinato_host_arena(const ostinato_host_arena &) = delete;
    ostinato_host_arena & operator=(const ostinato_host_arena &) = delete;

    // A kind of places: at most so many, each of so many bytes. Only addresses are taken. Returns its number.
    int add_kind(size_t stride, size_t max_places);

    // A place, or nullptr when the budget is spent or the system locks no more pages. Not initialised.
    char * allocate(int kind);

    // For the next allocate() of the kind.
    void release(int kind, char * data) { kinds[kind].free_places.push_back(data); }

    // Where place 0 of the kind is, nullptr where the system gave no addresses.
    char * base(int kind) const { return kinds[kind].base; }

    size_t locked_bytes() const { return locked; }

    // Why less than the budget could be locked, "" where that did not happen.
    const std::string & refusal() const { return reason; }

    // Another set is placed, which may fit; what the system refused for good, it still does.
    void forget_refusal() { reason = budget > 0 ? "" : reason; }

private:
    struct kind_of_places {
        size_t stride;
        char * base = nullptr;  // a huge page's start
        size_t reserved = 0;    // bytes of addresses
        size_t used = 0;        // bytes, up to the end of the last place
        std::vector<size_t> ends; // of its chunks, from base
        std::vector<char *> free_places;
    };

    bool add_chunk(kind_of_places & kind);

    const ostinato_cuda_functions * cuda;
    size_t budget;
    bool is_spared;
    size_t locked = 0;
    std::string reason;
    std::vector<kind_of_places> kinds;
};
