"""gpu_faults.py LIBRARIES MODEL FAULTS_LIBRARY OUT.json [--device cpu]: what clients of the engine see when it fails.

FAULTS_LIBRARY is made of kernels_patch/tests/faults.cpp. With half of the experts hot: the CPU branch stalls longer
than a GPU waits, in a prompt, in an answer and in the last pass of one; a decision about uploads stalls; the thread
that leads the CPU branch ends; nothing, or little, can be page-locked; the pool gets less memory than was free.
Writes one observation each, and returns 1 where an answer was wrong, nothing was answered in time, or the engine
neither went on as before nor ended, so that the daemon starts another one. A CPU has no waits in vain: there the same
faults delay answers. Run as a module.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.workers.engine_server import Answer, Device, EngineServer
from tests.e2e.workers.served import Placements

TIMEOUT_MS = 1500
STALL_MS = 2400
"""Longer than a GPU waits, and shorter than the engine then waits for its threads before it gives itself up."""
LONGEST_S = 30.0
ENDS_WITHIN_S = 10.0
"""A client that waits longer calls it hanging."""
WORDS = ("in vain", "seen by the host", "only a new engine helps")
QUESTION = "The order W3792453 was delivered. The customer wants to"
STORY = "The customer returned the shoes, and the agent has looked up the order. " * 12

Observation = dict[str, Any]


@dataclass
class Trial:
    """Engines of one model, made to fail."""

    libraries: Path
    model: Path
    faults_library: Path
    device: Device
    flags: Sequence[str]
    directory: Path
    observations: list[Observation] = field(default_factory=list)
    expected: dict[str, str] = field(default_factory=dict)
    """Answers of an engine that does not fail, by prompt."""

    @contextmanager
    def engine(self, *more: str, launcher: Sequence[str] = (), **faults: int) -> Iterator[EngineServer]:
        """An engine with faults from its start on, as kernels_patch/tests/faults.cpp names them."""
        asked = self.directory / "faults"
        asked.mkdir(exist_ok=True)
        for path in asked.iterdir():
            path.unlink()
        for fault, content in faults.items():
            self.fail(fault.replace("_", "-"), content)
        environment = {"LD_PRELOAD": str(self.faults_library), "OSTINATO_TEST_FAULTS": str(asked)}
        flags = (*self.flags, "--ostinato-timeout-ms", str(TIMEOUT_MS), "--parallel", "2", *more)
        with EngineServer(self.libraries, self.model, flags, environment, launcher=launcher) as engine:
            yield engine

    def fail(self, fault: str, content: int | str = "") -> None:
        """Ask for a fault."""
        (self.directory / "faults" / fault).write_text(str(content))

    def observe(self, what: str, engine: EngineServer, prompt: str, n_predict: int, fault: str, content: int) -> None:
        """Answers before, with and after a fault."""
        before = self.answer(engine, prompt, n_predict)
        self.fail(fault, content)
        answer = engine.complete(prompt, n_predict, LONGEST_S)
        time.sleep(max(0.0, STALL_MS / 1000 - answer.seconds) if fault != "end-worker" else 0.0)
        after = self.attempts(engine, prompt, n_predict, before.body)
        self.note(
            what,
            status=answer.status,
            body=answer.body,
            seconds=round(answer.seconds, 2),
            is_wrong=answer.status == 200 and answer.body != before.body,
            hung=answer.status == 0 and answer.seconds >= LONGEST_S,
            taken=not (self.directory / "faults" / fault).exists(),
            **after,
            log=[line for line in engine.log.splitlines() if any(word in line for word in WORDS)][-3:],
        )

    def observe_prompt(self, what: str, engine: EngineServer, fault: str) -> None:
        """Answers to a prompt that nothing has been read of, with a fault and afterwards: what remains of the pass that
        failed must not be taken for read."""
        self.answer(engine, QUESTION, 1)
        self.fail(fault, STALL_MS)
        answer = engine.complete(STORY, 6, LONGEST_S)
        time.sleep(max(0.0, STALL_MS / 1000 - answer.seconds))
        taken = self.device == "cpu" and fault == "stall-upload"
        again = engine.complete(STORY, 6, LONGEST_S)
        truth = engine.complete(STORY, 6, LONGEST_S, reuse=False)
        self.note(
            what,
            status=answer.status,
            body=answer.body,
            seconds=round(answer.seconds, 2),
            is_wrong=(answer.status == 200 and truth.status == 200 and answer.body != truth.body),
            hung=answer.status == 0 and answer.seconds >= LONGEST_S,
            taken=taken or not (self.directory / "faults" / fault).exists(),
            after=[again.status, truth.status],
            recovered=again.status == truth.status == 200 and again.body == truth.body,
            ended=ended(engine),
            texts=[again.body, truth.body],
            log=[line for line in engine.log.splitlines() if any(word in line for word in WORDS)][-3:],
        )

    def answer(self, engine: EngineServer, prompt: str, n_predict: int) -> Answer:
        """The second of two answers, which reads little of the prompt again. Raises RuntimeError without one."""
        for _ in range(2):
            answer = engine.complete(prompt, n_predict)
        if answer.status != 200:
            raise RuntimeError(f"no answer before the fault: {answer.body}")
        return answer

    def attempts(self, engine: EngineServer, prompt: str, n_predict: int, expected: str) -> Observation:
        """How the engine goes on: statuses until it gives the expected answer again, three at most."""
        statuses = []
        for _ in range(3):
            answer = engine.complete(prompt, n_predict, LONGEST_S)
            statuses.append(answer.status)
            if answer.status == 200:
                return {"after": statuses, "recovered": answer.body == expected, "ended": False}
        return {"after": statuses, "recovered": False, "ended": ended(engine)}

    def note(self, what: str, **observed: Any) -> None:
        """Keep an observation."""
        self.observations.append({"what": what, **observed})
        print(json.dumps(self.observations[-1]), flush=True)


def ended(engine: EngineServer) -> bool:
    """Whether the engine's process is through, or soon is: what ends it writes a backtrace first."""
    until = time.monotonic() + ENDS_WITHIN_S
    while engine.process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    return engine.process.poll() is not None


