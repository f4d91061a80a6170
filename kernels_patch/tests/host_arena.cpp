// The arena of cold experts with a driver that locks what it is told to: where places lie, what is used again, and where it stops.
//
//   host_arena ROOT     ROOT: a folder with proc/meminfo and sys/fs/cgroup/memory.*; prints what they leave to spare, in bytes

#include "ostinato/host-arena.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

namespace {

constexpr size_t MIB = 1024*1024;

int n_failed = 0;
size_t n_locked = 0;  // bytes
size_t most_locked = SIZE_MAX;

void expect(bool condition, const char * what) {
    if (!condition) {
        fprintf(stderr, "%s\n", what);
        n_failed++;
    }
}

bool lock_pages(void *, size_t bytes) {
    if (n_locked + bytes > most_locked) {
        return false;
    }
    n_locked += bytes;
    return true;
}

void unlock_pages(void *) {}

ostinato_cuda_functions driver() {
    ostinato_cuda_functions functions = {};
    functions.lock_pages   = lock_pages;
    functions.unlock_pages = unlock_pages;
    return functions;
}

void check_places() {
    const ostinato_cuda_functions cuda = driver();
    constexpr size_t STRIDE = 13*MIB + 1088;
    constexpr size_t CHUNK  = 512*MIB;
    ostinato_host_arena arena(&cuda, 4096*MIB);
    const int kind = arena.add_kind(STRIDE, 100);
    std::set<char *> places;
    for (int i = 0; i < 100; ++i) {
        char * place = arena.allocate(kind);
        expect(place != nullptr, "a place within the budget is refused");
        const size_t offset = place - arena.base(kind);
        expect(offset % STRIDE == 0, "a place lies between the multiples of its stride");
        expect(offset/CHUNK == (offset + STRIDE - 1)/CHUNK, "a place crosses two chunks");
        expect(places.insert(place).second, "a place is given twice");
        memset(place, 1, 64); // it can be written
        memset(place + STRIDE - 64, 1, 64);
    }
    char * first = *places.begin();
    arena.release(kind, first);
    expect(arena.allocate(kind) == first, "a place that was released is not used again");
    expect(arena.refusal().empty(), "a refusal without a reason for one");
}

void check_limits() {
    const ostinato_cuda_functions cuda = driver();
    n_locked = 0;
    {
        ostinato_host_arena arena(&cuda, 100*MIB);
        const int kind = arena.add_kind(16*MIB, 1000);
        int n = 0;
        while (arena.allocate(kind)) {
            n++;
        }
        expect(n == 6, "the budget does not hold as many places as fit it");
        expect(n_locked <= 100*MIB && arena.locked_bytes() == n_locked, "more is locked than the budget has");
    }
    n_locked    = 0;
    most_locked = 600*MIB;
    ostinato_host_arena arena(&cuda, 4096*MIB);
    const int kind = arena.add_kind(16*MIB, 1000);
    int n = 0;
    while (arena.allocate(kind)) {
        n++;
    }
    expect(n == 32, "what the system locked is not used to its end");
    expect(arena.refusal() == "the system locks no more pages", "the system's refusal is not told");
}

} // namespace

int main(int argc, char ** argv) {
    if (argc > 1) {
        printf("%zu\n", ostinato_memory_to_spare(argv[1]));
        return 0;
    }
    check_places();
    check_limits();
    return n_failed == 0 ? 0 : 1;
}
