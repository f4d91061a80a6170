"""Schemas for the engine's grammar compiler. The compiler itself judges them in tests/e2e/test_dialects.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.api.dialects.schema import MAX_REPETITIONS, check_grammar, grammar_schema
from ostinatod.errors import RequestError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def kept(**keywords: Any) -> dict[str, Any]:
    """What is left of a property's schema."""
    schema = grammar_schema({"type": "object", "properties": {"a": keywords}})
    left: dict[str, Any] = schema["properties"]["a"]
    return left


def test_a_schema_that_grammars_express_is_the_same_object() -> None:
    schema = {
        "$schema": "x",
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z]{2,8}$", "minLength": 1, "maxLength": 100},
            "kind": {"anyOf": [{"enum": ["a", None]}, {"$ref": "#/$defs/Kind"}]},
            "list": {"type": "array", "items": {"type": ["string", "null"]}, "minItems": 0, "maxItems": 9},
            "count": {"type": "integer", "minimum": -(2**63), "exclusiveMaximum": 2**53},
        },
        "required": ["name"],
        "additionalProperties": False,
        "$defs": {"Kind": {"type": "string"}},
    }
    assert grammar_schema(schema) is schema


@pytest.mark.parametrize(
    "pattern", ["[a-z]+", "^[a-z$", "^(?i)x$", r"^\p{L}+$", "^(a{999}){999}$", "^a{5,2}$", 5, None]
)
def test_patterns_that_cannot_be_compiled_are_dropped(pattern: Any) -> None:
    assert kept(type="string", pattern=pattern) == {"type": "string"}


@pytest.mark.parametrize("names", [("minLength", "maxLength"), ("minItems", "maxItems")])
def test_counts_that_cross_or_are_too_great_are_dropped(names: tuple[str, str]) -> None:
    low, high = names
    assert kept(**{low: 5, high: 2}) == {}
    assert kept(**{low: 2, high: MAX_REPETITIONS + 1}) == {low: 2}
    assert kept(**{low: -1, high: True}) == {}


@pytest.mark.parametrize("bound", [True, "1", 1.5, 1e300, 2**63])
def test_bounds_that_are_no_64_bit_integers_are_dropped(bound: Any) -> None:
    assert kept(type="integer", minimum=bound) == {"type": "integer"}


def test_references_are_kept_where_they_lead_to_a_schema() -> None:
    schema = {"$defs": {"A": {"type": "string"}}, "properties": {}}
    for reference, survives in (("#/$defs/A", True), ("#/$defs/B", False), ("#", False), ("http://x", False)):
        told = grammar_schema({**schema, "properties": {"a": {"$ref": reference}}})
        assert ("$ref" in told["properties"]["a"]) is survives


def test_order_is_kept_where_something_is_dropped() -> None:
    schema = {"z": 1, "properties": {"b": {"enum": []}, "a": {"type": "string"}}, "a": 2}
    assert list(grammar_schema(schema)) == ["z", "properties", "a"]
    assert grammar_schema(schema)["properties"] == {"b": {}, "a": {"type": "string"}}


def test_a_schema_without_end_is_cut_off() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(1000):
        schema = {"type": "array", "items": schema}
    depth, node = 0, grammar_schema(schema)
    while "items" in node:
        depth, node = depth + 1, node["items"]
    assert depth < 100


@given(JSON)
def test_anything_becomes_a_schema_and_then_stays_one(value: Any) -> None:
    schema = grammar_schema(value)
    assert isinstance(schema, dict)
    assert grammar_schema(schema) == schema


def test_an_ordinary_grammar_passes() -> None:
    check_grammar('root ::= "{" [a-z]{1,64} "}" | word{3}\nword ::= [a-z]+ [0-9]{2,}')


@pytest.mark.parametrize("repetition", ["{5,2}", "{3000}", "{1,3000}", "{999}){999}", "{99999999999999999999}"])
def test_a_grammar_that_is_written_out_without_end_is_refused(repetition: str) -> None:
    with pytest.raises(RequestError, match="repetitions"):
        check_grammar(f"root ::= (([a-z]{repetition}" + "{999}")
