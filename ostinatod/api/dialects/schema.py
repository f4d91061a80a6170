"""JSON schemas as the engine's grammar compiler can take them. Pure functions.

Agents send schemas that were written for validators. One keyword that the compiler refuses fails the whole request, and
a few of them (a repetition whose least count is above its greatest) make the engine allocate until it is killed. What
is dropped here only loosens what the model may write; the client validates the arguments anyway. A schema that needs no
change is returned as the same object, so that a prompt that carries it is unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ostinatod.errors import RequestError

MAX_REPETITIONS = 1000
"""The engine refuses a least count of 3000; its compile time grows with the count."""
MAX_LINE_REPETITIONS = 100_000
"""Product of the counts in one rule of a grammar: repetitions within repetitions are written out by the engine."""
MAX_DEPTH = 64

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_INT64 = 2**63
_SUBSCHEMAS = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else")
_SUBSCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SUBSCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_COUNTS = (("minLength", "maxLength"), ("minItems", "maxItems"))
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_REPETITION = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")


def grammar_schema(schema: Any) -> Any:
    """`schema` without what no grammar can be made of; anything that is no schema becomes the one that admits all."""
    return _normal(schema, schema, 0)


def check_grammar(grammar: str) -> None:
    """Refuse a grammar whose repetitions would exhaust the engine. Raises RequestError."""
    for line in grammar.splitlines():
        written_out = 1
        for match in _REPETITION.finditer(line):
            least = int(match[1][:9])
            most = int(match[3][:9]) if match[3] else least
            written_out *= max(1, most)
            if most < least or most > MAX_REPETITIONS or written_out > MAX_LINE_REPETITIONS:
                raise RequestError(f"grammar: expected repetitions of at most {MAX_REPETITIONS}, found {match[0][:40]}")


def _normal(node: Any, root: Any, depth: int) -> Any:
    if not isinstance(node, dict) or depth > MAX_DEPTH:
        return {}
    changes: dict[str, Any] = {}
    for key in _SUBSCHEMAS:
        if isinstance(node.get(key), dict):
            changes[key] = _normal(node[key], root, depth + 1)
    if isinstance(node.get("items"), list):
        changes["items"] = [_normal(item, root, depth + 1) for item in node["items"]]
    for key in _SUBSCHEMA_LISTS:
        if isinstance(node.get(key), list):
            changes[key] = [_normal(item, root, depth + 1) for item in node[key]]
    for key in _SUBSCHEMA_MAPS:
        if isinstance(node.get(key), dict):
            changes[key] = {name: _normal(item, root, depth + 1) for name, item in node[key].items()}
    kept = {key: changes.get(key, value) for key, value in node.items() if not _is_refused(key, value, node, root)}
    return node if kept == node else kept


def _is_refused(key: str, value: Any, node: Mapping[str, Any], root: Any) -> bool:
    if key == "type":
        names = value if isinstance(value, list) else [value]
        return not names or not all(isinstance(name, str) and name in _TYPES for name in names)
    if key in ("enum", *_SUBSCHEMA_LISTS):
        return not isinstance(value, list) or not value
    if key in (*_SUBSCHEMA_MAPS,):
        return not isinstance(value, dict)
    if key == "required":
        return not isinstance(value, list) or not all(isinstance(name, str) for name in value)
    if key == "items":
        return not isinstance(value, (dict, list))
    if key in ("not", "if", "then", "else", "contains"):
        return not isinstance(value, dict)
    if key == "$ref":
        return not _resolves(value, root)
    if key == "pattern":
        return not _is_plain_pattern(value)
    if key in _BOUNDS:
        return _is_refused_bound(value, node)
    for low, high in _COUNTS:
        if key in (low, high):
            return not _is_sane_count(value) or (
                _is_sane_count(node.get(low)) and _is_sane_count(node.get(high)) and node[low] > node[high]
            )
    return False


def _is_refused_bound(value: Any, node: Mapping[str, Any]) -> bool:
    # Older drafts have booleans here; an integer's bounds are 64 bits wide in the engine.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    return node.get("type") == "integer" and (not float(value).is_integer() or not -_INT64 <= value < _INT64)


def _is_sane_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REPETITIONS


def _is_plain_pattern(pattern: Any) -> bool:
    if not isinstance(pattern, str) or not (pattern.startswith("^") and pattern.endswith("$")):
        return False
    try:
        re.compile(pattern)
        check_grammar(pattern.replace("\n", " "))
    except (re.error, RecursionError, OverflowError, RequestError):
        return False
    return True


def _resolves(reference: Any, root: Any) -> bool:
    """Whether `reference` names a schema of the same document, other than the whole of it."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return False
    node = root
    for step in reference[2:].split("/"):
        if not isinstance(node, dict) or step not in node:
            return False
        node = node[step]
    return isinstance(node, dict)
