"""Checks of what a download from the hub would use: endpoint, token, offline mode. Asks nothing of the network."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ostinatod.doctor.findings import Finding, ok, problem, warning

_TRUE = frozenset({"1", "on", "yes", "true"})


def check_hub(endpoint: str, environment: Mapping[str, str], home: Path) -> Finding:
    """`ostinato pull` may use the network, at a sensible address, with a token that nobody else can read."""
    address = urlsplit(endpoint)
    if address.scheme not in ("http", "https") or not address.netloc:
        return problem(
            "hub",
            f"expected an address such as https://huggingface.co as the hub's endpoint, found {endpoint!r}",
            "Correct it: unset HF_ENDPOINT, or the setting hub_endpoint",
        )
    if environment.get("HF_HUB_OFFLINE", "").strip().lower() in _TRUE:
        return warning("hub", "HF_HUB_OFFLINE is set: nothing is downloaded", "To pull models: unset HF_HUB_OFFLINE")
    file = _token_file(environment, home)
    has_token = bool(environment.get("HF_TOKEN", "").strip()) or _is_filled(file)
    if has_token and address.scheme == "http":
        return warning("hub", f"a token would be sent unencrypted to {endpoint}", "Use an https endpoint: HF_ENDPOINT")
    if (mode := _mode(file)) is not None and mode & 0o077:
        return warning("hub", f"others can read your token in {file} (mode {mode:04o})", f"Close it: chmod 600 {file}")
    return ok("hub", f"{endpoint}, {'with a token' if has_token else 'without a token (gated models need one)'}")


def _token_file(environment: Mapping[str, str], home: Path) -> Path:
    if path := environment.get("HF_TOKEN_PATH"):
        return Path(path).expanduser()
    hub_home = environment.get("HF_HOME")
    return (Path(hub_home).expanduser() if hub_home else home / ".cache" / "huggingface") / "token"


def _is_filled(file: Path) -> bool:
    try:
        return bool(file.read_text(encoding="utf-8", errors="replace").strip())
    except OSError:
        return False


def _mode(file: Path) -> int | None:
    try:
        return stat.S_IMODE(os.stat(file).st_mode)
    except OSError:
        return None
