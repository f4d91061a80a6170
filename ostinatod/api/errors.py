"""Errors as HTTP answers: one table from the error tree to a status and a body in the caller's dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ostinatod.errors import EngineBusy, ModelNotFound, OstinatoError, RequestError

OPENAI_PREFIX = "/v1/"


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


class EngineRefused(OstinatoError):
    """An error that the engine answered with, already in OpenAI's words."""

    def __init__(self, status_code: int, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "the engine refused the request")))
        self.status_code = status_code
        self.body = error


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
    status = error.status_code if isinstance(error, EngineRefused) else error.status
    headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, EngineBusy) else None
    body = openai_body(error) if path.startswith(OPENAI_PREFIX) else native_body(error)
    return JSONResponse(body, status_code=status, headers=headers)


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
        return EngineRefused(400, _overflow(int(found.get("n_prompt_tokens", 0)), int(found.get("n_ctx", 0)), param))
    message = str(found.get("message") or f"the engine answered with HTTP status {status_code}")
    kind = "invalid_request_error" if status_code < 500 else "server_error"
    return EngineRefused(status_code, {"message": message, "type": kind, "param": None, "code": found.get("type")})


def _overflow(n_prompt_tokens: int, n_ctx: int, param: str) -> dict[str, Any]:
    return {
        "message": f"This model's maximum context length is {n_ctx} tokens; your request has {n_prompt_tokens} tokens"
        " and exceeds the available context size.",
        "type": "invalid_request_error",
        "param": param,
        "code": "context_length_exceeded",
        "n_prompt_tokens": n_prompt_tokens,
        "n_ctx": n_ctx,
    }


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
    return error_response(OstinatoError("internal error; the daemon's log has the details"), request.url.path)