def while_running(trial: Trial) -> None:
    """Faults of an engine that has begun well. Each has an engine of its own, which may end."""
    with trial.engine() as engine:
        trial.expected[QUESTION] = trial.answer(engine, QUESTION, 12).body
        trial.observe("the CPU branch stalls in an answer", engine, QUESTION, 12, "stall", STALL_MS)
    with trial.engine() as engine:
        trial.observe("the CPU branch stalls in the only pass of an answer", engine, QUESTION, 1, "stall", STALL_MS)
    with trial.engine() as engine:
        trial.observe_prompt("the CPU branch stalls in a prompt", engine, "stall")
    # a pool that does not hold all experts, or there is nothing to upload
    with trial.engine("--ostinato-upload-tokens", "8", "--ostinato-pool-mib", "1") as engine:
        trial.observe_prompt("a decision about uploads stalls", engine, "stall-upload")
    if trial.device == "gpu":
        with trial.engine() as engine:
            trial.observe("the thread that leads the CPU branch ends", engine, QUESTION, 12, "end-worker", 0)


def from_the_start(trial: Trial) -> None:
    """Faults that an engine begins with, and has to live with."""
    cases: Mapping[str, Callable[[], Any]] = {
        "page-locking is refused beyond 1 MiB": lambda: trial.engine(no_pin=1 << 20),
        "page-locking is refused": lambda: trial.engine(no_pin=0),
        "no memory may be locked (ulimit -l 0)": lambda: trial.engine(
            launcher=("sh", "-c", 'ulimit -l 0; exec "$0" "$@"')
        ),
        "1 MiB may be page-locked": lambda: trial.engine("--ostinato-pin-mib", "1"),
        "the pool's memory is gone": lambda: trial.engine(no_pool=8 << 20),
    }
    for what, start in cases.items():
        begin = time.monotonic()
        try:
            with start() as engine:
                ready_s = time.monotonic() - begin
                answer = engine.complete(QUESTION, 12, LONGEST_S)
                status = engine.get("/ostinato/status").body
                words = ("refused", "page-locked", "expert pool", "stock nodes", "no memory", "fit the memory")
                trial.note(
                    what,
                    status=answer.status,
                    seconds=round(answer.seconds, 2),
                    ready_s=round(ready_s, 2),
                    same_answer=answer.body == trial.expected[QUESTION],
                    body=answer.body,
                    is_wrong=False,
                    hung=answer.seconds >= LONGEST_S,
                    recovered=answer.status == 200,
                    residency=status["residency"],
                    pool_bytes=status["pool_bytes"],
                    log=[line.strip() for line in engine.log.splitlines() if any(w in line for w in words)][-4:],
                )
        except RuntimeError as error:
            trial.note(what, status=0, body=str(error)[-1500:], is_wrong=False, hung=False, recovered=False)


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("libraries", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("faults_library", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        flags = Placements(arguments.device, arguments.model, directory).flags["half"]
        trial = Trial(
            arguments.libraries, arguments.model, arguments.faults_library, arguments.device, flags, directory
        )
        while_running(trial)
        from_the_start(trial)
    bad = [
        o["what"] for o in trial.observations if o["is_wrong"] or o["hung"] or not (o["recovered"] or o.get("ended"))
    ]
    report = {"device": arguments.device, "bad": bad, "observations": trial.observations}
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{len(trial.observations) - len(bad)} of {len(trial.observations)} as they should be; not: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
