// What is answered when a model's output does not follow its own template: what could be read, and the rest of the text as it is.
//
// The server would answer with an error, after a whole answer has been computed, and write the text to its log.

#pragma once

#include <string>

// Hook: called by common_chat_peg_parse for a finished output that it cannot parse. Inert while models follow their templates.
template <typename Message>
Message ostinato_unreadable_output(Message read, const std::string & rest) {
    read.role = "assistant";
    read.content += rest;
    return read;
}
