// An answer that must be a call begins with it.
//
// Where a call is required, the parser of most templates takes thoughts, any text, and then a call, and the grammar made of it lets a
// model write text until its limit. Included by chat-peg-parser.h behind the builder of such parsers.

#pragma once

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

// Takes the text out of a parser whose answers contain a call. Thoughts stay.
class ostinato_text_remover {
    common_peg_arena & parser;
    std::vector<std::optional<bool>> text; // of each part; without a value as long as it is not known
    std::vector<std::optional<bool>> call;

    template <typename Part>
    static auto parts_of(const Part & part, int) -> decltype(std::vector<common_peg_parser_id>(part.children)) { return part.children; }
    template <typename Part>
    static auto parts_of(const Part & part, long) -> decltype(std::vector<common_peg_parser_id>{ part.child }) { return { part.child }; }
    template <typename Part>
    static std::vector<common_peg_parser_id> parts_of(const Part &, ...) { return {}; }

    std::vector<common_peg_parser_id> parts_of(common_peg_parser_id id) const {
        const auto & part = parser.get(id);
        if (std::holds_alternative<common_peg_and_parser>(part) || std::holds_alternative<common_peg_not_parser>(part)) {
            return {}; // they look ahead and take nothing
        }
        return std::visit([](const auto & p) { return parts_of(p, 0); }, part);
    }

    bool is_tagged(common_peg_parser_id id, const char * name) const {
        const auto * tag = std::get_if<common_peg_tag_parser>(&parser.get(id));
        return tag && tag->tag == name;
    }

    // Whether nothing matches this part without matching text, which may be empty.
    bool needs_text(common_peg_parser_id id) {
        if (!text[id]) {
            text[id] = false; // what refers to itself adds nothing
            const auto & part     = parser.get(id);
            const auto   parts    = parts_of(id);
            const auto   needs    = [this](common_peg_parser_id child) { return needs_text(child); };
            const auto * repeated = std::get_if<common_peg_repetition_parser>(&part);
            if (std::holds_alternative<common_peg_choice_parser>(part)) {
                text[id] = !parts.empty() && std::all_of(parts.begin(), parts.end(), needs);
            } else if (!repeated || repeated->min_count > 0) {
                text[id] = is_tagged(id, common_chat_peg_builder::CONTENT) || std::any_of(parts.begin(), parts.end(), needs);
            }
        }
        return *text[id];
    }

    bool has_call(common_peg_parser_id id) {
        if (!call[id]) {
            call[id] = false;
            const auto parts = parts_of(id);
            call[id] = is_tagged(id, common_chat_peg_builder::TOOL_NAME) ||
                std::any_of(parts.begin(), parts.end(), [this](common_peg_parser_id child) { return has_call(child); });
        }
        return *call[id];
    }

    bool is_only_text(common_peg_parser_id id) { return needs_text(id) && !has_call(id); }

  public:
    explicit ostinato_text_remover(common_peg_arena & parser) : parser(parser), text(parser.size()), call(parser.size()) {}

    bool has_call() { return has_call(parser.root()); }

    // An alternative that is only text goes, with the marks around it; text beside a call becomes empty.
    void remove() {
        std::vector<common_peg_parser_id> emptied;
        for (common_peg_parser_id id = 0; id < parser.size(); ++id) {
            auto & part = parser.get(id);
            if (auto * choice = std::get_if<common_peg_choice_parser>(&part)) {
                auto & those = choice->children;
                if (!is_only_text(id)) {
                    those.erase(std::remove_if(those.begin(), those.end(), [this](auto child) { return is_only_text(child); }), those.end());
                }
            } else if (const auto * repeated = std::get_if<common_peg_repetition_parser>(&part)) {
                if (repeated->min_count == 0 && is_only_text(repeated->child)) {
                    emptied.push_back(id);
                }
            } else if (is_tagged(id, common_chat_peg_builder::CONTENT)) {
                emptied.push_back(id);
            }
        }
        for (const auto id : emptied) {
            parser.get(id) = common_peg_epsilon_parser{};
        }
    }
};

// Whether the request that this thread makes a parser for requires a call.
inline thread_local bool ostinato_call_is_required = false;

// Hook: held by common_chat_templates_apply_jinja while it makes a parser. Inert where no call is required, and where text is wanted: in
// an answer that the client has begun, in one by a schema, and in thoughts that are not told apart from text.
class ostinato_call_requirement {
  public:
    template <typename Inputs>
    explicit ostinato_call_requirement(const Inputs & inputs) {
        ostinato_call_is_required = inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED &&
            inputs.continue_final_message == COMMON_CHAT_CONTINUATION_NONE && inputs.reasoning_format != COMMON_REASONING_FORMAT_NONE &&
            inputs.json_schema.empty();
    }
    ~ostinato_call_requirement() { ostinato_call_is_required = false; }
    ostinato_call_requirement(const ostinato_call_requirement &)             = delete;
    ostinato_call_requirement & operator=(const ostinato_call_requirement &) = delete;
};

// Hook: called by build_chat_peg_parser, before a grammar is made of the parser. Inert unless a call is required and can be made.
inline common_peg_arena ostinato_begin_with_call(common_peg_arena parser) {
    if (ostinato_call_is_required) {
        ostinato_text_remover remover(parser);
        if (remover.has_call()) {
            remover.remove();
        }
    }
    return parser;
}
