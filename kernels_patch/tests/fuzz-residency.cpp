// Feeds mutated residency files to the C++ reader (overlay/ostinato/residency.h).
//
// With libFuzzer, in kernels_patch:
//   clang++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -DOSTINATO_LIBFUZZER -I overlay tests/fuzz-residency.cpp overlay/ostinato/residency.cpp
// Standalone:
//   g++ -std=c++17 -g -O1 -fsanitize=address,undefined -I overlay tests/fuzz-residency.cpp overlay/ostinato/residency.cpp -o fuzz-residency
//   ./fuzz-residency ROUNDS FILE...
//
// The standalone program mutates each file ROUNDS times, always in the same way, and prints how many mutants were accepted and refused.
// Every second mutant gets its size and checksum repaired, as else hardly any would come past the frame.

#include "ostinato/residency.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

// Ends the process where the reader accepts what its users could not rely on.
static bool is_accepted(const uint8_t * data, size_t size) {
    ostinato_residency residency;
    if (!ostinato_parse_residency_bytes(data, size, residency).empty()) {
        return false;
    }
    bool is_sound = residency.layers.size() == residency.hot.size() && ostinato_is_fingerprint(residency.fingerprint);
    for (const auto & experts : residency.hot) {
        int32_t last = -1;
        for (const int32_t e : experts) {
            is_sound = is_sound && e > last && e < residency.n_experts;
            last = e;
        }
    }
    if (!is_sound) {
        fprintf(stderr, "accepted a set that is not sound\n");
        abort();
    }
    return true;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    is_accepted(data, size);
    return 0;
}

#ifndef OSTINATO_LIBFUZZER

static uint32_t crc32_bitwise(const std::vector<uint8_t> & bytes, size_t n) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; ++i) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1)));
        }
    }
    return ~crc;
}

static void store(std::vector<uint8_t> & bytes, size_t at, uint64_t value, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; ++i) {
        bytes[at + i] = (uint8_t) (value >> 8*i);
    }
}

static void mutate(std::vector<uint8_t> & bytes, std::mt19937 & rng) {
    const auto below = [&](size_t n) { return n == 0 ? 0 : rng() % n; };
    for (size_t n = 1 + below(4); n > 0; --n) {
        const size_t at = below(2) ? below(bytes.size()) : below(bytes.size() < 128 ? bytes.size() : 128); // half of them in the header
        switch (below(5)) {
            case 0: if (!bytes.empty()) { bytes[at] ^= (uint8_t) (1u << below(8)); } break;
            case 1: if (!bytes.empty()) { bytes[at] = (uint8_t) rng(); } break;
            case 2: bytes.resize(at); break;
            case 3: bytes.insert(bytes.begin() + at, 1 + below(9), (uint8_t) rng()); break;
            case 4: for (size_t i = at; i < bytes.size() && i < at + 4; ++i) { bytes[i] = 0xFF; } break;
        }
    }
}

int main(int argc, char ** argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s ROUNDS FILE...\n", argv[0]);
        return 2;
    }
    const int rounds = atoi(argv[1]);
    std::mt19937 rng(20240607);
    size_t n_accepted = 0;
    size_t n_refused  = 0;
    for (int f = 2; f < argc; ++f) {
        std::ifstream stream(argv[f], std::ios::binary);
        const std::vector<uint8_t> original((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
        for (int round = 0; round < rounds; ++round) {
            std::vector<uint8_t> bytes = original;
            if (round > 0) {
                mutate(bytes, rng);
            }
            if (round % 2 == 1 && bytes.size() >= 32) {
                store(bytes, 16, bytes.size(), 8);
                store(bytes, bytes.size() - 4, crc32_bitwise(bytes, bytes.size() - 4), 4);
            }
            // in a block of its own size, so that a sanitiser sees every read beyond it
            std::vector<uint8_t> input(bytes);
            input.shrink_to_fit();
            (is_accepted(input.data(), input.size()) ? n_accepted : n_refused)++;
        }
    }
    printf("accepted %zu refused %zu\n", n_accepted, n_refused);
    return 0;
}

#endif
