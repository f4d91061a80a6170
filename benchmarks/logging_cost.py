"""What logging costs: milliseconds per request, on its path and off it, and the size of the database.

Synthetic sessions of the shape of recorded agent sessions (the first turn reads 5,500 tokens, later ones a log-normal
number with median 128, answers have 108 on average, 13 turns a session) select experts by a Zipf law that is permuted
per layer and perturbed per session. Everything is written through the daemon's own code.

    python benchmarks/logging_cost.py [--sessions 1000] [--out result.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from ostinatod.engine.client import EngineClient, Sampling
from ostinatod.routing_log import reader
from ostinatod.routing_log.bookkeeping import Arrival, Bookkeeper, EngineBook, Outcome
from ostinatod.routing_log.counts import RouteCounts
from ostinatod.routing_log.database import open_for_writing
from ostinatod.routing_log.operations import add_request
from ostinatod.routing_log.records import RequestRecord
from ostinatod.routing_log.writer import RoutingLog
from ostinatod.transactions import immediate

SEED = 7
TURNS = 13
FIRST_TOKENS = 5500
NEW_TOKENS_MEDIAN = 128
NEW_TOKENS_SIGMA = 1.0
OUTPUT_TOKENS = 108
ZIPF = 0.8
SESSION_NOISE = 0.5
KEPT_BYTES = 8 * 1024**3
TIMED = 200
"""Requests whose cost is measured one by one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's MoE layers."""

    name: str
    layers: int
    experts: int
    k: int


SHAPES = (
    Shape("8 layers x 64 experts, top 8 (the bundled model)", 8, 64, 8),
    Shape("48 layers x 128 experts, top 8 (30B-A3B class)", 48, 128, 8),
    Shape("43 layers x 256 experts, top 6 (V4-Flash class)", 43, 256, 6),
)


