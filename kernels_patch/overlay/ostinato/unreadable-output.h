// What is answered when a model's output does not follow its own template: what could be read, and the rest of the text as it is.
//
// The server would answer with an error, after a whole answer has been computed, and write the text to its log.

#pragma once

#include "chat.h"

#include <algorithm>
#include <string>

// Hook: called by common_chat_peg_parse for output of which it can read n_read bytes; they and what follows are `text`, which begins with
// the generation prompt. Inert while models follow their templates.
template <typename Parser>
common_chat_msg ostinato_unreadable_output(
        const Parser & parser, const std::string & output, bool is_partial, const common_chat_parser_params & params, const std::string & text,
        size_t n_read) {
    auto read = n_read > 0 ? common_chat_peg_parse(parser, output, true, params) : common_chat_msg();
    if (!is_partial) {
        read.role = "assistant";
        read.content += text.substr(std::max(n_read, params.generation_prompt.size()));
    }
    return read;
}
