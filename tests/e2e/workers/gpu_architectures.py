"""gpu_architectures.py LIBRARIES PACK OUT.json [--device cpu] [--children N] [--limit-s S] [--only NAME]...

Every architecture with experts, by placement, path and batch size: tiny models that PACK (see tiny_recipes.py) is made
into, each with quantised experts and with mixed ones. Compares with the stock nodes, all layers on the same device.
Children evaluate the architectures beside each other, on CPUs of their own; one that ends or takes longer than a limit
costs that architecture alone. Writes OUT.json, and the same as a table beside it (.md). Returns 1 where a case failed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ostinatod.bindings import NEVER, Bindings, PlacementOptions, load_bindings
from ostinatod.errors import EngineError
from ostinatod.verification import nmse
from tests.e2e.workers.placement import Device, Model, Output
from tests.e2e.workers.ties import same_or_tied, same_share
from tests.e2e.workers.tiny_recipes import KINDS, Encoder, Recipe, make_model, read_pack

PASSES = (1, 2, 3, 4, 5, 6, 7, 8, 32, 300)
PATHS: dict[str, dict[str, Any]] = {
    "split": {"upload_tokens": NEVER, "link_percent": -1},
    "link": {"upload_tokens": NEVER, "link_percent": 50},
    "upload": {"upload_tokens": 2, "upload_all_tokens": 2, "link_percent": -1, "prefetch_us": 2000},
    "choice": {"upload_tokens": 2, "prefetch_us": 2000},
}
"""The CPU branch alone; the same with a share for the GPU in steps of few tokens; uploads of all that staging holds; a
choice per expert, and shares by measured speeds. What is prefetched differs between the two evaluations of a placement,
and its results may not. On GPUs; a CPU has the first one only."""

PLACEMENTS = {
    "split": ("half", "none", "quarter", "all"),
    "link": ("half", "none"),
    "upload": ("half", "none", "quarter"),
    "choice": ("half",),
}
"""The first one is evaluated twice. It takes effect with the first context and has to fit the pool, which with uploads
does not hold all."""

ROUNDING_NMSE = 1e-9
SHARE_OF_NOISE = 4.0
"""Of the largest difference that the stock nodes show, and of the tokens whose largest output differs: the same tokens
in other passes, or on the CPU instead of the GPU. Where a router's choice is nearly tied, rounding changes an expert of
one token, which is one throw of a die."""
TOKEN_SHARE = 0.01
OTHER_PASSES = ((sum(PASSES),), PASSES[::-1], (46,) * 8)
TELLING = 100.0
"""As in test_architectures.py: how much larger the effect of a branch that is left out has to be."""

STOCK_ON_GPUS = ("mistral4",)
"""Architectures whose layers on GPUs keep the stock nodes, which compute their experts on the CPU."""

RESULT = "RESULT "
"""Begins a child's line of results; the engine's log may come in between."""


def typical_nmse(values: NDArray[np.float32], stock: NDArray[np.float32]) -> float:
    """The median over tokens: what the error is apart from tokens whose router chose otherwise in a near tie."""
    rows = stock.astype(np.float64)
    return float(np.median(((values - rows) ** 2).sum(axis=1) / (rows**2).sum(axis=1)))


@dataclass(frozen=True)
class Yardsticks:
    """What a case is compared with."""

    stock: NDArray[np.float32]
    noise: float
    typical_noise: float
    same_token: float
    """The least share of tokens with the same largest output, of the stock nodes against themselves."""
    missing: float
    repeats: bool
    """Whether the stock nodes give the same bits twice."""

    def judge(self, values: NDArray[np.float32], again: NDArray[np.float32] | None) -> dict[str, Any]:
        """One case's numbers; `again` is what a second context gave, if one was asked."""
        error = nmse(values, self.stock)
        allowed = max(ROUNDING_NMSE, SHARE_OF_NOISE * self.noise)
        typical = typical_nmse(values, self.stock)
        is_rounding = error <= allowed or typical <= max(ROUNDING_NMSE, SHARE_OF_NOISE * self.typical_noise)
        repeats = again is None or values.tobytes() == again.tobytes()
        may_differ = not self.repeats
        same_token = same_share(values, self.stock)
        may_change = TOKEN_SHARE + SHARE_OF_NOISE * (1 - self.same_token)
        same = same_or_tied(values, self.stock, allowed) or 1 - same_token <= may_change
        # a model that turns rounding into this much tells no missing branch by a hundredth of what that does
        is_told = min(error, typical) * TELLING < self.missing or error <= allowed < self.missing / SHARE_OF_NOISE
        return {
            "nmse": error,
            "typical_nmse": typical,
            "same_token": same_token,
            "identical": values.tobytes() == self.stock.tobytes(),
            "repeats": repeats if again is not None else None,
            "passed": bool(np.isfinite(values).all() and is_rounding and is_told) and same and (repeats or may_differ),
        }


