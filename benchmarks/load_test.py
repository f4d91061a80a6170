"""Many clients at once, in every dialect, some of which leave without waiting: does every answer reach its own client,
and is everything given back afterwards?

Starts a daemon of its own with the real engine, makes the requests of `load_requests.py`, and then looks for what is
left: requests in flight, engine slots at work, sockets, memory. Ends with status 1 if an answer was lost or crossed, or
anything was left behind.

    python benchmarks/load_test.py --clients 64 --requests 1000 [--out result.json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parent))
from load_requests import DIALECTS, TOPICS, Case, body_of, nonces_in, path_of, text_of

MODEL = "tiny"
LEAVE_SHARE = 0.25
FREE_SHARE = 0.2
PATIENCE_S = 600.0
DRAIN_S = 15.0
START_S = 30.0
DAEMON_GROWTH_BYTES = 64 << 20
ENGINE_GROWTH_BYTES = 96 << 20
"""Room for allocators and for buffers that are kept for the next request, over a thousand requests."""

Outcome = Literal["right", "different", "crossed", "lost", "left", "refused"]


@dataclass(frozen=True, slots=True)
class Daemon:
    """The daemon under test."""

    url: str
    home: Path
    pid: int


@dataclass(slots=True)
class Tally:
    """What became of the requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    by_dialect: dict[str, Counter[str]] = field(default_factory=dict)
    latencies_ms: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def note(self, case: Case, outcome: Outcome, problem: str = "") -> None:
        """Count one request."""
        self.outcomes[outcome] += 1
        self.by_dialect.setdefault(case.dialect, Counter())[outcome] += 1
        if problem:
            self.problems.append(f"{outcome} {case.dialect} stream={case.stream}: {problem[:300]}")


@dataclass(frozen=True, slots=True)
class Footprint:
    """What daemon and engine hold at a moment."""

    daemon_rss_bytes: int
    engine_rss_bytes: int
    daemon_files: int
    engine_files: int
    in_flight: int
    slots_at_work: int
    engine_pid: int


