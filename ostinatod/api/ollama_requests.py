"""Requests in Ollama's words, and the same in the words of OpenAI that the engine understands. Pure functions.

What would change how a model is loaded (`num_ctx`, `num_gpu`, `num_batch` ...) is the daemon's to decide and has no
effect: clients send another `num_ctx` with every request, and a reload would lose every conversation's prompt state.
A prompt that does not fit is an error, never shortened. Refused, because ignoring it would change the answer: images,
`context`, `template` and `suffix`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ostinatod.errors import RequestError

Think = bool | Literal["low", "medium", "high", "max"] | None


class ModelName(BaseModel):
    """`name` is what older clients say."""

    model: str = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _accept_name(cls, values: Any) -> Any:
        return {**values, "model": values["name"]} if isinstance(values, dict) and values.get("name") else values


class Options(BaseModel):
    """Sampling, as Ollama names it; those that are about loading are not listed and have no effect."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    stop: list[str] | str | None = None


class ToolFunction(BaseModel):
    """Ollama's clients send the arguments as an object, some as the text that they were sampled as."""

    name: str
    arguments: dict[str, Any] | str | None = None


class ToolCall(BaseModel):
    """A call that the model made in an earlier turn."""

    id: str | None = None
    function: ToolFunction


class Message(BaseModel):
    """One message of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class _Answered(ModelName):
    stream: bool = True
    format: dict[str, Any] | str | None = None
    options: Options | None = None
    keep_alive: float | str | None = None
    think: Think = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_stream_is_the_default(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("stream", True) is None:
            return {name: value for name, value in values.items() if name != "stream"}
        return values


class ChatRequest(_Answered):
    """`POST /api/chat`. Without messages the model is only loaded, or unloaded with `keep_alive` 0."""

    messages: list[Message] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None


class GenerateRequest(_Answered):
    """`POST /api/generate`. Without a prompt the model is only loaded, or unloaded with `keep_alive` 0."""

    prompt: str = ""
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None


def chat_fields(wanted: ChatRequest, context_tokens: int) -> dict[str, Any]:
    """The body of a chat completion. Raises RequestError for what cannot be honoured."""
    if any(message.images for message in wanted.messages):
        raise _no_images()
    fields: dict[str, Any] = {"model": wanted.model, "messages": list(_messages(wanted.messages))}
    if wanted.tools:
        fields["tools"] = wanted.tools
        if wanted.tool_choice is not None:
            fields["tool_choice"] = wanted.tool_choice
    return fields | _common(wanted, context_tokens) | _thinking(wanted.think)


def generate_fields(wanted: GenerateRequest, context_tokens: int, *, as_chat: bool) -> dict[str, Any]:
    """The body of a chat completion with one turn, or of a text completion without `as_chat`.

    Raises RequestError for what cannot be honoured.
    """
    if wanted.images:
        raise _no_images()
    if wanted.suffix:
        raise RequestError(
            "suffix: inserting text between two others is not supported", hint="Send the text before it as the prompt"
        )
    if wanted.context:
        raise RequestError(
            "context: token lists of earlier answers are not supported", hint="Send the conversation to /api/chat"
        )
    if wanted.template:
        raise RequestError(
            "template: a model's chat template cannot be replaced", hint="Send finished text with raw: true"
        )
    common = _common(wanted, context_tokens)
    if as_chat:
        system = [{"role": "system", "content": wanted.system}] if wanted.system else []
        messages = [*system, {"role": "user", "content": wanted.prompt}]
        return {"model": wanted.model, "messages": messages} | common | _thinking(wanted.think)
    text = f"{wanted.system}\n\n{wanted.prompt}" if wanted.system and not wanted.raw else wanted.prompt
    # A completion's `logprobs` is a number.
    if common.pop("logprobs", None):
        common["logprobs"] = common.pop("top_logprobs", 0) or 1
    return {"model": wanted.model, "prompt": text} | common


def _common(wanted: _Answered, context_tokens: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"stream": wanted.stream} | _sampling(wanted.options or Options(), context_tokens)
    if wanted.stream:
        fields["stream_options"] = {"include_usage": True}
    if wanted.keep_alive is not None:
        fields["keep_alive"] = wanted.keep_alive
    if wanted.logprobs:
        fields["logprobs"] = True
        if wanted.top_logprobs:
            fields["top_logprobs"] = wanted.top_logprobs
    if wanted.format:
        fields["response_format"] = _response_format(wanted.format)
    return fields


def _sampling(options: Options, context_tokens: int) -> dict[str, Any]:
    fields = options.model_dump(exclude_none=True, exclude={"num_predict", "repeat_last_n"})
    if options.num_predict is not None and options.num_predict >= 0:
        # Negative means without a limit, which is what the engine does unasked.
        fields["max_tokens"] = options.num_predict
    if options.repeat_last_n is not None:
        fields["repeat_last_n"] = context_tokens if options.repeat_last_n < 0 else options.repeat_last_n
    return fields


def _response_format(wanted: Mapping[str, Any] | str) -> dict[str, Any]:
    if wanted == "json":
        return {"type": "json_object"}
    if isinstance(wanted, str):
        raise RequestError(f"format: expected json or a JSON schema, found {wanted[:40]!r}")
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": wanted}}


def _thinking(think: Think) -> dict[str, Any]:
    if think is None:
        return {}
    if isinstance(think, bool):
        return {"chat_template_kwargs": {"enable_thinking": think}}
    return {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": think}


def _messages(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """OpenAI's messages. Calls that came without an id are numbered, and their results find them by name or order."""
    unanswered: list[tuple[str, str]] = []
    for number, message in enumerate(messages):
        told: dict[str, Any] = {"role": message.role, "content": "" if message.content is None else message.content}
        if message.thinking:
            told["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = [(call.id or f"call_{number}_{n}", call.function) for n, call in enumerate(message.tool_calls)]
            unanswered = [(call_id, function.name) for call_id, function in calls]
            told["tool_calls"] = [_tool_call(call_id, function) for call_id, function in calls]
        if message.role == "tool":
            call_id = message.tool_call_id or _answered_call(unanswered, message.tool_name)
            unanswered = [call for call in unanswered if call[0] != call_id]
            told["tool_call_id"] = call_id
        yield told


def _answered_call(unanswered: Sequence[tuple[str, str]], name: str | None) -> str:
    """The id of the first call that still waits for its result, of that name if there is one."""
    named = [call_id for call_id, called in unanswered if called == name]
    return (named or [call_id for call_id, _ in unanswered] or ["call_unknown"])[0]


def _tool_call(call_id: str, function: ToolFunction) -> dict[str, Any]:
    arguments = function.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": function.name, "arguments": text}}


def _no_images() -> RequestError:
    return RequestError("images are not supported by the models that run here", hint="Send text only")
