// The prompts that wait in host memory, one after the other, for whoever saves them.
//
// A slot's prompt goes to the host cache when another request begins, and the server's own saving knows slots only. The daemon saves a
// slot, erases it, and saves it again until nothing comes.

#pragma once

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
