// What may be said where a call is required, by the grammar that each chat template gets.
//
//   required-calls FOLDER
//
// Prints a line of JSON for each template of the folder and each way to think: the plain texts that the grammar lets pass, and whether it
// lets the call pass that the template itself would write; how that is read; and what of it is taken for text while it arrives. Text between
// the marks of a thought is no answer, and may pass. The grammar is asked as the sampler asks it: the generation prompt first, then what a
// model might say.

#include "chat.h"
#include "json.h"
#include "llama-grammar.h"
#include "peg-parser.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

static const std::string TEXT       = "Paris is lovely in May";
static const std::string THOUGHT    = "Quite so";
static const std::string ASIDE      = "<|channel|>commentary<|message|>"; // of gpt-oss, whose template never writes it
static const std::string PARAMETERS = R"({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})";

struct thinking {
    const char *            name;
    bool                    is_on;
    common_reasoning_format format;
};

static const thinking WAYS[] = {
    { "on",    true,  COMMON_REASONING_FORMAT_DEEPSEEK },
    { "off",   false, COMMON_REASONING_FORMAT_DEEPSEEK },
    { "plain", true,  COMMON_REASONING_FORMAT_NONE     }, // not told apart from text
};

struct free_grammar {
    void operator()(llama_grammar * grammar) const { llama_grammar_free_impl(grammar); }
};

// How many bytes of a text were taken, and of those, how many make a whole answer; 0 if none do.
struct taken_bytes {
    size_t all   = 0;
    size_t whole = 0;
};

// A grammar that has taken a prompt.
class asked_grammar {
    std::unique_ptr<llama_grammar, free_grammar> grammar;
    bool                                         took_prompt;

  public:
    asked_grammar(const std::string & text, const std::string & prompt) :
        grammar(llama_grammar_init_impl(nullptr, text.c_str(), "root", false, nullptr, 0, nullptr, 0)), took_prompt(true) {
        took_prompt = take(prompt).all == prompt.size();
    }

    taken_bytes take(const std::string & text) {
        const auto & stacks = llama_grammar_get_stacks(grammar.get());
        taken_bytes  taken;
        while (took_prompt && taken.all < text.size()) {
            const auto   first = static_cast<unsigned char>(text[taken.all]);
            const size_t bytes = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
            uint32_t     code  = bytes == 1 ? first : first & (0x7f >> bytes);
            for (size_t i = 1; i < bytes; ++i) {
                code = (code << 6) | (static_cast<unsigned char>(text.at(taken.all + i)) & 0x3f);
            }
            llama_grammar_accept(grammar.get(), code);
            if (stacks.empty()) {
                break;
            }
            taken.all += bytes;
            if (std::any_of(stacks.begin(), stacks.end(), [](const auto & stack) { return stack.empty(); })) {
                taken.whole = taken.all;
            }
        }
        return taken;
    }

    bool has_taken_prompt() const { return took_prompt; }
};

static common_chat_msg message(const std::string & role, const std::string & content) {
    common_chat_msg message;
    message.role    = role;
    message.content = content;
    return message;
}

// What the template writes for an answer, from where a generation prompt would begin; "" if it cannot tell.
static std::string rendered(const common_chat_templates * templates, common_chat_templates_inputs inputs, const common_chat_msg & answer) {
    inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_AUTO;
    const auto   asked = common_chat_templates_apply(templates, inputs);
    const size_t begin = asked.prompt.rfind(asked.generation_prompt);
    inputs.messages.push_back(answer);
    inputs.add_generation_prompt = false;
    try {
        const std::string whole = common_chat_templates_apply(templates, inputs).prompt;
        return whole.compare(0, begin, asked.prompt, 0, begin) == 0 ? whole.substr(begin) : "";
    } catch (const std::exception &) {
        return ""; // some templates refuse such a conversation
    }
}

// What leads from the generation prompt to the answer itself.
static std::vector<std::string> beginnings(const common_chat_params & params, bool thinks) {
    const std::string & start = params.thinking_start_tag;
    const std::string   end   = params.thinking_end_tags.empty() ? "" : params.thinking_end_tags.front();
    if (start.empty() || end.empty()) {
        return { "", "\n\n" };
    }
    const size_t opened = params.generation_prompt.rfind(start);
    const size_t closed = params.generation_prompt.rfind(end);
    if (opened != std::string::npos && (closed == std::string::npos || closed < opened)) {
        return { THOUGHT + end, THOUGHT + end + "\n\n", end, end + "\n\n" };
    }
    std::vector<std::string> begins = { "", "\n\n" };
    for (const std::string gap : { "", "\n" }) {
        if (thinks) {
            begins.push_back(start + gap + THOUGHT + gap + end);
            begins.push_back(start + gap + THOUGHT + gap + end + "\n\n");
        }
    }
    return begins;
}

