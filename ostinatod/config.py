"""The daemon's settings: defaults, then the TOML file, then ``OSTINATO_*`` variables, then command-line flags.

Refuses unknown keys and malformed values by name; nothing else in the project reads settings from the environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ostinatod import locations
from ostinatod.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib as toml
else:
    import tomli as toml

DEFAULT_PORT = 11435
"""One above Ollama's port, so that both can run; `OSTINATO_HOST=127.0.0.1:11434` stands in for it."""

FOREVER_S = -1.0
"""A keep_alive that never expires."""

LEAST_LOG_BYTES = 1024**2
"""Of a routing log, whose tables take a part of it when they are empty."""

GPU_EXPERTS = ("auto", "stock", "pool")
"""Where experts can be on GPUs; see `Settings.gpu_experts`."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_UNIT_S = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a user can set. Times are seconds, sizes bytes or tokens as the suffix says."""

    host: str = "127.0.0.1"
    """Address to listen on; the variable may name the port too, as `127.0.0.1:11434`."""
    port: int = DEFAULT_PORT
    """Port to listen on, one above Ollama's."""
    keep_alive_s: float = 3600.0
    """Idle time after which a model is unloaded; an agent's user thinks longer than Ollama's five minutes."""
    context_tokens: int = 65536
    """Context to load with, capped by what the model was trained for; agents need far more than the usual 4k."""
    parallel: int = 4
    """Conversations whose prompt state an engine keeps side by side, sharing one KV cache."""
    max_queue: int = 64
    """Requests that may wait for one model before new ones are refused."""
    load_stall_s: float = 300.0
    """A load that makes no progress for this long is given up; a load that does is never cut off."""
    threads: int = 0
    """CPU threads of the engine; 0 lets the engine choose."""
    engine_args: tuple[str, ...] = ()
    """Further arguments for the engine process, as its own help names them."""
    allowed_hosts: tuple[str, ...] = ()
    """Host headers accepted beside the loopback names."""
    allowed_origins: tuple[str, ...] = ()
    """Browser origins accepted; none by default."""
    hub_endpoint: str = "https://huggingface.co"
    """Where `ostinato pull` downloads from; `HF_ENDPOINT` sets it too."""
    gpu_experts: str = "auto"
    """Where the experts of MoE models are on GPUs: "stock" for llama.cpp's own placement, "pool" for hot experts in the
    expert pool and cold ones in page-locked host memory, "auto" for a pool where a model does not fit the GPUs whole.
    Change it with the daemon restarted."""
    hot_experts_fraction: float = 0.0
    """Share of the experts to keep hot, 0 to 1. With 0, an expert pool on GPUs holds as many as fit, and a machine
    without GPUs runs the stock code: on a CPU hot experts save nothing."""
    learn_idle_s: float = 300.0
    """A better set of hot experts is applied when a model has been idle for this long; "never" leaves it to
    `ostinato plan --apply`."""
    learn_min_gain: float = 0.02
    """Share of all routes that a new set must serve more than the one in use to be applied by itself."""
    routing_log_bytes: int = 512 * 1024**2
    """Size of the routing log, beyond which old sessions are merged and fade, 1 MiB or more; 0 keeps no log, and
    nothing is learnt."""
    prompt_state_bytes: int = 0
    """Size of what is kept on disk of conversations while their model is not in memory, so that it need not be read
    again. It holds their text, as tokens: 0 keeps nothing, and deletes what was kept."""
    log_level: str = "info"
    """What the daemon's log holds: debug, info, warning or error."""

    @property
    def base_url(self) -> str:
        """Where a client on this machine reaches the daemon; wildcard binds are reached over loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def parse_duration_s(text: str | float) -> float:
    """Seconds in "90", "5m", "1h30m" or a number; negative or "forever" is `FOREVER_S`.

    Raises ConfigError for anything else.
    """
    if isinstance(text, bool) or not isinstance(text, (int, float, str)):
        raise ConfigError(f"expected a duration such as 5m, found {text!r}")
    if isinstance(text, (int, float)):
        return FOREVER_S if text < 0 else float(text)
    compact = text.strip().lower()
    if compact in {"forever", "never"}:
        return FOREVER_S
    negative = compact.startswith("-")
    compact = compact.removeprefix("-")
    total, end = 0.0, 0
    for match in _DURATION.finditer(compact):
        if match.start() != end:
            break
        total += float(match[1]) * _UNIT_S[match[2]]
        end = match.end()
    if not compact or end != len(compact):
        raise ConfigError(f"expected a duration such as 90s, 5m, 1h30m or forever, found {text!r}")
    return FOREVER_S if negative else total


def parse_host(text: str) -> tuple[str, int]:
    """(host, port) from "host", ":port", "host:port", "[::1]:port" or a URL; a missing part keeps its default."""
    raw = text.strip()
    if raw.isdigit():
        raw = f":{raw}"
    parts = urlsplit(raw if "://" in raw else f"//{raw}")
    try:
        return parts.hostname or "127.0.0.1", parts.port or DEFAULT_PORT
    except ValueError as error:
        raise ConfigError(f"expected host:port, found {text!r}") from error


def load_settings(file: Path | None = None, environment: Mapping[str, str] | None = None, **flags: Any) -> Settings:
    """The settings in force. Raises ConfigError naming the file, variable or flag that is wrong."""
    path = file or locations.config_file()
    settings = _apply(Settings(), _read_toml(path), source=str(path))
    env = os.environ if environment is None else environment
    values = {f.name: env[key] for f in fields(Settings) if (key := variable_name(f.name)) in env and f.name != "host"}
    settings = _apply(settings, values, source="the environment", name=variable_name)
    if text := env.get("OSTINATO_HOST"):
        host, port = parse_host(text)
        settings = replace(settings, host=host, port=port if "OSTINATO_PORT" not in env else settings.port)
    if "HF_ENDPOINT" in env and "OSTINATO_HUB_ENDPOINT" not in env:
        settings = replace(settings, hub_endpoint=env["HF_ENDPOINT"].rstrip("/"))
    return _apply(settings, {k: v for k, v in flags.items() if v is not None}, source="the command line")


def variable_name(name: str) -> str:
    """The environment variable that sets the setting called `name`."""
    return "OSTINATO_" + name.removesuffix("_s").removesuffix("_tokens").upper()


def client_api_key(environment: Mapping[str, str] | None = None) -> str | None:
    """The API key that clients send, from OSTINATO_API_KEY; never a part of the settings, which the daemon tells."""
    return (os.environ if environment is None else environment).get("OSTINATO_API_KEY") or None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
        return values
    except FileNotFoundError:
        return {}
    except (OSError, toml.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the settings in {path}: {error}") from error


def _apply(settings: Settings, values: Mapping[str, Any], *, source: str, name: Any = str) -> Settings:
    known = {f.name: f for f in fields(Settings)}
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{source}: unknown setting {key!r}; known ones are {', '.join(sorted(known))}")
        try:
            changes[key] = _convert(key, value, getattr(Settings(), key))
        except (ValueError, TypeError, ConfigError) as error:
            raise ConfigError(f"{source}: {name(key)}: {error}") from error
    return replace(settings, **changes)


def _convert(key: str, value: Any, default: Any) -> Any:
    if key.endswith("_s"):
        return parse_duration_s(value)
    if isinstance(default, tuple):
        items = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
        if not all(isinstance(item, str) for item in items):
            raise ValueError(f"expected a list of strings, found {value!r}")
        return tuple(item for item in items if item)
    if isinstance(default, float):
        share = float(value)
        if isinstance(value, bool) or not 0 <= share <= 1:
            raise ValueError(f"expected a share from 0 to 1, found {value!r}")
        return share
    if isinstance(default, int):
        number = int(value)
        if isinstance(value, bool) or number < 0 or (key == "port" and not 0 < number < 65536):
            raise ValueError(f"{value!r} is out of range")
        if key == "routing_log_bytes" and 0 < number < LEAST_LOG_BYTES:
            raise ValueError(f"expected 0 or at least {LEAST_LOG_BYTES} bytes, found {value!r}")
        return number
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {value!r}")
    if key == "gpu_experts" and value not in GPU_EXPERTS:
        raise ValueError(f"expected {' or '.join(GPU_EXPERTS)}, found {value!r}")
    return value
