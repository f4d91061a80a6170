// libostinato-faults.so: makes an engine fail on request. Tests preload it (LD_PRELOAD) into an engine process; nothing of it is in any build that
// is installed, and the engine has no switch for it.
//
// It stands before functions of the engine's libraries and of the CUDA runtime. What fails, files in the folder that OSTINATO_TEST_FAULTS names
// say; a file that is written while the engine runs takes effect with the next call:
//
//   file           content        effect
//   fail-pass      -              the next pass ends the process when it is done, as after a wait in vain; the file is removed
//   stall          milliseconds   the next step of the CPU branch takes so much longer; the file is removed
//   stall-upload   milliseconds   the next decision which experts to upload takes so much longer; the file is removed
//   end-worker     -              the thread that leads the CPU branch ends; the file is removed. For layers on GPUs
//   no-pool        bytes          allocations of expert pools beyond so many bytes fail
//   no-pin         bytes          page-locking more than so many bytes at once fails

#include "ostinato/cpu-branch.h"
#include "ostinato/placement.h"
#include "ostinato/upload-choice.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

// The function that would have been called.
template <typename F>
F next(const char * symbol) {
    void * found = dlsym(RTLD_NEXT, symbol);
    if (!found) {
        fprintf(stderr, "libostinato-faults: there is no %s\n", symbol);
        abort();
    }
    F function;
    memcpy(&function, &found, sizeof(function));
    return function;
}

std::string path_of(const char * fault) {
    const char * folder = getenv("OSTINATO_TEST_FAULTS");
    return folder ? std::string(folder) + "/" + fault : "";
}

// The file's number, 0 without one in it, -1 without a file.
long long number_in(const std::string & path) {
    FILE * file = path.empty() ? nullptr : fopen(path.c_str(), "r");
    if (!file) {
        return -1;
    }
    long long number = 0;
    if (fscanf(file, "%lld", &number) != 1) {
        number = 0;
    }
    fclose(file);
    return number;
}

// The same, for one caller only.
long long take(const char * fault) {
    const std::string path = path_of(fault);
    const long long number = number_in(path);
    return number >= 0 && unlink(path.c_str()) == 0 ? number : -1;
}

void stall(const char * fault) {
    const long long ms = take(fault);
    if (ms > 0) {
        usleep((useconds_t) (ms*1000));
    }
}

bool is_refused(const char * fault, size_t bytes) {
    const long long most = number_in(path_of(fault));
    return most >= 0 && bytes > (size_t) most;
}

} // namespace

void ostinato_placement::check_answers() const {
    static const auto check = next<void (*)(const ostinato_placement *)>("_ZNK18ostinato_placement13check_answersEv");
    check(this);
    if (take("fail-pass") >= 0) {
        GGML_ABORT("a pass has failed, as it was asked to");
    }
}

void ostinato_compute_cold(const ostinato_cold_step & step, int ith, int n_threads) {
    if (ith == 0) {
        stall("stall");
        if (syscall(SYS_gettid) != getpid() && take("end-worker") >= 0) {
            syscall(SYS_exit, 0);
        }
    }
    static const auto compute = next<void (*)(const ostinato_cold_step &, int, int)>("_Z21ostinato_compute_coldRK18ostinato_cold_stepii");
    compute(step, ith, n_threads);
}

std::vector<int32_t> ostinato_choose_uploads(
        const ostinato_speeds & speeds, const ostinato_upload_costs & costs, int64_t bytes, const std::vector<int32_t> & rows, int32_t max_uploads,
        double head_start, double & seconds) {
    stall("stall-upload");
    return next<std::vector<int32_t> (*)(
        const ostinato_speeds &, const ostinato_upload_costs &, int64_t, const std::vector<int32_t> &, int32_t, double, double &)>(
        "_Z23ostinato_choose_uploadsRK15ostinato_speedsRK21ostinato_upload_costslRKSt6vectorIiSaIiEEidRd")(
        speeds, costs, bytes, rows, max_uploads, head_start, seconds);
}

extern "C" ggml_backend_buffer_t ggml_backend_buft_alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    Dl_info caller = {};
    if (dladdr(__builtin_return_address(0), &caller) && caller.dli_sname && strstr(caller.dli_sname, "ostinato_expert_pool") &&
            is_refused("no-pool", size)) {
        return nullptr;
    }
    return next<decltype(&ggml_backend_buft_alloc_buffer)>("ggml_backend_buft_alloc_buffer")(buft, size);
}

// Of the CUDA runtime, whose header need not be there.
static constexpr int CUDA_ERROR_MEMORY_ALLOCATION = 2;

extern "C" int cudaHostAlloc(void ** data, size_t bytes, unsigned flags) {
    if (is_refused("no-pin", bytes)) {
        return CUDA_ERROR_MEMORY_ALLOCATION;
    }
    return next<int (*)(void **, size_t, unsigned)>("cudaHostAlloc")(data, bytes, flags);
}

extern "C" int cudaHostRegister(void * data, size_t bytes, unsigned flags) {
    if (is_refused("no-pin", bytes)) {
        return CUDA_ERROR_MEMORY_ALLOCATION;
    }
    return next<int (*)(void *, size_t, unsigned)>("cudaHostRegister")(data, bytes, flags);
}
