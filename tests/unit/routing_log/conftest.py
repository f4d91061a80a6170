from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod.routing_log.counts import RouteCounts
from ostinatod.routing_log.records import RequestRecord
from ostinatod.routing_log.writer import RoutingLog

MODEL = "ab" * 32
CAP_BYTES = 64 * 1024**2

OpenLog = Callable[..., RoutingLog]


def counts(prefill: int = 0, decode: int = 0, *, layers: int = 2, experts: int = 4) -> RouteCounts:
    """Every route of a phase on expert 1 of every layer."""
    filled = np.zeros((2, layers, experts), np.int64)
    filled[0, :, 1], filled[1, :, 1] = prefill, decode
    return RouteCounts(tuple(range(layers)), filled[0], filled[1])


def request(number: int, **changes: Any) -> RequestRecord:
    """The request with that number: it began at that second, took one more, and read 10 and wrote 5 tokens."""
    fields: dict[str, Any] = {
        "id": f"req-{number:012x}",
        "fingerprint": MODEL,
        "session": "5e55104e00000001",
        "source": "header",
        "turn": number,
        "kind": "after_tool",
        "dialect": "openai",
        "status": "ok",
        "started_at": float(number),
        "queue_ms": 1.0,
        "ttft_ms": 100.0,
        "tpot_ms": 10.0,
        "total_ms": 1000.0,
        "new_tokens": 10,
        "reused_tokens": 90,
        "output_tokens": 5,
        "prefix_break": None,
        "generation": None,
        "path": None,
        "uploaded_bytes": None,
        "counts": counts(20, 10),
        "cold_routes": None,
        "coverage_prefill": None,
        "coverage_decode": None,
    }
    return RequestRecord(**{**fields, **changes})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "routes.db"


@pytest.fixture
def open_log(file: Path) -> Iterator[OpenLog]:
    """Starts logs on one file; they are closed when the test ends."""
    logs: list[RoutingLog] = []

    def start(cap_bytes: int = CAP_BYTES, **settings: Any) -> RoutingLog:
        logs.append(RoutingLog(file, cap_bytes, **settings))
        logs[-1].start()
        return logs[-1]

    yield start
    for log in logs:
        log.close()


@pytest.fixture
def log(open_log: OpenLog) -> RoutingLog:
    return open_log()
