// Implementation of residency.h.

#include "residency.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace {

const char MAGIC[8] = { 'O', 'S', 'T', 'R', 'E', 'S', 'I', 'D' };

const uint32_t VERSION              = 1;
const size_t   HEADER_BYTES         = 88;
const size_t   CHECKSUM_BYTES       = 4;
const size_t   LAYER_BYTES          = 8;       // before the layer's experts
const size_t   MAX_FILE_BYTES       = 16u << 20;
const size_t   MAX_PROVENANCE_BYTES = 1u << 20;
const uint32_t MAX_LAYERS           = 1u << 12; // both as in profiles/gguf_model.py
const uint32_t MAX_EXPERTS          = 1u << 16;

std::string refuse(const std::string & field, const std::string & expected, const std::string & found) {
    return field + ": expected " + expected + ", found " + found;
}

std::string outside(const std::string & field, uint64_t lowest, uint64_t highest, uint64_t found) {
    return refuse(field, "a number from " + std::to_string(lowest) + " to " + std::to_string(highest), std::to_string(found));
}

uint64_t load(const uint8_t * at, size_t n_bytes) {
    uint64_t value = 0;
    for (size_t i = n_bytes; i-- > 0;) {
        value = value << 8 | at[i];
    }
    return value;
}

uint16_t load_u16(const uint8_t * at) { return (uint16_t) load(at, 2); }
uint32_t load_u32(const uint8_t * at) { return (uint32_t) load(at, 4); }
uint64_t load_u64(const uint8_t * at) { return load(at, 8); }

std::string hex(const uint8_t * bytes, size_t n) {
    static const char digits[] = "0123456789abcdef";
    std::string out;
    for (size_t i = 0; i < n; ++i) {
        out += digits[bytes[i] >> 4];
        out += digits[bytes[i] & 15];
    }
    return out;
}

std::string hex_u32(uint32_t value) {
    const uint8_t bytes[4] = { (uint8_t) (value >> 24), (uint8_t) (value >> 16), (uint8_t) (value >> 8), (uint8_t) value };
    return hex(bytes, 4);
}

// CRC-32 as in zlib: it finds every change of up to 32 neighbouring bits, so of any one byte.
uint32_t crc32(const uint8_t * bytes, size_t n) {
    static const std::array<uint32_t, 256> table = [] {
        std::array<uint32_t, 256> t {};
        for (uint32_t i = 0; i < 256; ++i) {
            uint32_t c = i;
            for (int bit = 0; bit < 8; ++bit) {
                c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
            }
            t[i] = c;
        }
        return t;
    }();
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; ++i) {
        crc = table[(crc ^ bytes[i]) & 0xFF] ^ crc >> 8;
    }
    return crc ^ 0xFFFFFFFFu;
}

// What frames the content: kind, version, size and checksum.
std::string check_frame(const uint8_t * data, size_t size) {
    if (size >= sizeof(MAGIC) && memcmp(data, MAGIC, sizeof(MAGIC)) != 0) {
        return refuse("magic", hex((const uint8_t *) MAGIC, sizeof(MAGIC)), hex(data, sizeof(MAGIC)));
    }
    if (size < HEADER_BYTES + CHECKSUM_BYTES) {
        return refuse("file", "at least " + std::to_string(HEADER_BYTES + CHECKSUM_BYTES) + " bytes", std::to_string(size));
    }
    if (size > MAX_FILE_BYTES) {
        return refuse("file", "at most " + std::to_string(MAX_FILE_BYTES) + " bytes", std::to_string(size));
    }
    const uint32_t version = load_u32(data + 8);
    if (version != VERSION) {
        return refuse("version", std::to_string(VERSION), std::to_string(version));
    }
    const uint32_t header_bytes = load_u32(data + 12);
    if (header_bytes != HEADER_BYTES) {
        return refuse("header", std::to_string(HEADER_BYTES) + " bytes", std::to_string(header_bytes));
    }
    const uint64_t file_bytes = load_u64(data + 16);
    if (file_bytes != size) {
        return refuse("file", std::to_string(file_bytes) + " bytes", std::to_string(size));
    }
    const uint32_t computed = crc32(data, size - CHECKSUM_BYTES);
    const uint32_t stored   = load_u32(data + size - CHECKSUM_BYTES);
    if (computed != stored) {
        return refuse("checksum", hex_u32(computed), hex_u32(stored));
    }
    return "";
}

