// What gpu_wait.cu asks of CUDA: calls that must succeed, calls that a driver may refuse, and the driver's operations on memory.

#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

// Without cleaning up, which could wait for the GPU.
[[noreturn]] inline void stop(const std::string & reason) {
    fprintf(stderr, "gpu_wait: %s\n", reason.c_str());
    fflush(nullptr);
    std::_Exit(1);
}

inline void require(const cudaError_t error, const char * what) {
    if (error != cudaSuccess) {
        stop(std::string(what) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")");
    }
}

// Throws the reason where the driver refuses a variant. Its numbers are the runtime's.
inline void accept(const cudaError_t error, const char * what) {
    if (error != cudaSuccess) {
        throw std::string(what) + ": " + cudaGetErrorName(error);
    }
}

inline void accept(const CUresult result, const char * what) {
    accept((cudaError_t) result, what);
}

// Memory operations of the driver, which this program is not linked with.
class memory_operations {
public:
    memory_operations() {
        if (void * driver = dlopen("libcuda.so.1", RTLD_NOW)) {
            wait_  = (decltype(wait_))  dlsym(driver, "cuStreamWaitValue32_v2");
            write_ = (decltype(write_)) dlsym(driver, "cuStreamWriteValue32_v2");
            batch_ = (decltype(batch_)) dlsym(driver, "cuStreamBatchMemOp_v2");
        }
    }

    void wait(cudaStream_t stream, const CUdeviceptr word) const {
        accept(wait_ ? wait_(stream, word, 1, CU_STREAM_WAIT_VALUE_EQ) : CUDA_ERROR_NOT_FOUND, "cuStreamWaitValue32");
    }

    void reset(cudaStream_t stream, const CUdeviceptr word) const {
        accept(write_ ? write_(stream, word, 0, CU_STREAM_WRITE_VALUE_DEFAULT) : CUDA_ERROR_NOT_FOUND, "cuStreamWriteValue32");
    }

    void wait_and_reset(cudaStream_t stream, const CUdeviceptr word) const {
        std::array<CUstreamBatchMemOpParams, 2> operations = {};
        operations[0].waitValue.operation  = CU_STREAM_MEM_OP_WAIT_VALUE_32;
        operations[0].waitValue.address    = word;
        operations[0].waitValue.value      = 1;
        operations[0].waitValue.flags      = CU_STREAM_WAIT_VALUE_EQ;
        operations[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        operations[1].writeValue.address   = word;
        operations[1].writeValue.value     = 0;
        operations[1].writeValue.flags     = CU_STREAM_WRITE_VALUE_DEFAULT;
        accept(batch_ ? batch_(stream, operations.size(), operations.data(), 0) : CUDA_ERROR_NOT_FOUND, "cuStreamBatchMemOp");
    }

private:
    decltype(&cuStreamWaitValue32)  wait_  = nullptr;
    decltype(&cuStreamWriteValue32) write_ = nullptr;
    decltype(&cuStreamBatchMemOp)   batch_ = nullptr;
};