@contextlib.contextmanager
def own_daemon(parallel: int, max_queue: int) -> Iterator[Daemon]:
    """A daemon with a home of its own. Its engine keeps no prompt state in host memory: that would look like a leak."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    from ostinatod.locations import engine_cache_dir

    with tempfile.TemporaryDirectory(prefix="ost-") as directory:
        home = Path(directory)
        environment = {
            **os.environ,
            "OSTINATO_HOME": str(home),
            "OSTINATO_ENGINE_CACHE": str(engine_cache_dir()),
            "OSTINATO_HOST": f"127.0.0.1:{port}",
            "OSTINATO_PARALLEL": str(parallel),
            "OSTINATO_MAX_QUEUE": str(max_queue),
            "OSTINATO_CONTEXT": "8192",
            "OSTINATO_ENGINE_ARGS": "--cache-ram 0",
            "HF_HUB_OFFLINE": "1",
        }
        with (home / "output").open("wb") as output:
            command = [sys.executable, "-m", "ostinatod", "serve"]
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            _await_health(url, process, home / "output")
            yield Daemon(url, home, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _await_health(url: str, process: subprocess.Popen[bytes], output: Path) -> None:
    ends_at = time.monotonic() + START_S
    while time.monotonic() < ends_at and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the daemon did not start: {output.read_text()[-2000:]}")


def footprint(daemon: Daemon) -> Footprint:
    """What is held now."""
    status = httpx.get(f"{daemon.url}/ostinato/status", timeout=60, trust_env=False).json()
    (model,) = status["models"]
    (path,) = (daemon.home / "run").glob("engine-*.sock")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=60) as engine:
        slots = engine.get("http://engine/slots").json()
    ours, engines = psutil.Process(daemon.pid), psutil.Process(model["pid"])
    return Footprint(
        daemon_rss_bytes=ours.memory_info().rss,
        engine_rss_bytes=engines.memory_info().rss,
        daemon_files=ours.num_fds(),
        engine_files=engines.num_fds(),
        in_flight=model["in_flight"],
        slots_at_work=sum(slot["is_processing"] for slot in slots),
        engine_pid=model["pid"],
    )


def cases(count: int, chance: random.Random) -> list[Case]:
    """The requests, in the order of their start."""
    made = []
    for number in range(count):
        dialect = DIALECTS[number % len(DIALECTS)]
        stream = chance.random() < 0.5
        topic = chance.choice(TOPICS)
        if chance.random() < FREE_SHARE:
            made.append(Case(dialect, f"About {topic}?", None, stream))
        else:
            nonce = f"{number:04d}{chance.getrandbits(8):02x}"
            made.append(Case(dialect, f"{nonce}: about {topic}?", nonce, stream))
    return made


async def ask(http: httpx.AsyncClient, case: Case) -> str:
    """The text of the complete answer. Raises ValueError for an incomplete one, HTTPStatusError for an error."""
    async with http.stream("POST", path_of(case), json=body_of(case, MODEL)) as response:
        content = await response.aread()
        response.raise_for_status()
    return text_of(case, [content])


async def leave(http: httpx.AsyncClient, case: Case, chance: random.Random) -> None:
    """Ask and go away: in the queue, before the answer, or in the middle of it."""
    patience_s, pieces = chance.choice((0.02, 0.1, 0.5, 1.5)), chance.randrange(4)

    async def begin() -> None:
        async with http.stream("POST", path_of(case), json=body_of(case, MODEL)) as response:
            async for _ in response.aiter_raw():
                nonlocal pieces
                pieces -= 1
                if pieces < 0:
                    return

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(begin(), patience_s)


async def one_client(
    queue: asyncio.Queue[Case], daemon: Daemon, references: dict[tuple[str, str], str], tally: Tally, seed: int
) -> None:
    """Makes requests until none is left."""
    chance = random.Random(seed)
    async with httpx.AsyncClient(base_url=daemon.url, timeout=PATIENCE_S, trust_env=False) as http:
        while not queue.empty():
            case = queue.get_nowait()
            if chance.random() < LEAVE_SHARE:
                await leave(http, case, chance)
                tally.note(case, "left")
                continue
            started_s = time.monotonic()
            try:
                text = await _patiently(http, case, tally)
            except (ValueError, KeyError, httpx.HTTPError) as error:
                said = error.response.text if isinstance(error, httpx.HTTPStatusError) else repr(error)
                tally.note(case, "lost", said)
                continue
            tally.latencies_ms.append((time.monotonic() - started_s) * 1000)
            outcome = judged(case, text, references)
            tally.note(case, outcome, text if outcome == "crossed" else "")


async def _patiently(http: httpx.AsyncClient, case: Case, tally: Tally) -> str:
    """Ask, and again after as long as a full queue asks for."""
    while True:
        async with http.stream("POST", path_of(case), json=body_of(case, MODEL)) as response:
            content = await response.aread()
        wait = response.headers.get("retry-after")
        if response.status_code != 503 or wait is None:
            response.raise_for_status()
            return text_of(case, [content])
        tally.outcomes["refused"] += 1
        await asyncio.sleep(float(wait))


def judged(case: Case, text: str, references: dict[tuple[str, str], str]) -> Outcome:
    """Whether the answer is this request's. A free one may differ from the answer given alone, because a token computed
    beside others rounds differently, and then equal another free one's: some begin alike. With a nonce it has crossed.
    """
    found = nonces_in(text)
    if found - {case.nonce}:
        return "crossed"
    if case.nonce is not None:
        # A few answers are cut off in white space that the schema allows before the nonce.
        return "right" if found else "different"
    return "right" if text == references[case.dialect, case.prompt] else "different"


async def run(daemon: Daemon, clients: int, requests: int, seed: int) -> dict[str, Any]:
    """The whole test; its result as JSON."""
    chance = random.Random(seed)
    todo = cases(requests, chance)
    tally = Tally()
    references: dict[tuple[str, str], str] = {}
    async with httpx.AsyncClient(base_url=daemon.url, timeout=PATIENCE_S, trust_env=False) as http:
        for case in todo:
            if case.nonce is None and (case.dialect, case.prompt) not in references:
                references[case.dialect, case.prompt] = await ask(http, case)
        # Every slot, and as many connections as there will be, once: what is kept for later is not a leak.
        warm = [Case(DIALECTS[n % len(DIALECTS)], "Say hello.", None, n % 2 == 0) for n in range(clients)]
        await asyncio.gather(*(ask(http, case) for case in warm))
    before = await settled(daemon)
    queue: asyncio.Queue[Case] = asyncio.Queue()
    for case in todo:
        queue.put_nowait(case)
    started_s = time.monotonic()
    await asyncio.gather(
        *(one_client(queue, daemon, references, tally, chance.getrandbits(32)) for _ in range(clients))
    )
    duration_s = time.monotonic() - started_s
    after = await settled(daemon)
    return {
        "clients": clients,
        "requests": requests,
        "seed": seed,
        "duration_s": round(duration_s, 1),
        "outcomes": dict(tally.outcomes),
        "by_dialect": {dialect: dict(counts) for dialect, counts in sorted(tally.by_dialect.items())},
        "latency_ms": {f"p{p}": percentile(tally.latencies_ms, p) for p in (50, 95, 99)},
        "before": asdict(before),
        "after": asdict(after),
        "problems": tally.problems + left_behind(before, after),
    }


async def settled(daemon: Daemon) -> Footprint:
    """The footprint once nothing is at work, or after `DRAIN_S`."""
    ends_at = time.monotonic() + DRAIN_S
    while True:
        # Asked seldom: the engine looks for closed connections only after a second without any result, ours included.
        await asyncio.sleep(1.5)
        found = await asyncio.to_thread(footprint, daemon)
        if (found.in_flight == 0 and found.slots_at_work == 0) or time.monotonic() > ends_at:
            return found


def left_behind(before: Footprint, after: Footprint) -> list[str]:
    """What was not given back, in words."""
    found = []
    if after.in_flight or after.slots_at_work:
        found.append(f"{after.in_flight} requests in flight and {after.slots_at_work} slots at work after {DRAIN_S} s")
    for who in ("daemon", "engine"):
        grown = getattr(after, f"{who}_files") - getattr(before, f"{who}_files")
        if grown > 8:
            found.append(f"the {who} holds {grown} more open files than before")
    if after.daemon_rss_bytes - before.daemon_rss_bytes > DAEMON_GROWTH_BYTES:
        found.append(f"the daemon grew by {(after.daemon_rss_bytes - before.daemon_rss_bytes) >> 20} MiB")
    if after.engine_rss_bytes - before.engine_rss_bytes > ENGINE_GROWTH_BYTES:
        found.append(f"the engine grew by {(after.engine_rss_bytes - before.engine_rss_bytes) >> 20} MiB")
    if after.engine_pid != before.engine_pid:
        found.append("the engine was replaced")
    return found


def percentile(values: list[float], p: int) -> float | None:
    """The value below which `p` percent of the values lie."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 1) if ordered else None


def machine() -> str:
    """What the test ran on."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--max-queue", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with own_daemon(arguments.parallel, arguments.max_queue) as daemon:
        result = asyncio.run(run(daemon, arguments.clients, arguments.requests, arguments.seed))
    result |= {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    wrong = result["outcomes"].get("lost", 0) + result["outcomes"].get("crossed", 0)
    return 1 if wrong or result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
