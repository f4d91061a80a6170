// Which slot answers a request, such that no conversation loses what was read of it.
//
// Conversations share a long beginning, an agent's system prompt. By itself the server gives a request the slot whose prompt is most
// similar, throws away what of that prompt the request does not share, and looks into the host cache only where that is more than half
// of it. Here
//
// - a request takes the prompt that shares the most tokens with it, wherever that is: in a slot at rest, in the host cache, or in a slot
//   that works, of which a copy is made by way of the host cache;
// - a prompt that would lose more than is read again in a moment is saved to the host cache first, and a cached one of which only the
//   beginning is taken stays there as well;
// - slots at rest are saved and emptied before a cached prompt is brought back, so that the KV cache has room for it. A prompt that the
//   host cache cannot hold stays in its slot, and so does a long one beside a short request.
//
// The host cache keeps its limit and gives up first what was used longest ago. A prompt that is being brought back does not count.
//
// Requests that do not fit the context together with those that are being answered wait: were it full, all of them would fail.

#pragma once

#include "llama.h"
#include "server-common.h"
#include "server-task.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <optional>
#include <utility>
#include <vector>

// Reading a token takes longer than copying the state of so many to host memory and back.
inline constexpr size_t OSTINATO_COPIED_PER_READ = 32;
// So few tokens are lost without saving: each answer that is sampled anew would leave its predecessor in the host cache.
inline constexpr size_t OSTINATO_FEW_TOKENS = 256;
// A request so many times shorter than a prompt is over before that prompt has been copied to host memory and back.
inline constexpr size_t OSTINATO_SHORT_REQUEST = 8;

// Whether a prompt of n_tokens is to be saved before all but its first n_kept tokens are thrown away.
inline bool ostinato_loses_much(size_t n_tokens, size_t n_kept) {
    return n_tokens - n_kept > std::max(OSTINATO_FEW_TOKENS, n_tokens/OSTINATO_COPIED_PER_READ);
}

// Whether copying a prompt of n_tokens saves more time than it takes, where n_more tokens need not be read then.
inline bool ostinato_is_worth_copying(size_t n_tokens, size_t n_more) {
    return n_more*OSTINATO_COPIED_PER_READ > n_tokens;
}

// What an answer that has no lower limit is expected to take of the context, at most.
inline constexpr int32_t OSTINATO_ANSWER_SHARE = 8; // 1/8

// Whether the KV cache has room for the request beside those that are being answered, or for one of them at a time.
template <typename Slot>
bool ostinato_has_room(const std::vector<Slot> & slots, const server_task & task) {
    const auto answer = [](const Slot & slot, int32_t limit) {
        const int32_t most = slot.n_ctx/OSTINATO_ANSWER_SHARE;
        return limit < 0 ? most : std::min(limit, most);
    };
    int64_t n_working = 0;
    int64_t n_needed  = task.tokens.size() + answer(slots.front(), task.params.n_predict);
    const bool fits_alone = (int64_t) task.tokens.size() < slots.front().n_ctx; // else it is refused
    for (const Slot & slot : slots) {
        if (slot.is_processing()) {
            n_needed += std::max<int64_t>(slot.prompt.n_tokens(), slot.task->n_tokens()) + answer(slot, slot.n_remaining());
            ++n_working;
        }
    }
    return n_working == 0 || !fits_alone || n_needed <= (int64_t) llama_n_ctx(slots.front().ctx_tgt);
}

// Hook: called by server_context_impl before it empties a slot for want of room. Whether the host cache holds the whole prompt then.
// Inert without a host cache.
template <typename Slot>
bool ostinato_keep_prompt(const Slot & slot, server_prompt_cache * cache) {
    if (!cache) {
        return false;
    }
    if (slot.prompt_save(*cache)) {
        cache->update();
        return true;
    }
    const auto & tokens = slot.prompt.tokens;
    return std::any_of(cache->states.begin(), cache->states.end(),
        [&](const auto & state) { return state.prompt.tokens.get_common_prefix(tokens) == tokens.size(); });
}

// A choice among slots and cached prompts for one request.
template <typename Slot>
class ostinato_slot_choice {
public:
    ostinato_slot_choice(std::vector<Slot> & slots, const server_task & task, server_prompt_cache & cache) :
        slots_(slots), task_(task), cache_(cache) {
        for (Slot & slot : slots_) {
            Slot *& best = slot.is_processing() ? working_ : at_rest_;
            if (n_shared(slot.prompt) > (best ? n_shared(best->prompt) : 0)) {
                best = &slot;
            }
            if (!slot.is_processing() && (!target_ || slot.prompt.n_tokens() < target_->prompt.n_tokens())) {
                target_ = &slot;
            }
        }
    }

    // The slot at rest that answers, with what it reuses in it. nullptr if all slots work.
    Slot * take() {
        if (!target_) {
            return nullptr;
        }
        const int64_t begin_us = ggml_time_us();
        take_copy();
        if (copy_.empty() && is_answered_in_place()) {
            target_ = at_rest_;
        } else {
            ostinato_keep_prompt(*target_, &cache_);
            target_->prompt_clear();
        }
        empty_others(OSTINATO_SHORT_REQUEST*task_.tokens.size());
        const char * source = copy_.empty() ? "its slot" : "the host cache";
        if (!copy_.empty()) {
            restore();
        }
        cache_.update();
        SLT_INF(*target_, "reuses %zu of %zu tokens from %s, found in %.1f ms\n", n_shared(target_->prompt), task_.tokens.size(), source,
            1e-3*(ggml_time_us() - begin_us));
        return target_;
    }

private:
    using cached_prompts = std::list<server_prompt_cache_state>;

