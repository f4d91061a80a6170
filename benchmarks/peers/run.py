"""Compare engines on one model file: the best setting of each in the same GPU memory.

    python -m benchmarks.peers.run --model MODEL.gguf --budget-gib 24 --out RESULT.json \\
        --llama-cpp FOLDER_OF_LIBLLAMA --ik FOLDER_OF_ik_llama_cpp --site SITE_PACKAGES_WITH_FREETOKEN

Every setting runs in a process of its own with a time limit. RESULT.json has every setting that was tried, with its
figures or the engine's own error; the table printed at the end has each engine's fastest setting within the memory.
With --sessions that setting then replays recorded sessions, the turns that replay.py times with the same options; what
--replayed has, its turns.jsonl, is compared with them (conclusion.py). With --first every engine runs so many settings
before any runs more, the first one with the sessions in one process; one that turns out faster replays them anew.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.conclusion import concluded, markdown, words_of
from benchmarks.peers.ik import PACKAGE
from benchmarks.peers.measure import peer_named
from benchmarks.peers.protocol import ModelShape, Options, Peer, Work
from benchmarks.peers.search import Outcome, Request, best, search
from benchmarks.peers.sessions import Replayed, held_out_sessions
from benchmarks.peers.stock import LIBRARIES
from benchmarks.this_machine import machine
from ostinatod.bench.sessions import Limits, write_sessions
from ostinatod.profiles.gguf_header import read_header

PEERS = ("stock", "ik", "freetoken", "ktransformers")
_ROOT = Path(__file__).parents[2]
_ERROR_CHARACTERS = 3000
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(?:up|down|gate|gate_up)_exps\.weight")


def shape_of(model: Path) -> tuple[ModelShape, int]:
    """What the searches need of a GGUF file, and the size of its vocabulary."""
    header = read_header(model)
    layers: dict[int, int] = {}
    experts = vocabulary = 0
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight":
            vocabulary = tensor.shape[-1]
        if found := _EXPERTS.fullmatch(tensor.name):
            layer = int(found[1])
            layers[layer] = layers.get(layer, 0) + tensor.nbytes
            experts = max(experts, tensor.shape[-1])
    if not layers or not vocabulary:
        raise SystemExit(f"expected experts and an embedding in {model}, found none")
    other = sum(tensor.nbytes for tensor in header.tensors) - sum(layers.values())
    return ModelShape(len(layers), max(layers.values()), experts, other), vocabulary


def run_setting(
    module: str, peer: Peer, work: Work, options: Options, timeout_s: float, environment: dict[str, str]
) -> Outcome:
    """One setting in a process group of its own, which is ended with everything it started.

    What it had written when it failed is kept beside the error.
    """
    environment = {**environment, **peer.environment}
    # Behind what the environment names: a checkout has not all modules where they are imported from.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), str(_ROOT))))
    for name, value in options.items():
        if name.startswith("environment."):
            environment[name.removeprefix("environment.")] = str(value)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        files = {name: Path(directory, f"{name}.json") for name in ("work", "options", "out")}
        files["work"].write_text(json.dumps(work.as_json()), encoding="utf-8")
        files["options"].write_text(json.dumps(options), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.peers.measure", module, *map(str, files.values())]
        log = Path(directory, "log")
        with log.open("wb") as stream:
            child = subprocess.Popen(
                command, cwd=directory, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )
            late = ""
            try:
                child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                late = f"not done after {timeout_s:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        wall_s = round(time.monotonic() - started, 1)
        figures = json.loads(files["out"].read_text(encoding="utf-8")) if files["out"].exists() else None
        failure = ""
        if late or child.returncode != 0:
            said = log.read_text(encoding="utf-8", errors="replace")[-_ERROR_CHARACTERS:].strip()
            failure = f"{said}\n{late}".strip() if late else f"exit status {child.returncode}\n{said}".strip()
        return Outcome(peer.name, options, figures, failure, wall_s)


def line_of(outcome: Outcome, request: Request) -> str:
    """One outcome as a line."""
    settings = " ".join(f"{name}={value}" for name, value in outcome.options.items())
    if outcome.figures is None:
        last = outcome.error.splitlines()[-1] if outcome.error else "no message"
        return f"{outcome.peer}: {last}  [{settings}] ({outcome.wall_s} s)"
    figures = outcome.figures
    used = "?" if figures["gpu_bytes"] is None else f"{figures['gpu_bytes'] / 2**30:.2f}"
    prefill = " ".join(f"{length}:{ms:.0f}" for length, ms in figures["prefill_ms"].items())
    return (
        f"{outcome.peer}: request {request.milliseconds(figures):.0f} ms, decode {figures['decode_ms']:.2f}, "
        f"prefill {prefill}, GPU {used} GiB  [{settings}] ({outcome.wall_s} s)"
    )


def last_words(error: str, lines: int = 12) -> str:
    """The end of an engine's error, indented."""
    return "".join(f"    {line[:300]}\n" for line in error.splitlines()[-lines:])


