"""bitwise.py LIBRARIES MODEL OUT.json [--device gpu] [--steps N] ...: the engine against a synchronous reference.

The same tokens, placements and routing, three times, each in a process of its own: twice as it is (on a GPU: replayed
CUDA graphs, the CPU branch beside the GPU branch), and once with nothing beside each other: no CUDA graphs, and the CPU
branch's answer waited for before the GPU branch starts. On a CPU the reference ends the graph at each of our operators.
Outputs have to be equal bit for bit. OUT.json says from which step on they are not, and by `graphs` of each run how
many CUDA graphs were captured, how many replayed, and how many passes had none, in steps of one token and of several.

What processes would choose by speeds that they measure is fixed: no uploads, a share for the link as asked, and experts
in borrowed memory as a list says that all runs share. With --record the first run borrows by itself instead, uploads
beside its steps included; what each of its steps found there is the list of the other two.

Steps are passes of one token, and now and then some of two to eight, as in verification of drafts. Run as a module.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.bindings import NEVER, Bindings, PlacementOptions, load_bindings
from tests.e2e.workers.nodes import synchronous
from tests.e2e.workers.placement import Model

PREFILL = 64
MANY_EVERY = 25
MANY_TOGETHER = 4
"""Of every so many steps, those which have more than one token: the same number of them, so that the first is launched
node by node, the second is captured, and the others are replayed."""


def passes(steps: int) -> list[int]:
    """Tokens of each pass: a prefill, then `steps` of one to eight tokens."""
    return [PREFILL, *(map(tokens_of, range(1, steps + 1)))]


def tokens_of(step: int) -> int:
    """Of one step."""
    number, place = divmod(step, MANY_EVERY)
    return 2 + number % 7 if number and place < MANY_TOGETHER else 1


def hot_experts(shape: tuple[int, ...], share: float, seed: int) -> NDArray[np.bool_]:
    """(layers, experts), different ones in each layer."""
    order = np.random.default_rng([abs(seed), seed < 0]).permuted(
        np.arange(shape[1])[None, :].repeat(shape[0], 0), axis=1
    )
    return order < share * shape[1]


def graphs_of(bindings: Bindings, model: Model) -> NDArray[np.int64]:
    """Captures, replays and passes without a CUDA graph so far, over all devices."""
    devices = bindings.device_status(model.handle)
    counts = [(device.graph_captures, device.graph_replays, device.direct_passes) for device in devices]
    total: NDArray[np.int64] = np.array(counts, np.int64).reshape(-1, 3).sum(axis=0)
    return total


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Evaluates once. The digest of each pass's output, and what the devices counted."""
    bindings = load_bindings(arguments.libraries)
    core: Any = bindings.llama_cpp.llama_cpp
    core.llama_backend_init()
    bindings.count_routes(True)
    if arguments.device == "gpu":
        bindings.configure(
            placement=PlacementOptions(
                pool_bytes=arguments.pool_mib << 20,
                # where uploads are possible there is memory to lend; no pass has so many tokens
                upload_tokens=2 * PREFILL if arguments.borrow_every or arguments.record else NEVER,
                borrow_percent=100 if arguments.borrow_every or arguments.record else -1,
                link_percent=arguments.link_percent,
                timeout_ms=20_000,
            )
        )
    n_waits, borrowed = 0, []
    graphs = np.zeros((2, 3), np.int64)

    def on_wait() -> None:
        nonlocal n_waits
        n_waits += 1

    is_reference, is_recording = arguments.mode == "synchronous", arguments.mode == "recording"
    recorded = None if is_recording or not arguments.record else np.load(list_of(arguments.out))
    found = []
    callback = core.ggml_backend_sched_eval_callback(synchronous(on_wait)) if is_reference else None
    digests = []
    with Model(bindings, arguments.model, "gpu_host_experts" if arguments.device == "gpu" else "cpu") as model:
        model.place(hot_experts(model.shape, arguments.share, 0))
        sizes = passes(arguments.steps)
        tokens = np.random.default_rng(23).integers(0, model.n_vocab, sum(sizes)).tolist()
        begin = time.monotonic()
        outputs = model.each_pass(tokens, sizes, n_threads=1, n_ubatch=PREFILL, on_node=callback)
        before = None
        for step, output in enumerate(outputs):
            now = graphs_of(bindings, model)
            if before is not None:
                graphs[int(sizes[step] > 1)] += now - before
            before = now
            digests.append(hashlib.blake2b(output.tobytes(), digest_size=8).hexdigest())
            if arguments.idle_s and step == len(sizes) // 2:
                time.sleep(arguments.idle_s)
            if is_recording:  # before a swap, which ends all borrowing
                found.append(bindings.borrowed(model.handle))
                borrowed.append(int(found[-1].sum()))
            if arguments.swap_every and step % arguments.swap_every == arguments.swap_every - 1:
                model.place(hot_experts(model.shape, arguments.share, step))
            if recorded is not None and step + 1 < len(recorded):
                borrowed.append(bindings.set_borrowed(model.handle, recorded[step + 1]))
            if arguments.borrow_every and step % arguments.borrow_every == 0:
                experts = hot_experts(model.shape, arguments.borrow_share, -1 - step)
                borrowed.append(bindings.set_borrowed(model.handle, experts))
        devices = [asdict(device) for device in bindings.device_status(model.handle)]
    if is_recording:
        np.save(list_of(arguments.out), np.array(found))
    return {
        "digests": digests,
        "seconds": time.monotonic() - begin,
        "waits": n_waits,
        "borrowed": borrowed,
        "devices": devices,
        "graphs": dict(zip(("one_token", "several_tokens"), graphs.tolist(), strict=True)),
    }


