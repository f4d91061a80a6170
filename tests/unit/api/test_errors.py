"""The table of errors."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ostinatod import errors
from ostinatod.api.errors import error_response, from_engine, openai_body
from ostinatod.errors import EngineBusy, OstinatoError


def tree(root: type[OstinatoError]) -> Iterator[type[OstinatoError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


@pytest.mark.parametrize("kind", list(tree(OstinatoError)))
def test_every_error_has_an_answer_in_both_dialects(kind: type[OstinatoError]) -> None:
    error = kind("what", hint="next")
    openai = error_response(error, "/v1/models")
    assert openai.status_code == kind.status
    body = json.loads(bytes(openai.body))["error"]
    assert (body["message"], body["code"]) == ("what\nnext", kind.kind)
    assert body["type"] == ("server_error" if kind.status >= 500 else "invalid_request_error")
    native = json.loads(bytes(error_response(error, "/api/tags").body))
    assert native == {"error": "what", "kind": kind.kind, "hint": "next"}


@pytest.mark.parametrize("kind", list(tree(OstinatoError)))
def test_every_error_has_a_type_that_anthropic_knows(kind: type[OstinatoError]) -> None:
    body = json.loads(bytes(error_response(kind("what", hint="next"), "/v1/messages").body))
    assert body["type"] == "error"
    assert body["error"]["message"] == "what\nnext"
    assert body["error"]["type"].endswith(("_error", "_too_large"))


def test_what_can_never_succeed_is_not_told_as_a_fault_of_the_server() -> None:
    content = json.dumps({"error": {"code": 500, "message": "Jinja Exception: roles must alternate"}}).encode()
    assert error_response(from_engine(500, content, param="messages"), "/v1/messages").status_code == 400


def test_a_full_queue_says_when_to_come_back() -> None:
    assert error_response(EngineBusy("full", retry_after_s=7), "/api/ps").headers["retry-after"] == "7"


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"error": "text"}', b'{"error": {}}'])
def test_an_engine_answer_that_is_not_understood_keeps_its_status(content: bytes) -> None:
    refused = from_engine(500, content, param="messages")
    assert error_response(refused, "/v1/chat/completions").status_code == 500
    assert "status 500" in openai_body(refused)["error"]["message"]