def table(results: dict[str, list[Outcome]], request: Request, budget_bytes: int, lengths: tuple[int, ...]) -> str:
    """The fastest setting of each engine as a Markdown table; milliseconds."""
    head = ["engine", f"request ({request.new_tokens} new, {request.output_tokens} out)", "decode"]
    rows = [[*head, *(f"{n} new" for n in lengths), "GPU GiB", "setting"]]
    for name, outcomes in results.items():
        fastest = best(outcomes, request, budget_bytes)
        if fastest is None or fastest.figures is None:
            said = next((o.error for o in outcomes if o.error), "nothing ran within the memory")
            rows.append([name, "did not run", *["" for _ in range(len(lengths) + 2)], said.splitlines()[-1]])
            continue
        figures = fastest.figures
        used = "" if figures["gpu_bytes"] is None else f"{figures['gpu_bytes'] / 2**30:.2f}"
        rows.append(
            [
                name,
                f"{request.milliseconds(figures):,.0f}",
                f"{figures['decode_ms']:.2f}",
                *(f"{figures['prefill_ms'][str(n)]:,.0f}" for n in lengths),
                used,
                " ".join(f"{key}={value}" for key, value in fastest.options.items()),
            ]
        )
    return markdown(rows)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as it is written."""
    return {
        "options": outcome.options,
        "figures": outcome.figures,
        "error": outcome.error,
        "wall_s": outcome.wall_s,
    }


def compare(
    peers: dict[str, Peer],
    shape: ModelShape,
    budget_bytes: int,
    request: Request,
    run: Callable[[str, Options], Outcome],
    max_runs: int,
    seconds: float,
    report: Callable[[dict[str, list[Outcome]], Outcome], None],
    then: Callable[[str, Outcome], None] | None = None,
    then_s: float = 0.0,
    first: int | None = None,
    starts: Mapping[str, Options] | None = None,
) -> dict[str, list[Outcome]]:
    """Searches each peer in turn; none gets more than its share of the time that is left.

    then    what is done with the module of an engine and its best setting
    then_s  seconds of the share that are left to it
    first   settings that each runs before any runs more; the others follow one by one, all engines in turn
    starts  by module, what an engine is started with in place of the least memory
    """
    deadline = time.monotonic() + seconds
    results: dict[str, list[Outcome]] = {peer.name: [] for peer in peers.values()}
    searches = {
        module: search(
            peer, shape, budget_bytes, request, functools.partial(run, module), max_runs, (starts or {}).get(module)
        )
        for module, peer in peers.items()
    }
    told: dict[str, Outcome] = {}

    def advance(module: str) -> bool:
        """Run one more setting of an engine; whether there was one."""
        outcome = next(searches[module], None)
        if outcome is None:
            return False
        results[outcome.peer].append(outcome)
        report(results, outcome)
        return True

    def tell(module: str) -> None:
        fastest = best(results[peers[module].name], request, budget_bytes)
        if then and fastest and fastest is not told.get(module):
            told[module] = fastest
            then(module, fastest)

    for i, module in enumerate(peers):
        until = time.monotonic() + (deadline - time.monotonic()) / (len(peers) - i) - then_s
        for _ in range(max_runs if first is None else first):
            if not advance(module) or time.monotonic() > until:
                break
        tell(module)
    left = [] if first is None else list(peers)
    while left and time.monotonic() < deadline - then_s:
        module = left.pop(0)
        if advance(module):
            tell(module)
            left.append(module)
    return results


def keep_longest(replays: list[Replayed], new: Replayed) -> None:
    """Add a replay in place of the engine's earlier one, unless that came further before its time ran out."""
    before = next((item for item in replays if item.engine == new.engine), None)
    if before is None:
        replays.append(new)
    elif new.done() >= before.done():
        replays[replays.index(before)] = new


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main() -> int:
    """Command line; returns the exit code: 1 when an engine that was asked for did not run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-gib", type=float, required=True, help="GPU memory that each engine may use")
    parser.add_argument("--peers", default=",".join(PEERS), help="which, in this order")
    parser.add_argument("--llama-cpp", type=Path, help="folder of the built libllama.so")
    parser.add_argument("--ik", type=Path, help="folder that holds ik_llama_cpp (ik_build.py)")
    parser.add_argument("--site", type=Path, help="folder of installed wheels, for FreeToken's processes alone")
    parser.add_argument("--freetoken-kernels", type=Path, help="what freetoken_kernels.py compiled")
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--lengths", type=_numbers, default=(64, 128, 249, 511, 1024, 2048))
    parser.add_argument("--decode-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--request", type=_numbers, default=(511, 100), help="new and output tokens that decide")
    parser.add_argument("--runs", type=int, default=16, help="settings of each engine at most")
    parser.add_argument("--first", type=int, help="settings of each before any engine runs more of them")
    parser.add_argument("--starts", type=Path, help="JSON: by module, options known to be good, which are run first")
    parser.add_argument("--run-seconds", type=float, default=150.0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="for all engines together")
    parser.add_argument("--sessions", type=Path, help="a trace file whose held-out sessions are replayed")
    parser.add_argument("--development", type=int, default=3, help="sessions that are not held out, as in replay.py")
    parser.add_argument("--held-out", type=int, default=6)
    parser.add_argument("--turns", type=int, default=4, help="of each session")
    parser.add_argument("--max-tokens-per-session", type=int, default=16384)
    parser.add_argument("--replay-seconds", type=float, default=60.0, help="for the sessions of one engine")
    parser.add_argument("--replayed", type=Path, help="turns.jsonl of replay.py")
    a = parser.parse_args()

    ends_at = time.monotonic() + a.seconds
    shape, vocabulary = shape_of(a.model)
    work = Work(
        model=str(a.model.resolve()),
        depth=a.depth,
        lengths=a.lengths,
        decode_tokens=a.decode_tokens,
        repeats=a.repeats,
        threads=a.threads,
        vocabulary=vocabulary,
    )
    request = Request(*a.request)
    if request.new_tokens not in work.lengths:
        raise SystemExit(f"expected {request.new_tokens} of --request among --lengths, found {work.lengths}")
    budget_bytes = round(a.budget_gib * 2**30)
    environment = dict(os.environ)
    if a.llama_cpp:
        environment[LIBRARIES] = str(a.llama_cpp.resolve())
    if a.ik:
        environment[PACKAGE] = str(a.ik.resolve())
    if a.freetoken_kernels:
        environment["FREETOKEN_KERNEL_CACHE_DIR"] = str(a.freetoken_kernels.resolve())

    def start(module: str, options: Options, work: Work, seconds: float) -> Outcome:
        own = dict(environment)
        if a.site and module in ("freetoken", "ktransformers"):
            own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(a.site.resolve()), own.get("PYTHONPATH"))))
        # However long a setting may take, what the others have measured must be told in time.
        limit_s = min(seconds, max(1.0, ends_at - time.monotonic()))
        return run_setting(module, peers[module], work, options, limit_s, own)

    replays: list[Replayed] = []
    results: dict[str, list[Outcome]] = {}
    command = " ".join(["python", "-m", "benchmarks.peers.run", *sys.argv[1:]])
    facts = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "command": command}

    def write() -> None:
        document: dict[str, Any] = {
            **facts,
            "work": work.as_json(),
            "budget_bytes": budget_bytes,
            "request": {"new_tokens": request.new_tokens, "output_tokens": request.output_tokens},
            "peers": {name: [as_json(o) for o in outcomes] for name, outcomes in results.items()},
            "replays": {item.engine: item.as_json() for item in replays},
        }
        if a.sessions and (found := concluded(replays, a.replayed)):
            document["comparison"] = found.as_json()
        a.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def report(found: dict[str, list[Outcome]], outcome: Outcome) -> None:
        print(line_of(outcome, request) + "\n" + last_words(outcome.error), end="", flush=True)
        results.update(found)
        write()

    peers = {module: peer_named(module) for module in a.peers.split(",")}
    with tempfile.TemporaryDirectory() as directory:
        replaying = work
        if a.sessions:
            limits = Limits(a.turns, a.max_tokens_per_session)
            sessions = held_out_sessions(a.model, vocabulary, a.sessions, a.development, a.held_out, limits)
            file = Path(directory, "sessions.json")
            write_sessions(file, sessions)
            longest = max(session.tokens for session in sessions)
            replaying = dataclasses.replace(work, sessions=str(file), session_tokens=longest)
        begun: set[str] = set()

        def run(module: str, options: Options) -> Outcome:
            if module in begun:
                return start(module, options, work, a.run_seconds)
            begun.add(module)
            seconds = a.run_seconds + peers[module].first_s
            if a.first is None:
                return start(module, options, work, seconds)
            # Few settings will be run: what was loaded once replays the sessions too.
            return start(module, options, replaying, seconds + (a.replay_seconds if a.sessions else 0.0))

        def replay(module: str, fastest: Outcome) -> None:
            outcome = fastest
            if "sessions" not in (fastest.figures or {}):
                outcome = start(module, fastest.options, replaying, a.run_seconds + a.replay_seconds)
            figures = outcome.figures or {}
            turns = figures.get("sessions", {})
            new = Replayed(fastest.peer, fastest.options, turns, outcome.error, figures.get("gpu_bytes"))
            keep_longest(replays, new)
            print(f"{fastest.peer}: {new.done()} turns replayed ({outcome.wall_s} s)", flush=True)
            if outcome is not fastest:
                print(last_words(outcome.error), end="", flush=True)
            write()

        then, then_s = (replay, a.replay_seconds) if a.sessions else (None, 0.0)
        starts = json.loads(a.starts.read_text(encoding="utf-8")) if a.starts else {}
        seconds = ends_at - time.monotonic()
        results = compare(
            peers, shape, budget_bytes, request, run, a.runs, seconds, report, then, then_s, a.first, starts
        )
    print("\n" + table(results, request, budget_bytes, work.lengths))
    if a.sessions:
        print("\n" + words_of(concluded(replays, a.replayed)))
        print("".join(f"\n{item.engine}: {item.memory()}" for item in replays))
    return 0 if all(best(outcomes, request, budget_bytes) for outcomes in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
