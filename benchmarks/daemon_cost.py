"""What the daemon costs over the bare engine: the same requests to the daemon and to its engine's socket, in turn.

    python benchmarks/daemon_cost.py --model tiny --requests 200 [--tokens 32] [--out result.json]
    python benchmarks/daemon_cost.py --libraries BIN --model MODEL.gguf --seconds 40 --out result.json

Starts a daemon of its own with a folder of its own, loads the model, and sends each request to both, the order changing
from pair to pair. The prompt is known to the engine, so that little but the way to it and back is left to time. Prints
medians of the differences within pairs, with 95 % bootstrap intervals: milliseconds per request to the first token, to
the end, per output token, and of an answer that is not streamed; and the daemon's core time per request and token,
which other programs do not lengthen. With --seconds there are as many pairs and requests as fit; a model that is named
by its file is adopted by that daemon, and the engine in --libraries is used as if it were installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from live_host import engine_cache
from numpy.typing import NDArray
from this_machine import machine, write_json

PROMPT = "def add(a, b):\n    "
START_S = 60.0
RESAMPLES = 2000
PAIRS_SHARE = 0.5
"""Of the time that is left once the model is loaded; the rest is for core time."""
LEAST = 2
"""Pairs, and requests of each length, however short the time is."""


@dataclass(frozen=True, slots=True)
class Times:
    """One pair member: milliseconds to the first token, to the end, per token, and to the end without streaming."""

    ttft: float
    streamed: float
    tpot: float
    whole: float


def environment_of(folder: Path, libraries: Path | None) -> dict[str, str]:
    """Variables of a daemon with a folder and a port of its own, and of its command line."""
    (folder / "home").mkdir()
    (folder / "engine").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        **os.environ,
        "OSTINATO_HOME": str(folder / "home"),
        "OSTINATO_ENGINE_CACHE": str(engine_cache(libraries, folder / "engine")),
        "OSTINATO_HOST": f"127.0.0.1:{port}",
    }


@contextlib.contextmanager
def daemon(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A running daemon; its URL."""
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ostinatod", "serve"], env=environment, stdout=output, stderr=output
        )
        try:
            url = f"http://{environment['OSTINATO_HOST']}"
            wait_until_up(url, process)
            yield url
        finally:
            process.terminate()
            process.wait()


def wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    """Raises RuntimeError when the daemon ends instead, or is not up in time."""
    ends_at = time.monotonic() + START_S
    while time.monotonic() < ends_at and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health").is_success:
                return
        time.sleep(0.05)
    raise RuntimeError(f"the daemon did not start (status {process.poll()})")


def registered(model: str, environment: dict[str, str]) -> str:
    """The name of a model; a file is adopted. Raises CalledProcessError where that fails; stderr has the reason."""
    if not Path(model).is_file():
        return model
    command = [sys.executable, "-m", "ostinatod", "pull", str(Path(model).resolve()), "--name", "measured", "--json"]
    told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return str(json.loads(told)["name"])


def ask(client: httpx.Client, model: str, tokens: int) -> Times:
    """One streamed and one whole answer of `tokens` tokens."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    started = time.perf_counter()
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        response.raise_for_status()
        arrivals = [time.perf_counter() for line in response.iter_lines() if line.startswith("data: {")]
    ended = time.perf_counter()
    client.post("/v1/completions", json=body).raise_for_status()
    whole = time.perf_counter() - ended
    return Times(
        ttft=(arrivals[0] - started) * 1000,
        streamed=(ended - started) * 1000,
        tpot=(arrivals[-1] - arrivals[0]) * 1000 / (tokens - 1),
        whole=whole * 1000,
    )


def core_time(
    client: httpx.Client, model: str, pid: int, tokens: int, requests: int, until: float
) -> dict[str, float | int]:
    """Milliseconds of core time that the daemon spends per request, and per streamed token: other programs add none.

    Measured on answers of `tokens` tokens and of eight times as many, each streamed once and given whole once.
    """
    process, spent, counted = psutil.Process(pid), [], []
    lengths = (tokens, 8 * tokens)
    for number, length in enumerate(lengths):
        # The longer answers take about as much longer as they are.
        ends_at = until if number else time.monotonic() + (until - time.monotonic()) / 5
        before, done = process.cpu_times(), 0
        while done < requests and (done < LEAST or time.monotonic() < ends_at):
            ask(client, model, length)
            done += 1
        after = process.cpu_times()
        spent.append((after.user + after.system - before.user - before.system) * 1000 / done)
        counted.append(done)
    per_token = (spent[1] - spent[0]) / (lengths[1] - lengths[0])
    per_request = (spent[0] - per_token * lengths[0]) / 2
    return {"per_request": round(per_request, 3), "per_token": round(per_token, 4), "requests": 2 * sum(counted)}


def daemon_pid(home: Path) -> int:
    """The daemon's own note of it."""
    return int((home / "run" / "ostinatod.pid").read_text(encoding="ascii"))


