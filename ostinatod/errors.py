"""Every error a person or a client can meet, in one tree. Each class fixes its HTTP status and its exit code.

OstinatoError
├── ConfigError            a setting is malformed or contradicts another
├── ModelError
│   ├── ModelNotFound      no model of that name is registered
│   ├── ModelNameError     the name does not follow the grammar
│   ├── ModelFormatError   a file is not a GGUF that the engine could load
│   └── PullError          a download could not be completed
│       ├── DiskFull       less space is free than the download needs
│       └── PullCancelled  whoever asked for the download does not want it any more
├── EngineError
│   ├── EngineNotBuilt     the engine has not been compiled on this machine
│   ├── EngineBuildError   compiling or patching the engine failed
│   ├── EngineBusy         the queue is full or too many models are loading
│   ├── EngineLoadError    the engine ended, or stopped making progress, before the model was ready
│   ├── EngineDied         the engine process ended while it served a request
│   ├── ContextOverflow    the prompt is longer than the loaded context
│   └── AbiMismatch        the bindings and the libraries disagree
├── PlanUnavailable        there is no plan to apply, or none to take back
├── RoutingLogUnavailable  the routing log cannot be read or written; requests are served without it
├── RequestError           the request itself is wrong
│   └── Unauthorized       the daemon requires an API key, and the request has none that it knows
├── ServiceError           the user's service manager is missing, or refused what it was asked
├── LogNotFound            there is no log of that source yet
├── KeyNotFound            there is no API key of that name
└── DaemonUnreachable      no daemon answers at the configured address

Messages say what was expected, what was found, and end with the command that fixes it when there is one (`hint`).
"""

from __future__ import annotations

from typing import ClassVar


class OstinatoError(Exception):
    """Base of every error this project raises on purpose."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class ConfigError(OstinatoError):
    """A setting is malformed or contradicts another."""

    status = 400
    exit_code = 2
    kind = "config_error"


class ModelError(OstinatoError):
    """Something is wrong with a model or its name."""

    status = 400
    kind = "model_error"


class ModelNotFound(ModelError):
    """No model of that name is registered."""

    status = 404
    exit_code = 4
    kind = "model_not_found"


class ModelNameError(ModelError):
    """The name does not follow the grammar."""

    exit_code = 2
    kind = "invalid_model_name"


class ModelFormatError(ModelError):
    """A file is not a GGUF that the engine could load."""

    status = 422
    kind = "invalid_model_file"


class PullError(ModelError):
    """A download could not be completed; what was fetched is kept for the next attempt."""

    status = 502
    kind = "pull_error"


class DiskFull(PullError):
    """Less space is free than the download needs."""

    status = 507
    exit_code = 5
    kind = "disk_full"


class PullCancelled(PullError):
    """Whoever asked for the download does not want it any more."""

    status = 499
    exit_code = 130
    kind = "pull_cancelled"


class EngineError(OstinatoError):
    """Something is wrong with the engine."""

    status = 503
    kind = "engine_error"


class EngineNotBuilt(EngineError):
    """The engine has not been compiled on this machine."""

    kind = "engine_not_built"


class EngineBuildError(EngineError):
    """Compiling or patching the engine failed."""

    kind = "engine_build_error"


class EngineBusy(EngineError):
    """The queue is full, or too many models are loading."""

    kind = "engine_busy"

    def __init__(self, message: str, *, hint: str | None = None, retry_after_s: int = 5) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class EngineLoadError(EngineError):
    """The engine ended, or stopped making progress, before the model was ready."""

    status = 500
    kind = "engine_load_error"


class EngineDied(EngineError):
    """The engine process ended while it served a request."""

    status = 502
    kind = "engine_died"


class ContextOverflow(EngineError):
    """The prompt is longer than the loaded context."""

    status = 400
    kind = "context_length_exceeded"


class AbiMismatch(EngineError):
    """The bindings and the libraries disagree about versions or struct sizes."""

    kind = "abi_mismatch"


class PlanUnavailable(OstinatoError):
    """There is no plan to apply, or none to take back."""

    status = 409
    kind = "plan_unavailable"


class RoutingLogUnavailable(OstinatoError):
    """The routing log cannot be read or written; requests are served without it."""

    status = 503
    kind = "routing_log_unavailable"


class RequestError(OstinatoError):
    """The request itself is wrong."""

    status = 400
    exit_code = 2
    kind = "invalid_request_error"


class Unauthorized(RequestError):
    """The daemon requires an API key, and the request has none that it knows."""

    status = 401
    kind = "invalid_api_key"


class ServiceError(OstinatoError):
    """The user's service manager is missing, or refused what it was asked."""

    kind = "service_error"


class LogNotFound(OstinatoError):
    """There is no log of that source yet."""

    status = 404
    exit_code = 4
    kind = "log_not_found"


class KeyNotFound(OstinatoError):
    """There is no API key of that name."""

    status = 404
    exit_code = 4
    kind = "key_not_found"


class DaemonUnreachable(OstinatoError):
    """No daemon answers at the configured address."""

    status = 503
    exit_code = 3
    kind = "daemon_unreachable"
