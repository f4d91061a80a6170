"""The daemon's JSON as clients read it: what is missing may be so in an older daemon, a wrong shape is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinatod.errors import OstinatoError

Json = Mapping[str, Any]


def json_object(value: object) -> Json:
    """`value`, which has to be a JSON object."""
    if not isinstance(value, dict):
        raise unexpected("an object", value)
    return value


def json_objects(value: object) -> list[Json]:
    """`value`, which has to be a list of JSON objects."""
    if not isinstance(value, list):
        raise unexpected("a list", value)
    return [json_object(item) for item in value]


def text_of(values: Json, key: str) -> str:
    """The text of a key, empty where there is none."""
    value = values.get(key)
    return "" if value is None else str(value)


def unexpected(expected: str, found: object) -> OstinatoError:
    """What to raise for an answer of the wrong shape."""
    return OstinatoError(
        f"the daemon's answer is not understood: expected {expected}, found {str(found)[:80]!r}",
        hint="Compare the versions of client and daemon: ostinato version",
    )