    size_t n_shared(const server_prompt & prompt) const {
        return task_.params.cache_prompt ? prompt.tokens.get_common_prefix(task_.tokens) : 0;
    }

    // The cached prompt that shares the most with the request, of several the shortest.
    cached_prompts::iterator best_cached() {
        auto best = cache_.states.end();
        size_t n_best = 1;
        for (auto it = cache_.states.begin(); it != cache_.states.end(); ++it) {
            const size_t n = n_shared(it->prompt);
            if (n > n_best || (n == n_best && (best == cache_.states.end() || it->prompt.n_tokens() < best->prompt.n_tokens()))) {
                best   = it;
                n_best = n;
            }
        }
        return best;
    }

    // Takes the prompt that is worth to be copied into the slot out of the cache, if there is one: its place serves what is saved meanwhile.
    void take_copy() {
        const auto is_worth_it = [&](const server_prompt & prompt, size_t n_without) {
            const size_t n = n_shared(prompt);
            return n > n_without && ostinato_is_worth_copying(prompt.tokens.size(), n - n_without);
        };
        const size_t n_at_rest = at_rest_ ? n_shared(at_rest_->prompt) : 0;
        auto cached = best_cached();
        const size_t n_cached = cached == cache_.states.end() ? 0 : n_shared(cached->prompt);
        if (working_ && is_worth_it(working_->prompt, std::max(n_at_rest, n_cached))) {
            if (working_->prompt_save(cache_)) {
                copy_.splice(copy_.end(), cache_.states, std::prev(cache_.states.end()));
                return;
            }
            cached = best_cached(); // saving may have cost it
        }
        if (cached != cache_.states.end() && is_worth_it(cached->prompt, n_at_rest)) {
            copy_.splice(copy_.end(), cache_.states, cached);
        }
    }

    // Whether the request goes on in the slot whose prompt is most like it. What the prompt loses by that is saved, or little, or less than
    // the request would have to read elsewhere.
    bool is_answered_in_place() {
        if (!at_rest_) {
            return false;
        }
        const size_t n_tokens = at_rest_->prompt.tokens.size();
        const size_t n_kept   = n_shared(at_rest_->prompt);
        const bool   is_most  = 2*n_kept > n_tokens;
        if (is_most && !ostinato_loses_much(n_tokens, n_kept)) {
            return true;
        }
        return ostinato_is_worth_copying(n_tokens, n_kept) && (ostinato_keep_prompt(*at_rest_, &cache_) || at_rest_ == target_ || is_most);
    }

    // Empties the other slots at rest, but for prompts longer than n_longest, and those that the host cache cannot hold.
    void empty_others(size_t n_longest) {
        for (Slot & slot : slots_) {
            const bool is_other = &slot != target_ && !slot.is_processing() && slot.prompt.tokens.size() <= n_longest;
            if (is_other && ostinato_keep_prompt(slot, &cache_)) {
                slot.prompt_clear();
            }
        }
    }

    // Brings the copy into the slot, which stays empty if the KV cache has no room for it. It goes back to the cache as the latest, unless
    // the request goes on with all of it.
    void restore() {
        auto & state = copy_.front();
        const auto read = [&](llama_context * ctx, const std::vector<uint8_t> & data) {
            const size_t n_bytes = data.size();
            return n_bytes == 0 || llama_state_seq_set_data_ext(ctx, data.data(), n_bytes, target_->id, LLAMA_STATE_SEQ_FLAGS_NONE) == n_bytes;
        };
        const auto read_all = [&] { return read(target_->ctx_tgt, state.data.main) && read(target_->ctx_dft, state.data.drft); };
        bool is_read = read_all();
        if (!is_read) {
            empty_others(SIZE_MAX);
            is_read = read_all();
        }
        if (!is_read) {
            target_->prompt_clear();
        } else if (ostinato_loses_much(state.prompt.tokens.size(), n_shared(state.prompt))) {
            target_->prompt = state.prompt.clone();
        } else {
            target_->prompt = std::move(state.prompt);
            copy_.clear();
        }
        cache_.states.splice(cache_.states.end(), copy_);
    }

    std::vector<Slot> &   slots_;
    const server_task &   task_;
    server_prompt_cache & cache_;

    Slot * target_  = nullptr; // of those at rest the one with the shortest prompt
    Slot * at_rest_ = nullptr; // of those the one that shares the most with the request, if any shares something
    Slot * working_ = nullptr; // the same of the others

    cached_prompts copy_; // what is to be restored: one, or none
};

// Hook: called by server_context_impl for each request before it chooses a slot itself, which it does where this answers nothing. nullptr: the
// request waits until a slot is released. Inert with a KV cache in parts and, but for waiting, without a host cache and for requests that name a
// slot or adapters.
template <typename Slot>
std::optional<Slot *> ostinato_choose_slot(std::vector<Slot> & slots, const server_task & task, server_prompt_cache * cache, bool is_unified) {
    if (!is_unified || task.type != SERVER_TASK_TYPE_COMPLETION) {
        return std::nullopt;
    }
    if (!ostinato_has_room(slots, task)) {
        SRV_INF("request of %zu tokens waits: no room in the context beside those that are being answered\n", task.tokens.size());
        return nullptr;
    }
    if (!cache || task.id_slot != -1 || !task.params.lora.empty()) {
        return std::nullopt;
    }
    return ostinato_slot_choice<Slot>(slots, task, *cache).take();
}