def difference(pairs: NDArray[np.float64]) -> dict[str, float]:
    """Of pairs (N, 2) of engine and daemon: medians, the median difference, and its interval."""
    rng = np.random.default_rng(5)
    differences = pairs[:, 1] - pairs[:, 0]
    drawn = np.median(differences[rng.integers(0, len(pairs), (RESAMPLES, len(pairs)))], axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    values = {
        "engine_ms": np.median(pairs[:, 0]),
        "daemon_ms": np.median(pairs[:, 1]),
        "difference_ms": np.median(differences),
        "low_ms": low,
        "high_ms": high,
    }
    return {name: round(float(value), 4) for name, value in values.items()}


def summary(pairs: list[tuple[Times, Times]], core_ms: dict[str, float | int] | None) -> dict[str, Any]:
    """What goes to the file, but for what says where it comes from."""
    values = {
        name: np.array([(getattr(engine, name), getattr(through, name)) for engine, through in pairs])
        for name in Times.__slots__
    }
    told = {"pairs": len(pairs), "daemon_core_ms": core_ms, "load": list(os.getloadavg())}
    return {**told, **{name: difference(found) for name, found in values.items()}}


def lines_of(result: dict[str, Any]) -> Iterator[str]:
    """A result for people."""
    if core_ms := result["daemon_core_ms"]:
        yield (
            f"core time of the daemon: {core_ms['per_request']:.2f} ms per request, {core_ms['per_token']:.3f} ms per "
            f"token ({core_ms['requests']} requests)"
        )
    for name in Times.__slots__:
        found = result[name]
        yield (
            f"{name:<9} engine {found['engine_ms']:9.3f} ms  daemon {found['daemon_ms']:9.3f} ms  "
            f"difference {found['difference_ms']:7.3f} ms [{found['low_ms']:.3f}, {found['high_ms']:.3f}]"
        )


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="tiny", help="a registered model's name, or a file")
    parser.add_argument("--libraries", type=Path, help="the engine's binaries; the installed engine otherwise")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for all of it, about")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    about = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "model": Path(arguments.model).name,
        "tokens": arguments.tokens,
    }
    result: dict[str, Any] = {}

    def keep(core_ms: dict[str, float | int] | None) -> None:
        result.update(about, **summary(pairs, core_ms))
        if arguments.out:
            write_json(arguments.out, result)

    pairs: list[tuple[Times, Times]] = []
    with tempfile.TemporaryDirectory(prefix="ost-") as name:
        folder = Path(name)
        environment = environment_of(folder, arguments.libraries)
        with daemon(folder, environment) as url:
            model, home = registered(arguments.model, environment), folder / "home"
            timeout = httpx.Timeout(600, connect=5)
            # A connection for each request on both sides: the engine closes those that are kept open, at times just as
            # they are used again.
            limits = httpx.Limits(max_keepalive_connections=0)
            with httpx.Client(base_url=url, timeout=timeout, limits=limits) as to_daemon:
                ask(to_daemon, model, arguments.tokens)
                (engine_socket,) = (home / "run").glob("engine-*.sock")
                transport = httpx.HTTPTransport(uds=str(engine_socket), limits=limits)
                with httpx.Client(transport=transport, base_url="http://engine", timeout=timeout) as to_engine:
                    sides = [to_engine, to_daemon]
                    for client in sides:
                        ask(client, model, arguments.tokens)
                    pairs_end_at = time.monotonic() + PAIRS_SHARE * (until - time.monotonic())
                    while len(pairs) < arguments.requests and (len(pairs) < LEAST or time.monotonic() < pairs_end_at):
                        order = [0, 1] if len(pairs) % 2 else [1, 0]
                        told = {side: ask(sides[side], model, arguments.tokens) for side in order}
                        pairs.append((told[0], told[1]))
                    keep(None)
                    keep(core_time(to_daemon, model, daemon_pid(home), arguments.tokens, arguments.requests, until))
    print("\n".join(lines_of(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