def list_of(out: Path) -> Path:
    """Where a recording run leaves what each of its passes found in borrowed memory: (passes, layers, experts)."""
    return out.with_suffix(".borrowed.npy")


def child(argv: Sequence[str], mode: str) -> subprocess.Popen[bytes]:
    """Starts a run in a process of its own."""
    environment = {**os.environ, "CUDA_MODULE_LOADING": "EAGER"}
    if mode == "synchronous":
        environment["GGML_CUDA_DISABLE_GRAPHS"] = "1"
    command = [sys.executable, "-m", "tests.e2e.workers.bitwise", *argv, "--mode", mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)


def first_difference(run: dict[str, Any], reference: dict[str, Any]) -> int | None:
    """The first pass with another output."""
    pairs = zip(run["digests"], reference["digests"], strict=True)
    return next((step for step, (a, b) in enumerate(pairs) if a != b), None)


def compare(argv: Sequence[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """All three runs, on a GPU or after a recording one after the other, and what they differ in."""
    runs = []
    modes = ("recording" if arguments.record else "engine", "engine", "synchronous")
    is_together = arguments.device == "cpu" and not arguments.record
    started = [child(argv, mode) for mode in modes] if is_together else []
    for number, mode in enumerate(modes):
        process = started[number] if started else child(argv, mode)
        output, _ = process.communicate(timeout=arguments.limit_s)
        if process.returncode != 0:
            raise RuntimeError(f"the {mode} run ended with status {process.returncode}")
        runs.append(json.loads(output.splitlines()[-1]))
    first, second, reference = runs
    list_of(arguments.out).unlink(missing_ok=True)
    distinct = len(set(first["digests"]))
    return {
        "model": arguments.model.name,
        "device": arguments.device,
        "steps": arguments.steps,
        "tokens": sum(passes(arguments.steps)),
        "distinct_outputs": distinct,
        "differs_from_reference_at": first_difference(first, reference),
        "differs_from_itself_at": first_difference(first, second),
        "seconds": [round(run["seconds"], 2) for run in runs],
        "answers_waited_for": reference["waits"],
        "borrowed": first["borrowed"],
        "devices": [run["devices"] for run in runs],
        "graphs": [run["graphs"] for run in runs],
    }


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("libraries", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.5, help="of the experts that are hot")
    parser.add_argument("--swap-every", type=int, default=0, help="steps after which other experts are hot")
    parser.add_argument("--idle-s", type=float, default=0.0, help="pause in the middle; ggml drops graphs after 10 s")
    parser.add_argument("--link-percent", type=int, default=-1, help="of cold experts that the GPU reads in place")
    parser.add_argument("--borrow-every", type=int, default=0, help="steps after which other experts are borrowed")
    parser.add_argument("--record", action="store_true", help="borrow as the engine does by itself")
    parser.add_argument("--borrow-share", type=float, default=0.2, help="of the experts, as far as there is memory")
    parser.add_argument("--pool-mib", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=600.0)
    parser.add_argument("--mode", choices=("compare", "engine", "recording", "synchronous"), default="compare")
    arguments = parser.parse_args()
    if arguments.mode != "compare":
        print(json.dumps(run(arguments)))
        return 0
    result = compare(sys.argv[1:], arguments)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key != "devices"}))
    least = max if arguments.record else min
    if (arguments.borrow_every or arguments.record) and not least(result["borrowed"], default=0):
        print("nothing was borrowed", file=sys.stderr)
        return 1
    same = result["differs_from_reference_at"] is None and result["differs_from_itself_at"] is None
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
