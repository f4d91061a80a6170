"""How much one request may ask for, beyond the size of its body. Pure.

Numbers are chosen far above what agents send (30 tools, schemas 10 levels deep, conversations of some thousand
messages) and far below what keeps a template, a grammar compiler or a task queue busy for long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinatod.errors import RequestError

MAX_MESSAGES = 10_000
MAX_TOOLS = 1024
MAX_PROMPTS = 64
MAX_INPUTS = 10_000
MAX_STOPS = 256
MAX_BIASES = 10_000
MAX_GRAMMAR_CHARS = 256 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_NODES = 100_000

_LENGTHS: Mapping[str, tuple[int, str]] = {
    "messages": (MAX_MESSAGES, "messages"),
    "tools": (MAX_TOOLS, "tools"),
    "functions": (MAX_TOOLS, "functions"),
    "input": (MAX_INPUTS, "inputs"),
    "stop": (MAX_STOPS, "stop sequences"),
    "stop_sequences": (MAX_STOPS, "stop sequences"),
    "logit_bias": (MAX_BIASES, "token biases"),
    "samplers": (MAX_STOPS, "samplers"),
    "dry_sequence_breakers": (MAX_STOPS, "sequence breakers"),
}
_SCHEMAS = ("tools", "functions", "response_format", "json_schema", "text", "output_config", "tool_choice")


def check_limits(fields: Mapping[str, Any]) -> None:
    """Raises RequestError, naming the field, what is allowed and what was found."""
    for name, (most, what) in _LENGTHS.items():
        value = fields.get(name)
        if isinstance(value, (list, dict)) and len(value) > most:
            raise RequestError(f"{name}: expected at most {most} {what}, found {len(value)}")
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) > MAX_PROMPTS and not all(isinstance(item, int) for item in prompt):
        # A list of numbers is one prompt, in tokens.
        raise RequestError(f"prompt: expected at most {MAX_PROMPTS} prompts, found {len(prompt)}")
    grammar = fields.get("grammar")
    if isinstance(grammar, str) and len(grammar) > MAX_GRAMMAR_CHARS:
        raise RequestError(f"grammar: expected at most {MAX_GRAMMAR_CHARS} characters, found {len(grammar)}")
    for name in _SCHEMAS:
        _check_schema(name, fields.get(name))


def _check_schema(name: str, value: Any) -> None:
    level, depth, nodes = [value], 0, 0
    while level:
        nodes += len(level)
        if depth > MAX_SCHEMA_DEPTH:
            raise RequestError(f"{name}: nested deeper than {MAX_SCHEMA_DEPTH} levels")
        if nodes > MAX_SCHEMA_NODES:
            raise RequestError(f"{name}: expected at most {MAX_SCHEMA_NODES} values, found more")
        level = [child for node in level for child in _children(node)]
        depth += 1


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
