"""The process that measures one row of a table: one model, one setting. `python benchmarks/measured_row.py JOB.json`.

It loads the model, evaluates fixed tokens for comparison, and behind contexts of several depths times single tokens and
prefills. The result is written after every depth, and what the time does not suffice for is left out.

Contexts are read once, by the row that counts routes, and restored in the others: reading 32,768 tokens takes some
settings longer than everything that is timed. What is read behind a context is the same in all rows.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from device_memory import used_bytes
from numpy.typing import NDArray
from session_text import SessionText

from ostinatod.bench.placed_model import PASS_TOKENS, EngineLog, PlacedModel, passes
from ostinatod.bench.settings import from_json
from ostinatod.bindings import DeviceStatus, load_bindings
from ostinatod.errors import EngineError

PROFILE_PIECE = 4096
"""Text that says which experts are hot is read in pieces of so many tokens."""
CHECK_PREFILL = 249
CHECK_DECODE = 32
UNTIMED_STEPS = 16
THREAD_TRIAL_STEPS = 24
SPARE_TOKENS = 512
"""Of the context, beyond the deepest request."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a row needs.

    contexts       folder for the contexts and the counted routes that rows share
    counts         whether this row reads the contexts and counts: the first one does
    hot            (L, E) file of the experts that are hot, for kind "ostinato"
    sessions       see `session_text.SessionText`
    depths         of the context, tokens
    lengths        new tokens of the prefills
    repeats        prefills of each length after one that is not counted; 0: the only one is
    profile_tokens text whose routes say which experts are hot
    decode_tokens  steps that are timed behind each depth, and in each text
    texts          different contexts behind which is decoded; prefills are timed behind the first one
    new_tokens     that are read before decoding, as in a turn; borrowed memory is returned for them
    threads_tried  stock: threads of which the quickest in decode are used
    until          unix time at which to stop
    """

    libraries: str
    model: str
    setting: Mapping[str, Any]
    out: str
    contexts: str
    counts: bool = False
    hot: str | None = None
    sessions: str | None = None
    on_gpu: bool = True
    depths: Sequence[int] = (8192,)
    lengths: Sequence[int] = ()
    repeats: int = 1
    profile_tokens: int = 32768
    decode_tokens: int = 128
    texts: int = 1
    new_tokens: int = 0
    threads_tried: Sequence[int] = ()
    until: float = float("inf")

    def write(self, file: Path) -> None:
        """For the process."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def context_tokens(self) -> int:
        """Of the largest context."""
        decoded = self.new_tokens + UNTIMED_STEPS + max(self.decode_tokens, THREAD_TRIAL_STEPS)
        deepest = max(self.depths) + max([*self.lengths, decoded])
        return (
            max(deepest, min(self.profile_tokens, PROFILE_PIECE) if self.counts else 0, CHECK_PREFILL + CHECK_DECODE)
            + SPARE_TOKENS
        )


class OutOfTime(Exception):
    """The row has to end."""