class Workload:
    """Draws sessions of one model."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._random = np.random.default_rng(SEED)
        law = 1.0 / np.arange(1, shape.experts + 1) ** ZIPF
        self._popularity = np.array([self._random.permutation(law) for _ in range(shape.layers)])

    def requests(self, sessions: int) -> Iterator[RequestRecord]:
        """The requests of that many sessions, one session after the other."""
        number = 0
        for session in range(sessions):
            noise = self._random.lognormal(0.0, SESSION_NOISE, self._popularity.shape)
            shares = self._popularity * noise
            shares /= shares.sum(axis=1, keepdims=True)
            context = 0
            for turn in range(1, 1 + max(2, int(self._random.poisson(TURNS)))):
                drawn = int(self._random.lognormal(np.log(NEW_TOKENS_MEDIAN), NEW_TOKENS_SIGMA))
                new = FIRST_TOKENS if turn == 1 else max(1, drawn)
                output = 1 + int(self._random.geometric(1 / OUTPUT_TOKENS))
                counts = RouteCounts(
                    tuple(range(self.shape.layers)), self._routes(shares, new), self._routes(shares, output)
                )
                number += 1
                yield _record(number, session, turn, counts, new, context, output)
                context += new + output

    def _routes(self, shares: NDArray[np.float64], tokens: int) -> NDArray[np.int64]:
        return self._random.multinomial(tokens * self.shape.k, shares).astype(np.int64)


def _record(
    number: int, session: int, turn: int, counts: RouteCounts, new: int, reused: int, output: int
) -> RequestRecord:
    return RequestRecord(
        id=f"req-{number:020x}",
        fingerprint="ab" * 32,
        session=f"{session:016x}",
        source="header",
        turn=turn,
        kind="first" if turn == 1 else "after_tool",
        dialect="anthropic",
        status="ok",
        started_at=1_700_000_000.0 + 20 * number,
        queue_ms=0.412,
        ttft_ms=812.345 + number % 97,
        tpot_ms=18.123 + number % 13,
        total_ms=3012.345,
        new_tokens=new,
        reused_tokens=reused,
        output_tokens=output,
        prefix_break=None,
        generation=3,
        path="split",
        uploaded_bytes=0,
        counts=counts,
        cold_routes=1234,
        coverage_prefill=0.81234,
        coverage_decode=0.83456,
    )


def database_size(shape: Shape, sessions: int, directory: Path) -> dict[str, Any]:
    """The database after `sessions` sessions, and the time to write a request by itself."""
    file = directory / f"{shape.layers}x{shape.experts}.db"
    db = open_for_writing(file)
    alone: list[tuple[float, float]] = []
    pending: list[RequestRecord] = []
    requests = 0

    def write(records: list[RequestRecord]) -> None:
        with immediate(db):
            for record in records:
                add_request(db, record)

    for record in Workload(shape).requests(sessions):
        requests += 1
        if requests <= TIMED:
            alone.append(_timed(partial(write, [record])))
            continue
        pending.append(record)
        if len(pending) == 100:
            write(pending)
            pending.clear()
    write(pending)
    db.close()
    used, _ = reader.database_bytes(file)
    read_ms, _ = _timed(lambda: reader.sessions("ab" * 32, file))
    return {
        "shape": shape.name,
        "sessions": sessions,
        "requests": requests,
        "database_bytes": used,
        "bytes_per_session": round(used / sessions),
        "write_one_request": _spread(alone),
        "planner_reads_all_sessions_ms": round(read_ms, 1),
    }


def request_cost(shape: Shape, directory: Path) -> dict[str, Any]:
    """Milliseconds of each step of logging one request, off its path."""
    log = RoutingLog(directory / "cost.db", KEPT_BYTES)
    log.start()
    books = Bookkeeper(log, b"s" * 32, b"m" * 32)
    engine = EngineBook()
    layers = list(range(shape.layers))
    total = RouteCounts(tuple(layers), *(np.zeros((2, shape.layers, shape.experts), np.int64)))
    steps: dict[str, list[tuple[float, float]]] = {"identify": [], "settle": [], "read_counters": []}
    sizes: list[int] = []
    with _counters_server(directory / "engine.sock") as answer:
        for number, record in enumerate(Workload(shape).requests(20)):
            if number >= TIMED or record.counts is None:
                break
            total = total.plus(record.counts)
            told = {"layers": layers, "n_experts": shape.experts}
            counters = {"prefill": total.prefill.tolist(), "decode": total.decode.tolist()}
            answer[0] = json.dumps({**told, **counters}, separators=(",", ":")).encode()
            sizes.append(len(answer[0]))
            steps["read_counters"].append(asyncio.run(_fetch(directory / "engine.sock")))
            arrival = Arrival(record.id, record.fingerprint, shape.k, "openai", _body(record), {}, True, time.time())
            steps["identify"].append(_timed(partial(books.identify, arrival)))
            turn = books.identify(arrival)
            outcome = Outcome("ok", 3000.0, 1.0, 800.0, 6000, 5900, 100, 700.0, 2000.0)
            steps["settle"].append(_timed(partial(books.settle, arrival, turn, outcome, engine, answer[0], None)))
            log.flush()
    log.close()
    return {
        "shape": shape.name,
        "counters_answer_bytes": max(sizes),
        "request_body_bytes": _body_bytes(),
        **{step: _spread(values) for step, values in steps.items()},
    }


def on_path_cost(directory: Path) -> dict[str, Any]:
    """Milliseconds that the event loop spends on a request's own path: the recorder's four calls."""
    from ostinatod.api.observer import Exchange, Figures
    from ostinatod.api.recorder import RequestRecorder
    from ostinatod.loaded import Lease
    from ostinatod.models import bundled_file
    from ostinatod.store import ModelStore

    record = ModelStore(directory / "models.db", directory / "hub", "http://127.0.0.1:9").resolve("tiny")
    figures = Figures(6000, 5900, 100, "stop", 700.0, 2000.0)
    spent: list[tuple[float, float]] = []

    async def measure() -> None:
        recorder = RequestRecorder(RoutingLog(directory / "path.db", KEPT_BYTES), directory / "path.key")
        client = EngineClient(directory / "nobody.sock")

        async def death() -> Any:
            raise AssertionError

        lease = Lease(record, client, 65536, Sampling(), death)
        body = _body(None)
        for number in range(TIMED):
            exchange = Exchange(
                id=f"req-{number:020x}",
                record=record,
                dialect="openai",
                path="/v1/chat/completions",
                request=body,
                headers={"x-session-id": "s"},
                stream=True,
                started_at_s=time.time(),
            )
            started, worked = time.perf_counter(), time.thread_time()
            recorder.queued(exchange)
            await recorder.admitted(exchange, lease)
            recorder.first_byte(exchange)
            recorder.finished(exchange, figures)
            spent.append(((time.perf_counter() - started) * 1000, (time.thread_time() - worked) * 1000))
            await asyncio.sleep(0.02)
        await recorder.close()
        await client.aclose()

    assert bundled_file().exists()
    asyncio.run(measure())
    return {"calls": "queued, admitted, first_byte, finished", **_spread(spent)}


def _body(record: RequestRecord | None) -> dict[str, Any]:
    """An agent's request: 24 tools of 2.6 kB and a conversation that grows by a kB and a half a turn."""
    tool = {"type": "function", "function": {"name": "tool", "description": "d" * 2400, "parameters": {"a": 1}}}
    turns = (record.turn or 1) if record else TURNS
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s" * 12_000}, {"role": "user", "content": "u"}]
    for number in range(turns - 1):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "tool", "arguments": '{"a": 1}'}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"{number} " + "o" * 1500},
        ]
    return {"messages": messages, "tools": [tool] * 24, "prompt_cache_key": record.session if record else "s"}


