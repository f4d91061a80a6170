// An answer that must be a call begins with it.
//
// Where a call is required, the parser of a template takes thoughts, any text, and then a call, and the grammar made of it lets a model
// write text until its limit.

#pragma once

#include "chat-peg-parser.h"
#include "chat.h"
#include "peg-parser.h"

#include <variant>

// Hook: called by peg_generator when it has built a parser, before a grammar is made of it. Takes the text before a required call out of
// it; an answer that was begun by the client keeps it. Inert where no call is required.
template <typename Inputs>
void ostinato_begin_with_call(common_peg_arena & parser, const Inputs & inputs) {
    if (inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_REQUIRED || inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE) {
        return;
    }
    for (size_t i = 0; i < parser.size(); ++i) {
        const auto * optional = std::get_if<common_peg_repetition_parser>(&parser.get(i));
        if (!optional || optional->min_count != 0 || optional->max_count != 1) {
            continue;
        }
        const auto * text = std::get_if<common_peg_tag_parser>(&parser.get(optional->child));
        if (text && text->tag == common_chat_peg_builder::CONTENT) {
            parser.get(i) = common_peg_epsilon_parser{};
        }
    }
}