class Row:
    """The measurements of one row, in the order in which they are made. `result` is what goes to the file."""

    def __init__(self, job: Job, model: PlacedModel, log: EngineLog) -> None:
        self.job, self.model, self.log = job, model, log
        self.text = SessionText(Path(job.sessions) if job.sessions else None, "held-out", model.n_vocab)
        self.counted: dict[str, NDArray[Any]] = {}
        self.steps_ms: dict[int, list[float]] = {}
        self.result: dict[str, Any] = {
            "setting": job.setting,
            "load_s": round(model.load_s, 2),
            "gpu_bytes_loaded": used_bytes(model.bindings),
            "depths": {},
        }

    def measure(self) -> None:
        """All of it, as far as the time goes."""
        try:
            if self.job.counts:
                self._profile()
            self._check()
            for number in range(self.job.texts):
                self._text(number)
        except OutOfTime:
            self.result["cut"] = True
        finally:
            self._write()

    def _profile(self) -> None:
        """Routes of development text, whose hottest experts will be hot."""
        known = SessionText(Path(self.job.sessions) if self.job.sessions else None, "development", self.model.n_vocab)
        for piece in passes(known.at(0, self.job.profile_tokens), PROFILE_PIECE):
            self.model.read(piece)
            self.model.rewind(0)
        self.counted["profile"] = self._routes("prefill")

    def _check(self) -> None:
        """Logits of fixed tokens, beside OUT.json."""
        tokens = self.text.at(0, CHECK_PREFILL + CHECK_DECODE)
        self.model.decode(tokens[:CHECK_PREFILL])
        rows = [self.model.logits()]
        for token in tokens[CHECK_PREFILL:]:
            self.model.decode([token])
            rows.append(self.model.logits())
        np.save(Path(self.job.out).with_suffix(".npy"), np.stack(rows))
        self.model.rewind(0)

    def _text(self, number: int) -> None:
        """The context `number`, whose text goes on behind every depth as it went on in the session."""
        deepest = max(self.job.depths)
        start = number * (deepest + SPARE_TOKENS)
        file = Path(self.job.contexts, f"context-{number}.bin")
        self.model.rewind(0)
        if file.exists() and not self.job.counts:
            self.model.restore_context(file)
        else:
            for part in passes(self.text.at(start, deepest), PASS_TOKENS):
                self._require_time(0.0)
                self.model.decode(part)
            if self.job.counts:
                self.model.keep_context(file)
        if number == 0 and self.job.threads_tried:
            self._try_threads(start + deepest)
        # From the deepest one on: a context can be cut and not grown again.
        for depth in sorted(self.job.depths, reverse=True):
            self.model.rewind(depth)
            self._decode(depth, start + depth)
            if number == 0:
                for length in self.job.lengths:
                    self._prefill(depth, length, start + depth)
            self._write()

    def _try_threads(self, position: int) -> None:
        depth, tried = max(self.job.depths), {}
        for threads in self.job.threads_tried:
            self.model.use_threads(threads)
            tried[threads] = statistics.median(self._steps(position, THREAD_TRIAL_STEPS))
            self.model.rewind(depth)
        best = min(tried, key=lambda threads: tried[threads])
        self.model.use_threads(best)
        self.result["threads_tried"] = {str(threads): round(ms, 4) for threads, ms in tried.items()}
        self.result["threads"] = best

    def _decode(self, depth: int, position: int) -> None:
        """Steps behind a turn's new tokens; `position` in the text."""
        found = self.result["depths"].setdefault(str(depth), {"texts": []})
        steps = self.steps_ms.setdefault(depth, [])
        self.model.read(self.text.at(position, self.job.new_tokens))
        position += self.job.new_tokens
        self._steps(position, UNTIMED_STEPS)
        before = self.model.devices()
        timed = self._steps(position + UNTIMED_STEPS, self.job.decode_tokens)
        found["texts"].append(
            {
                "decode_ms": round(statistics.median(timed), 4),
                "per_step": changed(before, self.model.devices(), len(timed)),
                "likely_token": int(np.argmax(self.model.logits())),
            }
        )
        steps.extend(timed)
        found.update(pooled(steps, found["texts"]))
        self.model.rewind(depth)

    def _prefill(self, depth: int, length: int, position: int) -> None:
        """Repeats of one length, the first of which is not counted where there are others."""
        found = self.result["depths"][str(depth)]
        times: list[float] = []
        routes: list[NDArray[np.uint64]] = []
        before = self.model.devices()
        for repeat in range(self.job.repeats + 1):
            self._require_time(1.5 * times[-1] / 1000 if times else 0.0)
            self.model.rewind(depth)
            routes_before = self._routes("prefill")
            times.append(self.model.read(self.text.at(position + repeat * length, length)))
            routes.append(self._routes("prefill") - routes_before)
        found.setdefault("prefill_ms", {})[str(length)] = round(statistics.median(times[1:] or times), 2)
        found.setdefault("prefill_sides", {})[str(length)] = changed(before, self.model.devices(), len(times))
        if self.job.counts:
            self.counted[f"prefill/{depth}/{length}"] = np.stack(routes[1:] or routes)
        self.model.rewind(depth)

    def _steps(self, position: int, count: int) -> list[float]:
        times = []
        for token in self.text.at(position, count):
            self._require_time(0.0)
            times.append(self.model.decode([token]))
        return times

    def _routes(self, phase: str) -> NDArray[np.uint64]:
        """(L, E) so far in the row that counts, nothing in the others."""
        if not self.job.counts:
            return np.zeros((0, 0), np.uint64)
        counts = self.model.bindings.route_counts(self.model.handle)
        found: NDArray[np.uint64] = getattr(counts, phase)
        return found

    def _require_time(self, seconds: float) -> None:
        if time.time() + seconds > self.job.until:
            raise OutOfTime

    def _write(self) -> None:
        """What is known so far. llama.cpp's pools keep what computing took, so what is used now is the peak."""
        log = self.log.text
        self.result["gpu_bytes_used"] = used_bytes(self.model.bindings)
        self.result["devices"] = [values_of(device) for device in self.model.devices()]
        self.result["upload_costs"] = [[asdict(costs) for costs in device] for device in self.model.upload_costs()]
        self.result["splits"] = re.findall(r"splits = ([\d /]*\d)", log)[-1:] or None
        self.result["memory"] = re.findall(r"(\w+) +(model|KV|compute) buffer size = +([\d.]+) MiB", log)
        self.result["speeds"] = re.findall(r"measure_kind: (.*)", log)
        if self.counted:
            counted: dict[str, Any] = dict(self.counted)
            np.savez(Path(self.job.contexts, "counted.npz"), **counted)
        temporary = Path(self.job.out).with_suffix(".tmp")
        temporary.write_text(json.dumps(self.result), encoding="utf-8")
        os.replace(temporary, self.job.out)