def _body_bytes() -> int:
    return len(json.dumps(_body(None)))


async def _fetch(socket: Path) -> tuple[float, float]:
    client = EngineClient(socket)
    await client.routes()
    started, worked = time.perf_counter(), time.thread_time()
    await client.routes()
    elapsed = (time.perf_counter() - started) * 1000, (time.thread_time() - worked) * 1000
    await client.aclose()
    return elapsed


@contextmanager
def _counters_server(socket: Path) -> Iterator[list[bytes]]:
    """An engine that answers everything with the first item of the list."""
    answer = [b""]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer[0])))
            self.end_headers()
            self.wfile.write(answer[0])

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingMixIn, UnixStreamServer):
        daemon_threads = True

    socket.unlink(missing_ok=True)
    with Server(str(socket), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield answer
        server.shutdown()


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds of wall clock, and of this thread's time on a core: the latter does not feel other programs."""
    started, worked = time.perf_counter(), time.thread_time()
    work()
    return (time.perf_counter() - started) * 1000, (time.thread_time() - worked) * 1000


def _spread(values: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    found = np.percentile(values, (50, 90, 99), axis=0).round(3).T.tolist()
    return {
        clock: dict(zip(("p50", "p90", "p99"), row, strict=True))
        for clock, row in zip(("wall_ms", "core_ms"), found, strict=True)
    }


def main() -> int:
    """Run everything, print it, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load_before = psutil.getloadavg()
    with tempfile.TemporaryDirectory(prefix="ost-") as name:
        directory = Path(name)
        result: dict[str, Any] = {
            "what": "cost of the routing log per request, and size of its database",
            "date": date.today().isoformat(),
            "machine": f"{psutil.cpu_count()} cores, {platform.machine()}, {_cpu_name()}",
            "load_average": [round(value, 1) for value in load_before],
            "python": platform.python_version(),
            "command": f"python benchmarks/logging_cost.py --sessions {options.sessions}",
            "shapes": [asdict(shape) for shape in SHAPES],
            "on_the_request_path": on_path_cost(directory),
            "off_the_request_path": [request_cost(shape, directory) for shape in SHAPES],
            "database": [database_size(shape, options.sessions, directory) for shape in SHAPES],
        }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    sys.exit(main())