def hot_experts(placement: str, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """(layers, experts), which differ by layer."""
    share = {"none": 0.0, "quarter": 0.25, "half": 0.5, "all": 1.0}[placement]
    rng = np.random.default_rng(7)
    order = rng.permuted(np.arange(shape[1])[None, :].repeat(shape[0], 0), axis=1)
    return order < share * shape[1]


class Sweep:
    """What a child does with one recipe after the other."""

    def __init__(self, libraries: Path, device: str) -> None:
        self._bindings: Bindings = load_bindings(libraries)
        self._said: list[str] = []

        def takes(text: str) -> bool:
            is_told = "keeps the stock nodes" in text or "hot experts fit" in text
            if is_told:
                self._said.append(text.strip())
            return is_told

        self._bindings.start(takes)
        self._bindings.count_routes(True)
        self._encoder = Encoder(libraries)
        self._is_gpu = device == "gpu"

    def evaluate(self, recipe: Recipe) -> dict[str, Any]:
        """Every case of a recipe."""
        result: dict[str, Any] = {"name": recipe.name, "output": recipe.output, "cases": []}
        self._said.clear()
        with tempfile.TemporaryDirectory(dir=_roomiest()) as directory:
            path, missing = Path(directory, "model.gguf"), Path(directory, "missing.gguf")
            for kind in KINDS:
                is_plain = kind == "quantised"
                make_model(recipe, kind, self._encoder, path, without_scales=is_plain)
                make_model(recipe, kind, self._encoder, missing, without_odd_experts=True, without_scales=is_plain)
                yardsticks, tokens = self._stock(recipe, path, missing)
                cases: list[dict[str, Any]] = []
                for way in PATHS if self._is_gpu else ("split",):
                    # what the split path's pool took, which was as much as all experts need
                    capacity = max((case.get("pool_capacity", 0) for case in cases), default=0)
                    found = self._cases(recipe, path, way, tokens, yardsticks, capacity)
                    cases += [{"weights": kind, "path": way, **case} for case in found]
                result["cases"] += cases
                result.setdefault("yardsticks", {})[kind] = {
                    "noise": yardsticks.noise,
                    "typical_noise": yardsticks.typical_noise,
                    "missing": yardsticks.missing,
                    "repeats": yardsticks.repeats,
                    "same_token": yardsticks.same_token,
                }
        layers = {line.split("layer ")[1].split()[0] for line in self._said if "layer " in line}
        result["reasons"] = sorted({line.split(": ", 1)[-1] for line in self._said})
        result["stock_layers"] = len(layers)
        is_stock = self._is_gpu and recipe.name in STOCK_ON_GPUS
        has_expected = bool(layers) if is_stock else len(layers) == recipe.stock_layers
        result["passed"] = all(case["passed"] for case in result["cases"]) and has_expected
        return result

    def _stock(self, recipe: Recipe, path: Path, missing: Path) -> tuple[Yardsticks, list[int]]:
        output = cast(Output, recipe.output)
        device: Device = "gpu" if self._is_gpu else "cpu"
        with Model(self._bindings, path, device) as model:
            tokens = np.random.default_rng(3).integers(0, model.n_vocab, sum(PASSES)).tolist()
            stock = model.evaluate(tokens, PASSES, output, n_threads=1)
            repeats = stock.tobytes() == model.evaluate(tokens, PASSES, output, n_threads=1).tobytes()
            others = [model.evaluate(tokens, passes, output, n_threads=1) for passes in OTHER_PASSES]
        if self._is_gpu:
            with Model(self._bindings, path, "cpu") as model:
                others.append(model.evaluate(tokens, PASSES, output, n_threads=len(os.sched_getaffinity(0))))
        with Model(self._bindings, missing, device) as model:
            without = nmse(model.evaluate(tokens, PASSES, output, n_threads=1), stock)
        noise, same_token = max(nmse(o, stock) for o in others), min(same_share(o, stock) for o in others)
        typical_noise = max(typical_nmse(o, stock) for o in others)
        return Yardsticks(stock, noise, typical_noise, same_token, without, repeats), tokens

    def _cases(
        self, recipe: Recipe, path: Path, way: str, tokens: list[int], yardsticks: Yardsticks, capacity: int
    ) -> Iterator[dict[str, Any]]:
        """Placements of one path. With uploads the pool is a byte short of `capacity`, which would hold all experts."""
        output = cast(Output, recipe.output)
        pool_bytes = 1 << 30 if way == "split" else capacity - 1
        options = PATHS[way] if self._is_gpu else {}
        self._bindings.configure(
            placement=PlacementOptions(n_threads=1, timeout_ms=5000, pool_bytes=pool_bytes, **options)
        )
        with Model(self._bindings, path, "gpu_host_experts" if self._is_gpu else "cpu") as model:
            for placement in PLACEMENTS[way]:
                hot = hot_experts(placement, model.shape)
                case: dict[str, Any] = {"placement": placement}
                try:
                    model.place(hot)
                except EngineError as error:
                    yield {**case, "passed": False, "refused": error.message}
                    continue
                before = self._bindings.device_status(model.handle)[0]
                values = model.evaluate(tokens, PASSES, output, n_threads=1)
                is_first = placement == PLACEMENTS[way][0]
                again = model.evaluate(tokens, PASSES, output, n_threads=1) if is_first else None
                device = self._bindings.device_status(model.handle)[0]
                yield {
                    **case,
                    **yardsticks.judge(values, again),
                    "hot": self._bindings.residency_status(model.handle).n_hot,
                    "asked_hot": int(hot.sum()),
                    "pool_capacity": device.pool_capacity,
                    "cold_routes": device.cold_routes - before.cold_routes,
                    "cpu_routes": device.cpu_routes - before.cpu_routes,
                    "uploaded": device.uploaded - before.uploaded,
                    "foreseen": device.foreseen - before.foreseen,
                    "linked": device.linked - before.linked,
                    "staging_bytes": device.staging_bytes,
                }


def _roomiest() -> str | None:
    """Memory, where there is enough of it for the models of all children."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > 4 << 30 else None


def run_child(libraries: str, pack: str, device: str, cpus: str) -> None:
    """Evaluates recipes whose numbers come on standard input, on the CPUs of a list."""
    os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    sweep = Sweep(Path(libraries), device)
    recipes = read_pack(Path(pack))
    for line in sys.stdin:
        recipe = recipes[int(line)]
        begin = time.monotonic()
        try:
            result = sweep.evaluate(recipe)
        except (EngineError, RuntimeError) as error:
            result = {"name": recipe.name, "cases": [], "passed": False, "reasons": [str(error)]}
        result["seconds"] = round(time.monotonic() - begin, 2)
        print(RESULT + json.dumps(result), flush=True)


class Child:
    """A process that evaluates recipes; started anew after one that it did not survive."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process

    def evaluate(self, index: int, name: str, limit_s: float) -> dict[str, Any]:
        """The result of a recipe, or why there is none."""
        process = self._process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        watchdog = threading.Timer(limit_s, process.kill)
        watchdog.start()
        begin = time.monotonic()
        try:
            process.stdin.write(f"{index}\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith(RESULT):
                    return cast(dict[str, Any], json.loads(line.removeprefix(RESULT)))
        except BrokenPipeError:
            pass
        finally:
            watchdog.cancel()
        status = process.wait()
        self._process = None
        seconds = time.monotonic() - begin
        reason = f"no result within {limit_s:g} s" if seconds >= limit_s else f"the child ended with status {status}"
        return {"name": name, "cases": [], "passed": False, "seconds": seconds, "reasons": [reason, self._last_words()]}

    def close(self) -> None:
        """Ends the process."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-1500:]

    def _start(self) -> subprocess.Popen[str]:
        self._errors.seek(0)
        self._errors.truncate()
        return subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.workers.gpu_architectures", "--child", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "CUDA_MODULE_LOADING": "EAGER"},
        )


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The results of all recipes, in the pack's order."""
    recipes = read_pack(arguments.pack)
    chosen = [i for i, recipe in enumerate(recipes) if not arguments.only or recipe.name in arguments.only]
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in sorted(chosen, key=lambda i: -recipes[i].n_elements):  # no large one is left for the end
        waiting.put(index)
    results: dict[int, dict[str, Any]] = {}
    cpus = sorted(os.sched_getaffinity(0))
    n_children = min(arguments.children, len(chosen), len(cpus))

    def serve(number: int) -> None:
        own = cpus[number * len(cpus) // n_children : (number + 1) * len(cpus) // n_children]
        cpu_list = ",".join(map(str, own))
        child = Child([str(arguments.libraries), str(arguments.pack), arguments.device, cpu_list])
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                break
            result = results[index] = child.evaluate(index, recipes[index].name, arguments.limit_s)
            word = "ok" if result["passed"] else "FAILED"
            print(f"{word:6} {result['name']} {result['seconds']:.1f} s {result['reasons'] or ''}", flush=True)
            for case in result["cases"]:
                if not case["passed"]:
                    yardsticks = result["yardsticks"][case["weights"]]
                    print(f"       {json.dumps(case)} {json.dumps(yardsticks)}", flush=True)
        child.close()

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(n_children)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[index] for index in chosen]


def table(results: Sequence[dict[str, Any]]) -> str:
    """The worst placement of each architecture, kind of weights and path."""
    head = ["architecture", "weights", "noise", "without every second expert"]
    head += [*(f"{way}: {p}" for way, names in PLACEMENTS.items() for p in names), "same token", "why stock nodes"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for result in results:
        for kind in KINDS:
            cases = {(c["path"], c["placement"]): c for c in result["cases"] if c["weights"] == kind}
            if not cases:
                lines.append(f"| {result['name']} | {kind} | not evaluated: {' '.join(result['reasons'])[:200]} |")
                continue
            cells = []
            for way, names in PLACEMENTS.items():
                for placement in names:
                    case = cases.get((way, placement))
                    cells.append(_cell(case) if case else "")
            yardstick = result["yardsticks"][kind]
            same = min((c["same_token"] for c in cases.values() if "same_token" in c), default=0.0)
            row = [result["name"], kind, f"{yardstick['noise']:.1e}", f"{yardstick['missing']:.1e}", *cells]
            lines.append(f"| {' | '.join([*row, f'{100 * same:.1f} %', '; '.join(result['reasons'])])} |")
    return "\n".join(lines) + "\n"


def _cell(case: dict[str, Any]) -> str:
    if "nmse" not in case:
        return "refused"
    text = "0" if case["identical"] else f"{case['nmse']:.1e}"
    return text if case["passed"] else f"**{text}**{' differs' if case['repeats'] is False else ''}"


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("libraries", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--children", type=int, default=8)
    parser.add_argument("--limit-s", type=float, default=75.0)
    parser.add_argument("--only", action="append", default=[], help="this architecture, and others that are named")
    arguments = parser.parse_args()
    begin = time.monotonic()
    results = run(arguments)
    failed = [result["name"] for result in results if not result["passed"]]
    report = {"device": arguments.device, "passes": PASSES, "failed": failed, "architectures": results}
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    arguments.out.with_suffix(".md").write_text(table(results), encoding="utf-8")
    print(
        f"{len(results) - len(failed)} of {len(results)} passed in {time.monotonic() - begin:.0f} s; failed: {failed}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(*sys.argv[2:])
    else:
        sys.exit(main())
