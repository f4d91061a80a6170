// ostinato-tiny-models ARCHITECTURE DIRECTORY [KEY=VALUE | --separate]...
//
// Writes tiny models of one architecture with random weights, for tests/e2e/test_architectures.py:
//
//   f32.gguf      all weights are f32
//   mixed.gguf    the expert weights have several quantised types, by turns, so that the weights of one expert differ in type
//   missing.gguf  f32.gguf without every second expert, whose down projections are zero: what a branch that is left out would look like
//
// Their metadata are those of llama.cpp's own test of all architectures (tests/test-llama-archs.cpp of the pinned source, included below),
// changed as asked:
//
//   KEY=VALUE     a metadata key of the architecture, or of the tokenizer: a number, a number with a point, true, false, a text in quotes, or
//                 numbers with commas
//   --separate    gate and up projections that the fixture merges become two tensors

#define main static main_of_llama_archs
#include "test-llama-archs.cpp"
#undef main

#include "../src/llama-model.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace {

const ggml_type MIXED_TYPES[] = {
    GGML_TYPE_Q4_K, GGML_TYPE_Q8_0, GGML_TYPE_Q6_K, GGML_TYPE_MXFP4, GGML_TYPE_F16, GGML_TYPE_Q5_K, GGML_TYPE_BF16, GGML_TYPE_IQ4_NL,
};

struct options {
    std::vector<std::pair<std::string, std::string>> metadata;
    bool separate = false;
};

std::vector<std::string> split(const std::string & text) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) {
        parts.push_back(part);
    }
    return parts;
}

options parse(int argc, char ** argv) {
    options opts;
    for (int i = 3; i < argc; ++i) {
        const std::string arg = argv[i];
        const size_t equals = arg.find('=');
        if (arg == "--separate") {
            opts.separate = true;
        } else if (equals != std::string::npos) {
            opts.metadata.emplace_back(arg.substr(0, equals), arg.substr(equals + 1));
        } else {
            throw std::runtime_error("unknown argument " + arg);
        }
    }
    return opts;
}

void set_metadata(gguf_context * gguf, const std::string & key, const std::string & value) {
    gguf_remove_key(gguf, key.c_str());
    if (value == "true" || value == "false") {
        gguf_set_val_bool(gguf, key.c_str(), value == "true");
    } else if (value.size() >= 2 && value.front() == '"' && value.back() == '"') {
        gguf_set_val_str(gguf, key.c_str(), value.substr(1, value.size() - 2).c_str());
    } else if (value.find(',') != std::string::npos) {
        std::vector<uint32_t> numbers;
        for (const std::string & number : split(value)) {
            numbers.push_back((uint32_t) std::stoul(number));
        }
        gguf_set_arr_data(gguf, key.c_str(), GGUF_TYPE_UINT32, numbers.data(), numbers.size());
    } else if (value.find('.') != std::string::npos) {
        gguf_set_val_f32(gguf, key.c_str(), std::stof(value));
    } else {
        gguf_set_val_u32(gguf, key.c_str(), (uint32_t) std::stoul(value));
    }
}

bool ends_with(const std::string & text, const std::string & end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The fixture's random numbers, except where they would hide a fault: scales near zero would silence the experts, and expert ids have to be
// valid. Those are distinct per token.
void fill(ggml_tensor * tensor, void * userdata) {
    if (tensor->type == GGML_TYPE_I32) {
        std::vector<int32_t> ids(ggml_nelements(tensor));
        for (size_t i = 0; i < ids.size(); ++i) {
            const size_t token = i/tensor->ne[0];
            ids[i] = (int32_t) ((5*token + 3*(i % tensor->ne[0]))%8);
        }
        ggml_backend_tensor_set(tensor, ids.data(), 0, ids.size()*sizeof(int32_t));
        return;
    }
    set_tensor_data(tensor, userdata);
    if (ends_with(tensor->name, "_exps.scale")) {
        std::vector<float> scales(ggml_nelements(tensor));
        ggml_backend_tensor_get(tensor, scales.data(), 0, scales.size()*sizeof(float));
        for (float & scale : scales) {
            scale += 1.0f;
        }
        ggml_backend_tensor_set(tensor, scales.data(), 0, scales.size()*sizeof(float));
    }
}

struct tensor_to_write {
    ggml_tensor head = {};
    std::vector<float> data; // of an f32 tensor
    std::vector<char>  bytes;
};

using tensor_map = std::map<std::string, tensor_to_write>;

tensor_map tensors_of(const llama_model * model) {
    tensor_map tensors;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        tensor_to_write & out = tensors[name];
        out.head = *tensor;
        out.head.buffer = nullptr;
        out.bytes.resize(ggml_nbytes(tensor));
        ggml_backend_tensor_get(tensor, out.bytes.data(), 0, out.bytes.size());
        if (tensor->type == GGML_TYPE_F32) {
            out.data.resize(ggml_nelements(tensor));
            memcpy(out.data.data(), out.bytes.data(), out.bytes.size());
        }
    }
    return tensors;
}

// Bytes of an f32 tensor in `type`, or in one with smaller blocks where its rows are no whole blocks.
void encode(tensor_to_write & tensor, ggml_type type) {
    const int64_t columns = tensor.head.ne[0];
    for (const ggml_type smaller : { GGML_TYPE_Q8_0, GGML_TYPE_F32 }) {
        type = columns % ggml_blck_size(type) == 0 ? type : smaller;
    }
    const int64_t rows = (int64_t) tensor.data.size()/columns;
    tensor.head.type = type;
    tensor.bytes.resize(rows*ggml_row_size(type, columns));
    ggml_quantize_chunk(type, tensor.data.data(), tensor.bytes.data(), 0, rows, columns, nullptr);
    tensor.head.nb[0] = ggml_type_size(type);
    tensor.head.nb[1] = ggml_row_size(type, columns);
    tensor.head.nb[2] = tensor.head.nb[1]*tensor.head.ne[1];
    tensor.head.nb[3] = tensor.head.nb[2]*tensor.head.ne[2];
}