def values_of(device: DeviceStatus) -> dict[str, Any]:
    """Whatever the bindings know of a device."""
    return {item.name: getattr(device, item.name) for item in fields(device)}


def changed(before: Sequence[DeviceStatus], after: Sequence[DeviceStatus], times: int) -> list[dict[str, float]]:
    """By how much each counter of each device has grown, a time; values that stand for a state change by 0."""
    return [
        {
            name: (value - values_of(old)[name]) / times
            for name, value in values_of(new).items()
            if isinstance(value, int) and not isinstance(value, bool)
        }
        for old, new in zip(before, after, strict=True)
    ]


def pooled(steps_ms: Sequence[float], texts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Milliseconds of a step over all texts, and what every counter grew in a step, over all devices."""
    low, high = np.percentile(steps_ms, [10, 90])
    devices = [device for text in texts for device in text["per_step"]]
    return {
        "steps": len(steps_ms),
        "decode_ms": round(statistics.median(steps_ms), 4),
        "decode_ms_mean": round(statistics.fmean(steps_ms), 4),
        "decode_ms_spread": [round(float(low), 4), round(float(high), 4)],
        "per_step": {name: sum(device[name] for device in devices) / len(texts) for name in (devices or [{}])[0]},
    }


def main(job_file: str) -> int:
    """The program; returns the exit code."""
    job = Job(**json.loads(Path(job_file).read_text(encoding="utf-8")))
    setting = from_json(job.setting)
    bindings = load_bindings(Path(job.libraries))
    core: Any = bindings.llama_cpp.llama_cpp
    log = EngineLog(core)
    core.llama_backend_init()
    try:
        hot = np.load(job.hot) if job.hot else None
        model = PlacedModel(
            bindings, Path(job.model), setting, n_ctx=job.context_tokens, on_gpu=job.on_gpu, hot=hot, counted=job.counts
        )
        Row(job, model, log).measure()
    except EngineError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code
    except BaseException:
        lines = log.text.splitlines(keepends=True)
        sys.stderr.write("".join(line for line in lines if "llama_graph_n_input_tensors" not in line)[-3000:])
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