// The content, framed right, without looking at what its numbers mean.
std::string parse_content(const uint8_t * data, size_t size, ostinato_residency & out) {
    const size_t end = size - CHECKSUM_BYTES;
    size_t at = HEADER_BYTES;

    out.fingerprint  = hex(data + 24, 32);
    out.generation   = load_u64(data + 56);
    out.created_at_s = load_u64(data + 64);

    const uint32_t n_layers = load_u32(data + 72);
    if (n_layers < 1 || n_layers > MAX_LAYERS) {
        return outside("layers", 1, MAX_LAYERS, n_layers);
    }
    const uint32_t n_experts = load_u32(data + 76);
    if (n_experts < 1 || n_experts > MAX_EXPERTS) {
        return outside("experts", 1, MAX_EXPERTS, n_experts);
    }
    out.n_experts = (int32_t) n_experts;

    const size_t provenance_bytes = load_u32(data + 80);
    const size_t most = end - at < MAX_PROVENANCE_BYTES ? end - at : MAX_PROVENANCE_BYTES;
    if (provenance_bytes > most) {
        return refuse("provenance", "at most " + std::to_string(most) + " bytes", std::to_string(provenance_bytes));
    }
    out.provenance.assign((const char *) data + at, provenance_bytes);
    at += provenance_bytes;

    for (uint32_t i = 0; i < n_layers; ++i) {
        const std::string entry = "layer entry " + std::to_string(i);
        if (end - at < LAYER_BYTES) {
            return refuse(entry, std::to_string(LAYER_BYTES) + " bytes", std::to_string(end - at));
        }
        const uint32_t il    = load_u32(data + at);
        const uint32_t n_hot = load_u32(data + at + 4);
        at += LAYER_BYTES;
        if (il >= MAX_LAYERS) {
            return refuse(entry, "a layer below " + std::to_string(MAX_LAYERS), std::to_string(il));
        }
        if (n_hot > (end - at)/2) {
            return refuse(entry, "at most " + std::to_string((end - at)/2) + " hot experts", std::to_string(n_hot));
        }
        out.layers.push_back((int32_t) il);
        std::vector<int32_t> & hot = out.hot.emplace_back(n_hot);
        for (uint32_t h = 0; h < n_hot; ++h, at += 2) {
            hot[h] = load_u16(data + at);
        }
    }
    if (at != end) {
        return refuse("layers", "nothing after the last", std::to_string(end - at) + " bytes");
    }
    const uint32_t n_hot = load_u32(data + 84);
    if (n_hot != out.n_hot()) {
        return refuse("hot experts", std::to_string(out.n_hot()), std::to_string(n_hot));
    }
    return "";
}

std::string check_values(const ostinato_residency & residency) {
    for (size_t i = 1; i < residency.layers.size(); ++i) {
        const int32_t last = residency.layers[i - 1];
        if (residency.layers[i] <= last) {
            return refuse("layer entry " + std::to_string(i), "a layer above " + std::to_string(last), std::to_string(residency.layers[i]));
        }
    }
    if (residency.generation < 1 || residency.generation > INT64_MAX) {
        return outside("generation", 1, INT64_MAX, residency.generation);
    }
    if (residency.created_at_s > INT64_MAX) {
        return outside("created_at", 0, INT64_MAX, residency.created_at_s);
    }
    for (size_t i = 0; i < residency.layers.size(); ++i) {
        const std::string where = "layer " + std::to_string(residency.layers[i]);
        int32_t last = -1;
        for (const int32_t e : residency.hot[i]) {
            if (e >= residency.n_experts) {
                return refuse(where, "experts below " + std::to_string(residency.n_experts), std::to_string(e));
            }
            if (e <= last) {
                return refuse(where, "an expert above " + std::to_string(last), std::to_string(e));
            }
            last = e;
        }
    }
    return "";
}

} // namespace

size_t ostinato_residency::n_hot() const {
    size_t n = 0;
    for (const auto & experts : hot) {
        n += experts.size();
    }
    return n;
}

bool operator==(const ostinato_residency & a, const ostinato_residency & b) {
    return a.fingerprint == b.fingerprint && a.generation == b.generation && a.created_at_s == b.created_at_s &&
        a.provenance == b.provenance && a.n_experts == b.n_experts && a.layers == b.layers && a.hot == b.hot;
}

std::string ostinato_parse_residency_bytes(const void * bytes, size_t size, ostinato_residency & out) {
    const uint8_t * data = (const uint8_t *) bytes;
    ostinato_residency parsed;
    std::string reason = check_frame(data, size);
    if (reason.empty()) {
        reason = parse_content(data, size, parsed);
    }
    if (reason.empty()) {
        reason = check_values(parsed);
    }
    if (reason.empty()) {
        out = std::move(parsed);
    }
    return reason;
}

std::string ostinato_read_residency_file(const std::string & path, ostinato_residency & out) {
    const std::filesystem::path file = std::filesystem::u8path(path);
    std::error_code error;
    // a pipe or a device could block the load for ever
    const bool is_regular = std::filesystem::is_regular_file(file, error);
    if (error) {
        return path + ": " + error.message();
    }
    if (!is_regular) {
        return path + ": " + refuse("file", "a regular file", "a directory or device");
    }
    const uintmax_t file_bytes = std::filesystem::file_size(file, error);
    std::ifstream stream(file, std::ios::binary);
    if (error || !stream) {
        return path + ": " + refuse("file", "a readable file", "one that cannot be opened");
    }
    // one byte more than allowed is enough to be refused for its size
    std::vector<char> bytes(file_bytes > MAX_FILE_BYTES ? MAX_FILE_BYTES + 1 : (size_t) file_bytes);
    stream.read(bytes.data(), (std::streamsize) bytes.size());
    if (stream.bad()) {
        return path + ": " + refuse("file", "a readable file", "an error while reading");
    }
    const std::string reason = ostinato_parse_residency_bytes(bytes.data(), (size_t) stream.gcount(), out);
    return reason.empty() ? "" : path + ": " + reason;
}

bool ostinato_is_fingerprint(const std::string & text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}