void separate_gate_and_up(tensor_map & tensors) {
    const std::string merged_end = "ffn_gate_up_exps.weight";
    tensor_map separate;
    for (auto it = tensors.begin(); it != tensors.end();) {
        if (!ends_with(it->first, merged_end)) {
            ++it;
            continue;
        }
        const std::string block = it->first.substr(0, it->first.size() - merged_end.size());
        const tensor_to_write & merged = it->second;
        const size_t half = merged.head.ne[0]*merged.head.ne[1]/2;

        tensor_to_write & gate = separate[block + "ffn_gate_exps.weight"];
        tensor_to_write & up   = separate[block + "ffn_up_exps.weight"];
        gate.head = merged.head;
        gate.head.ne[1] /= 2;
        up.head = gate.head;
        for (auto at = merged.data.begin(); at != merged.data.end(); at += 2*half) {
            gate.data.insert(gate.data.end(), at, at + half);
            up  .data.insert(up  .data.end(), at + half, at + 2*half);
        }
        it = tensors.erase(it);
    }
    if (separate.empty()) {
        throw std::runtime_error("gate and up are not merged");
    }
    for (auto & entry : separate) {
        encode(entry.second, GGML_TYPE_F32);
    }
    tensors.merge(separate);
}

void write_file(const gguf_context * metadata, tensor_map tensors, const std::string & path) {
    gguf_context_ptr out(gguf_init_empty());
    gguf_set_kv(out.get(), metadata);
    for (auto & [name, tensor] : tensors) {
        tensor.head.data = tensor.bytes.data();
        ggml_set_name(&tensor.head, name.c_str());
        gguf_add_tensor(out.get(), &tensor.head);
    }
    if (!gguf_write_to_file(out.get(), path.c_str(), /*only_meta =*/ false)) {
        throw std::runtime_error("cannot write " + path);
    }
}

void write_models(const std::string & arch_name, const std::string & directory, const options & opts) {
    const llm_arch arch = llm_arch_from_string(arch_name);
    if (arch == LLM_ARCH_UNKNOWN) {
        throw std::runtime_error("unknown architecture " + arch_name);
    }
    gguf_context_ptr fixture = get_gguf_ctx(arch, /*moe =*/ true);
    for (const auto & [key, value] : opts.metadata) {
        set_metadata(fixture.get(), key.rfind("tokenizer.", 0) == 0 ? key : arch_name + "." + key, value);
    }
    for (int il = 0; il < 8; ++il) {
        ggml_tensor ids = {}; // tells the loader the type of tables that map tokens to experts
        ids.type = GGML_TYPE_I32;
        ggml_format_name(&ids, "blk.%d.ffn_gate_tid2eid.weight", il);
        gguf_add_tensor(fixture.get(), &ids);
    }

    tensor_data_params random = { /*.seed =*/ 17, /*.stdev =*/ 0.1f };
    ggml_backend_dev_t no_devices[] = { nullptr };
    llama_model_params params = llama_model_default_params();
    params.progress_callback = silent_model_load_progress;
    params.devices           = no_devices;
    params.load_mtp          = true;
    llama_model_ptr model(llama_model_init_from_user(fixture.get(), fill, &random, params));
    if (!model) {
        throw std::runtime_error("no model can be made of these metadata");
    }

    tensor_map tensors = tensors_of(model.get());
    if (opts.separate) {
        separate_gate_and_up(tensors);
    }
    write_file(fixture.get(), tensors, directory + "/f32.gguf");

    tensor_map missing = tensors;
    size_t n_weights = 0;
    for (auto & [name, tensor] : tensors) {
        if (!ends_with(name, "_exps.weight") || tensor.head.ne[2] == 1) {
            continue;
        }
        encode(tensor, MIXED_TYPES[n_weights++ % (sizeof(MIXED_TYPES)/sizeof(MIXED_TYPES[0]))]);
        if (ends_with(name, "ffn_down_exps.weight")) {
            const size_t expert = tensor.head.ne[0]*tensor.head.ne[1]*sizeof(float);
            for (int64_t e = 1; e < tensor.head.ne[2]; e += 2) {
                std::fill_n(missing.at(name).bytes.begin() + e*expert, expert, 0);
            }
        }
    }
    if (n_weights == 0) {
        throw std::runtime_error("the model has no experts");
    }
    write_file(fixture.get(), tensors, directory + "/mixed.gguf");
    write_file(fixture.get(), missing, directory + "/missing.gguf");
}

} // namespace

int main(int argc, char ** argv) {
    try {
        if (argc < 3) {
            throw std::runtime_error("expected an architecture and a directory to write to");
        }
        llama_log_set([](ggml_log_level level, const char * text, void *) {
            if (level == GGML_LOG_LEVEL_ERROR) {
                fputs(text, stderr);
            }
        }, nullptr);
        write_models(argv[1], argv[2], parse(argc, argv));
        return 0;
    } catch (const std::exception & err) {
        fprintf(stderr, "ostinato-tiny-models: %s\n", err.what());
        return 1;
    }
}