// The rest of an answer, behind its thoughts and what opens it.
static std::string behind(const std::string & answer, const common_chat_params & params) {
    size_t              at    = 0;
    const std::string & start = params.thinking_start_tag;
    for (const std::string & end : params.thinking_end_tags) { // the tags of a call are among the later ones
        if (const size_t found = answer.rfind(end); found != std::string::npos && at == 0) {
            at = found + end.size();
        }
    }
    if (at == 0 && !start.empty() && answer.rfind(start) != std::string::npos) {
        at = answer.rfind(start) + start.size(); // what one template opens every answer with is taken for a thought's beginning
    }
    if (at > 0) {
        return answer.substr(std::min(answer.size(), answer.find_first_not_of('\n', at)));
    }
    const std::string opening = params.generation_prompt.substr(0, start.empty() ? std::string::npos : params.generation_prompt.find(start));
    return std::string(std::mismatch(answer.begin(), answer.end(), opening.begin(), opening.end()).first, answer.end());
}

static common_chat_parser_params reader(const common_chat_params & params, const thinking & way) {
    common_chat_parser_params reading(params);
    reading.reasoning_format = way.format;
    reading.parser.load(params.parser);
    return reading;
}

static common_chat_msg read_by(common_chat_parser_params reading, const std::string & prompt, const std::string & answer, bool is_partial) {
    reading.generation_prompt = prompt;
    return common_chat_parse(answer, is_partial, reading);
}

// What of a call is taken for text while it arrives byte by byte, beside space.
static common_json leaks(const common_chat_parser_params & reading, const std::string & prompt, const std::string & answer) {
    common_json found = common_json::array();
    for (size_t n_bytes = 1; n_bytes <= answer.size(); ++n_bytes) {
        const auto content = read_by(reading, prompt, answer.substr(0, n_bytes), n_bytes < answer.size()).content;
        if (content.find_first_not_of(" \n") != std::string::npos) {
            found.push_back(content);
        }
    }
    return found;
}

static common_json ask(const std::string & name, const std::string & source, const thinking & way) {
    const auto                   templates = common_chat_templates_init(nullptr, source);
    common_chat_templates_inputs inputs;
    inputs.messages            = { message("user", "What is the weather in Paris?") };
    inputs.tools               = { { "find", "Finds it.", PARAMETERS } };
    inputs.tool_choice         = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    inputs.reasoning_format    = way.format;
    inputs.enable_thinking     = way.is_on;
    inputs.parallel_tool_calls = !way.is_on;

    const auto  params = common_chat_templates_apply(templates.get(), inputs);
    common_json told   = { { "template", name }, { "thinking", way.name } };
    told["has_grammar"] = !params.grammar.empty() && !params.grammar_lazy;
    if (params.grammar.empty() || params.grammar_lazy) {
        return told;
    }
    told["takes_prompt"] = asked_grammar(params.grammar, params.generation_prompt).has_taken_prompt();
    if (way.format == COMMON_REASONING_FORMAT_NONE) {
        return told;
    }

    const auto        begins  = beginnings(params, way.is_on);
    const std::string as_text = rendered(templates.get(), inputs, message("assistant", TEXT));
    told["texts"]             = common_json::array();
    for (const auto & begin : begins) {
        for (const auto & said : { begin + TEXT, begin + behind(as_text, params), begin + ASIDE + TEXT }) {
            const size_t until = said.find(TEXT);
            if (until != std::string::npos && asked_grammar(params.grammar, params.generation_prompt).take(said).all >= until + TEXT.size()) {
                told["texts"].push_back(said);
            }
        }
        if (!begin.empty() && asked_grammar(params.grammar, params.generation_prompt).take(begin).whole == begin.size()) {
            told["texts"].push_back(begin); // an answer of thoughts alone
        }
    }

    common_chat_msg called;
    called.role               = "assistant";
    called.tool_calls         = { { "find", "{\"n\": 1}", "call00001" } };
    const std::string as_call = rendered(templates.get(), inputs, called);
    told["writes_calls"]      = as_call.find("find") != std::string::npos;

    std::vector<std::pair<std::string, std::string>> tries = { { "", as_call } }; // prompts, and what is said then
    for (const auto & begin : begins) {
        tries.push_back({ params.generation_prompt, begin + behind(as_call, params) });
    }
    inputs.tool_choice   = COMMON_CHAT_TOOL_CHOICE_AUTO;
    const auto required  = reader(params, way);
    const auto voluntary = reader(common_chat_templates_apply(templates.get(), inputs), way);
    told["read"]         = common_json::array();
    for (const auto & [prompt, said] : tries) {
        // What a template writes behind the end of an answer, a model does not say.
        const std::string answer = said.substr(0, asked_grammar(params.grammar, prompt).take(said).whole);
        if (!answer.empty()) {
            const auto read = read_by(required, prompt, answer, false);
            told["read"].push_back({ { "calls", read.tool_calls.size() }, { "content", read.content }, { "leaks", leaks(voluntary, prompt, answer) } });
        }
    }
    return told;
}

int main(int n_arguments, char ** arguments) {
    if (n_arguments != 2) {
        std::fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
        return 2;
    }
    for (const auto & entry : std::filesystem::directory_iterator(arguments[1])) {
        if (entry.path().extension() != ".jinja") {
            continue;
        }
        std::ifstream     in(entry.path());
        const std::string source(std::istreambuf_iterator<char>(in), {});
        for (const thinking & way : WAYS) {
            std::printf("%s\n", ask(entry.path().stem().string(), source, way).dump().c_str());
        }
    }
}
