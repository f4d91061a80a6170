"""What the daemon costs over the bare engine: the same requests to the daemon and to its engine's socket, in turn.

    python benchmarks/daemon_cost.py --model tiny --requests 200 [--tokens 32] [--out result.json]

Starts a daemon of its own with a folder of its own, loads the model, and sends each request to both, the order changing
from pair to pair. The prompt is known to the engine, so that little but the way to it and back is left to time. Prints
medians of the differences within pairs, with 95 % bootstrap intervals: milliseconds per request to the first token, to
the end, per output token, and of an answer that is not streamed; and the daemon's core time per request and token,
which other programs do not lengthen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
from numpy.typing import NDArray

from ostinatod.machine.cpus import read_cpus

PROMPT = "def add(a, b):\n    "
START_S = 60.0
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Times:
    """One pair member: milliseconds to the first token, to the end, per token, and to the end without streaming."""

    ttft: float
    streamed: float
    tpot: float
    whole: float


@contextlib.contextmanager
def daemon(home: Path) -> Iterator[str]:
    """A daemon with a folder of its own; its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "OSTINATO_HOME": str(home), "OSTINATO_HOST": f"127.0.0.1:{port}"}
    with (home / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ostinatod", "serve"], env=environment, stdout=output, stderr=output
        )
        try:
            url = f"http://127.0.0.1:{port}"
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


def core_time(client: httpx.Client, pid: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of core time that the daemon spends per request, and per streamed token: other programs add none.

    Measured on answers of --tokens tokens and of eight times as many, each streamed once and given whole once.
    """
    process, spent = psutil.Process(pid), []
    lengths = (arguments.tokens, 8 * arguments.tokens)
    for tokens in lengths:
        before = process.cpu_times()
        for _ in range(arguments.requests):
            ask(client, arguments.model, tokens)
        after = process.cpu_times()
        both_ms = (after.user + after.system - before.user - before.system) * 1000
        spent.append(both_ms / arguments.requests)
    per_token = (spent[1] - spent[0]) / (lengths[1] - lengths[0])
    return {"per_request": round((spent[0] - per_token * lengths[0]) / 2, 3), "per_token": round(per_token, 4)}


def daemon_pid(folder: str) -> int:
    """The daemon's own note of it."""
    return int(Path(folder, "run", "ostinatod.pid").read_text(encoding="ascii"))


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


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    pairs: list[tuple[Times, Times]] = []
    with tempfile.TemporaryDirectory(prefix="ost-") as folder, daemon(Path(folder)) as url:
        timeout = httpx.Timeout(600, connect=5)
        # A connection for each request on both sides: the engine closes those that are kept open, at times just as they
        # are used again.
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=url, timeout=timeout, limits=limits) as to_daemon:
            ask(to_daemon, arguments.model, arguments.tokens)
            (engine_socket,) = Path(folder, "run").glob("engine-*.sock")
            transport = httpx.HTTPTransport(uds=str(engine_socket), limits=limits)
            with httpx.Client(transport=transport, base_url="http://engine", timeout=timeout) as to_engine:
                sides = [to_engine, to_daemon]
                for client in sides:
                    ask(client, arguments.model, arguments.tokens)
                for number in range(arguments.requests):
                    order = [0, 1] if number % 2 else [1, 0]
                    told = {side: ask(sides[side], arguments.model, arguments.tokens) for side in order}
                    pairs.append((told[0], told[1]))
                core_ms = core_time(to_daemon, daemon_pid(folder), arguments)
    cpus = read_cpus()
    result = {
        "machine": f"{cpus.name}, {cpus.usable_cores} cores, {platform.system()} {platform.release()}",
        "load": list(os.getloadavg()),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "pairs": len(pairs),
        "daemon_core_ms": core_ms,
    }
    print(
        f"core time of the daemon: {core_ms['per_request']:.2f} ms per request, {core_ms['per_token']:.3f} ms per token"
    )
    for name in Times.__slots__:
        values = np.array([(getattr(engine, name), getattr(through, name)) for engine, through in pairs])
        result[name] = found = difference(values)
        print(
            f"{name:<9} engine {found['engine_ms']:9.3f} ms  daemon {found['daemon_ms']:9.3f} ms  "
            f"difference {found['difference_ms']:7.3f} ms [{found['low_ms']:.3f}, {found['high_ms']:.3f}]"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
