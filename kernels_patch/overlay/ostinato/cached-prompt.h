// Prompts and their checkpoints, for whoever saves them.
//
// A slot's prompt goes to the host cache when another request begins, and the server's own saving knows slots only. The daemon saves a
// slot, erases it, and saves it again until nothing comes.
//
// Memory that cannot be rolled back (sliding windows, recurrent layers) goes back to a checkpoint, its state at an earlier place of the
// prompt, when the next turn does not repeat all that was sampled. The server's file ends with the state of the slot; checkpoints follow:
//
//   char magic[8] | uint64 count | count times { int64 n_tokens | int32 pos_min | int32 pos_max | uint64 n_bytes | n_bytes of state }
//
// in the machine's byte order, as all of the file. The server reads no further than the state. Of a draft model nothing is kept, as in
// the server's own part.

#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

struct ostinato_checkpoint_head {
    int64_t  n_tokens;
    int32_t  pos_min;
    int32_t  pos_max;
    uint64_t n_bytes;
};

struct ostinato_checkpoints_head {
    char     magic[8];
    uint64_t count;
};

static_assert(sizeof(ostinato_checkpoint_head) == 24 && sizeof(ostinato_checkpoints_head) == 16, "the layout of a file");

inline constexpr char OSTINATO_CHECKPOINTS[8] = { 'o', 's', 't', 'c', 'k', 'p', 't', '1' };

// Hook: called by server_context_impl before it saves a slot. An empty slot takes the latest prompt out of the host cache, if there is
// one and the KV cache has room for it. Inert while no empty slot is saved.
template <typename Slot, typename PromptCache>
void ostinato_take_cached_prompt(Slot & slot, PromptCache * cache) {
    if (slot.prompt.n_tokens() > 0 || !cache || cache->states.empty()) {
        return;
    }
    if (!slot.prompt_load(*cache, cache->states.back().prompt.tokens)) {
        cache->states.pop_back();
        slot.prompt_clear();
    }
}

// Hook: called by server_context_impl when it has saved a slot to a file of so many bytes. Adds the prompt's checkpoints; if the disk is
// full, the file stays what it was. Inert for prompts without checkpoints.
template <typename Prompt>
void ostinato_save_checkpoints(const Prompt & prompt, const std::string & path, size_t n_state_bytes) {
    if (prompt.checkpoints.empty()) {
        return;
    }
    std::ofstream file(path, std::ios::binary | std::ios::app);
    const auto write = [&](const void * data, size_t n_bytes) { file.write((const char *) data, (std::streamsize) n_bytes); };
    ostinato_checkpoints_head head;
    memcpy(head.magic, OSTINATO_CHECKPOINTS, sizeof(head.magic));
    head.count = prompt.checkpoints.size();
    write(&head, sizeof(head));
    for (const auto & checkpoint : prompt.checkpoints) {
        const ostinato_checkpoint_head one = { checkpoint.n_tokens, checkpoint.pos_min, checkpoint.pos_max, checkpoint.data_tgt.size() };
        write(&one, sizeof(one));
        write(checkpoint.data_tgt.data(), checkpoint.data_tgt.size());
    }
    file.close();
    if (!file) {
        std::error_code ignored; // what is left of them is refused by ostinato_read_checkpoints
        std::filesystem::resize_file(path, n_state_bytes, ignored);
    }
}

// Hook: called by server_context_impl when it has restored a slot from the first bytes of a file. Gives the prompt the checkpoints behind
// them. Throws std::runtime_error for what ostinato_save_checkpoints has not written. Inert for files without checkpoints.
template <typename Prompt>
void ostinato_read_checkpoints(Prompt & prompt, const std::string & path, size_t n_state_bytes) {
    uint64_t n_left = std::filesystem::file_size(path) - n_state_bytes;
    if (n_left == 0) {
        return;
    }
    std::ifstream file(path, std::ios::binary);
    file.seekg((std::streamoff) n_state_bytes);
    const auto expect = [&](bool is_so, const char * otherwise) {
        if (!is_so) {
            throw std::runtime_error(otherwise);
        }
    };
    const auto read = [&](void * data, uint64_t n_bytes) {
        expect(n_bytes <= n_left && file.read((char *) data, (std::streamsize) n_bytes), "the checkpoints in the file are cut off");
        n_left -= n_bytes;
    };
    ostinato_checkpoints_head head;
    read(&head, sizeof(head));
    expect(memcmp(head.magic, OSTINATO_CHECKPOINTS, sizeof(head.magic)) == 0,
        "there is something else than checkpoints behind the state in the file");
    decltype(prompt.checkpoints) checkpoints;
    for (uint64_t i = 0; i < head.count; ++i) {
        ostinato_checkpoint_head one;
        read(&one, sizeof(one));
        const bool is_inside = one.n_tokens >= 0 && one.n_tokens <= prompt.n_tokens() && one.pos_min >= 0 && one.pos_max >= one.pos_min;
        expect(is_inside, "a checkpoint in the file lies outside of its prompt");
        expect(one.n_bytes <= n_left, "the checkpoints in the file are cut off"); // before so much is allocated
        auto & checkpoint = checkpoints.emplace_back();
        checkpoint.update_pos(one.n_tokens, one.pos_min, one.pos_max);
        checkpoint.data_tgt.resize(one.n_bytes);
        read(checkpoint.data_tgt.data(), one.n_bytes);
    }
    expect(n_left == 0, "the file does not end with its checkpoints");
    prompt.checkpoints = std::move(checkpoints);
}
