"""Errors as HTTP answers: one table from the error tree to a status and a body in the caller's dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ostinatod.errors import ContextOverflow, EngineBusy, ModelNotFound, OstinatoError, RequestError

OPENAI_PREFIX = "/v1/"
ANTHROPIC_PREFIX = "/v1/messages"


class BodyTooLarge(RequestError):
    """The body is larger than the limit."""

    status = 413
    kind = "request_too_large"


class UnsupportedMediaType(RequestError):
    """The body is not JSON, or is compressed."""

    status = 415
    kind = "unsupported_media_type"


class Forbidden(RequestError):
    """The Host or Origin header is not one of ours: a web page may be behind this request."""

    status = 403
    kind = "forbidden"


class RequestCancelled(OstinatoError):
    """Somebody cancelled the request by its id."""

    status = 499
    exit_code = 130
    kind = "cancelled"


class EngineRefused(OstinatoError):
    """An error that the engine answered with, already in OpenAI's words."""

    kind = "engine_refused"

    def __init__(self, status_code: int, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "the engine refused the request")))
        self.status_code = status_code
        self.body = error


class PromptTooLong(EngineRefused):
    """The engine's refusal of a prompt that is longer than the loaded context."""

    kind = ContextOverflow.kind


_ANTHROPIC_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def status_of(error: OstinatoError) -> int:
    """The HTTP status of the answer that tells it."""
    return error.status_code if isinstance(error, EngineRefused) else error.status


def anthropic_body(error: OstinatoError) -> dict[str, Any]:
    """Anthropic's error object. An overflow is told in the words that Claude Code answers by compacting."""
    status = status_of(error)
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = str(error)
    if isinstance(error, PromptTooLong):
        message = f"prompt is too long: {error.body['n_prompt_tokens']} tokens > {error.body['n_ctx']} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}


def openai_body(error: OstinatoError) -> dict[str, Any]:
    """OpenAI's error object. The hint is part of the message: clients show nothing else."""
    if isinstance(error, EngineRefused):
        return {"error": error.body}
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    parameter = "model" if isinstance(error, ModelNotFound) else None
    return {"error": {"message": str(error), "type": kind, "param": parameter, "code": error.kind}}


def native_body(error: OstinatoError) -> dict[str, Any]:
    """The body of /api and /ostinato."""
    return {"error": error.message, "kind": error.kind, "hint": error.hint}


def error_response(error: OstinatoError, path: str) -> JSONResponse:
    """The answer to a request for `path` that failed before anything was sent."""
    headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, EngineBusy) else None
    return JSONResponse(_body(error, path), status_code=status_of(error), headers=headers)


def _body(error: OstinatoError, path: str) -> dict[str, Any]:
    if path.startswith(ANTHROPIC_PREFIX):
        return anthropic_body(error)
    return openai_body(error) if path.startswith(OPENAI_PREFIX) else native_body(error)


def sse_error(error: OstinatoError) -> bytes:
    """An error inside a stream that has begun; OpenAI's clients raise it."""
    return b"data: " + json.dumps(openai_body(error), ensure_ascii=False).encode() + b"\n\n"


def from_engine(status_code: int, content: bytes, *, param: str) -> EngineRefused:
    """The engine's error answer in OpenAI's words; `param` is the request's field that holds the prompt.

    An overflow says the numbers, in words that agents recognise and answer by compacting the conversation.
    """
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    told = answer.get("error") if isinstance(answer, dict) else None
    found: Mapping[str, Any] = told if isinstance(told, dict) else {}
    if found.get("type") == "exceed_context_size_error":
        return PromptTooLong(400, _overflow(int(found.get("n_prompt_tokens", 0)), int(found.get("n_ctx", 0)), param))
    message = str(found.get("message") or f"the engine answered with HTTP status {status_code}")
    if any(words in message for words in _CLIENT_FAULTS):
        status_code = 400
    kind = "invalid_request_error" if status_code < 500 else "server_error"
    return EngineRefused(status_code, {"message": message, "type": kind, "param": None, "code": found.get("type")})


_CLIENT_FAULTS = ("Failed to parse messages", "Failed to parse tools", "input is not supported", "Jinja Exception")
"""What the engine answers with status 500 although the request can never succeed; agents retry that for minutes."""


def _overflow(n_prompt_tokens: int, n_ctx: int, param: str) -> dict[str, Any]:
    return {
        "message": f"This model's maximum context length is {n_ctx} tokens; your request has {n_prompt_tokens} tokens"
        " and exceeds the available context size.",
        "type": "invalid_request_error",
        "param": param,
        "code": PromptTooLong.kind,
        "n_prompt_tokens": n_prompt_tokens,
        "n_ctx": n_ctx,
    }


def internal_error() -> OstinatoError:
    """A fault of ours."""
    return OstinatoError("internal error; the daemon's log has the details")


async def on_ostinato_error(request: Request, error: Exception) -> Response:
    """Exception handler for the tree."""
    assert isinstance(error, OstinatoError)
    return error_response(error, request.url.path)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Exception handler for unknown paths and methods."""
    assert isinstance(error, HTTPException)
    refused = RequestError(f"{request.method} {request.url.path}: {error.detail}")
    response = error_response(refused, request.url.path)
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response


async def on_validation_error(request: Request, error: Exception) -> Response:
    """Exception handler for bodies of /api and /ostinato that do not fit."""
    assert isinstance(error, RequestValidationError)
    problems = (
        f"{'.'.join(str(part) for part in item['loc'][1:]) or 'body'}: {item['msg']}" for item in error.errors()
    )
    return error_response(RequestError("; ".join(problems)), request.url.path)


async def on_unexpected_error(request: Request, error: Exception) -> Response:
    """Exception handler for our own faults; the log has the details."""
    return error_response(internal_error(), request.url.path)
