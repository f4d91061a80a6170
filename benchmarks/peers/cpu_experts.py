"""One layer's experts on the CPU alone: KTransformers' kernels and our CPU branch, the same routes on the same threads.

    python -m benchmarks.peers.cpu_experts --model MODEL.gguf --out RESULT.json --libraries FOLDER_OF_LIBLLAMA \\
        --headers FOLDER_OF_GGML_INCLUDE [--site SITE_PACKAGES_WITH_KT_KERNEL] [--threads 15]

What of KTransformers the wheel `kt-kernel` has computes experts in host memory. This reads a layer's experts from a
model of MXFP4 experts and times steps of so many tokens of which some routes are cold, each engine in a process of its
own: ours by cpu_experts.cpp, which is compiled here, kt-kernel by its extension, with the settings that its wrappers
give it: LLAMAFILE, which takes GGUF types, and MXFP4, its own for DeepSeek-V4-Flash, from the same weights in the
order of that model's safetensors. Answers are compared with the dequantised product.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.conclusion import markdown
from benchmarks.this_machine import machine, write_json
from ostinatod.profiles.gguf_header import read_header

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("cpu_experts.cpp")
MXFP4 = 39
"""GGML_TYPE_MXFP4"""
BLOCK, BLOCK_BYTES = 32, 17
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
CLOSE_NMSE = 1e-3
"""Of an answer against the dequantised product: inputs are rounded to eight or sixteen bits."""
METHODS = ("LLAMAFILE", "MXFP4")

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's experts in a model file: offsets of gate, up and down."""

    model: str
    offsets: tuple[int, int, int]
    n_in: int
    n_ff: int
    n_experts: int
    k: int

    @property
    def expert_bytes(self) -> int:
        """Of one expert as the file has it."""
        return 3 * self.n_in * self.n_ff // BLOCK * BLOCK_BYTES

    def tensor(self, number: int) -> Bytes:
        """(experts, rows, blocks, BLOCK_BYTES) of gate, up or down, mapped from the file."""
        columns, rows = (self.n_ff, self.n_in) if number == 2 else (self.n_in, self.n_ff)
        shape = (self.n_experts, rows, columns // BLOCK, BLOCK_BYTES)
        return np.memmap(self.model, np.uint8, "r", self.offsets[number], shape)


@dataclass(frozen=True, slots=True)
class Case:
    """Steps of so many tokens. `cold` routes of each; None where each route is hot with the probability `coverage`."""

    tokens: int
    cold: int | None
    steps: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.tokens} token, {self.cold} cold" if self.cold is not None else f"{self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class Step:
    """Experts and weights, (tokens, k), of one step; `is_last` of its case."""

    ids: NDArray[np.int32]
    weights: Floats
    is_last: bool


def read_layer(model: Path, number: int) -> Layer:
    """A layer of a model. Raises SystemExit where its experts are not MXFP4 in three tensors of a row each."""
    header = read_header(model)
    found = {tensor.name: tensor for tensor in header.tensors}
    names = [f"blk.{number}.ffn_{part}_exps.weight" for part in ("gate", "up", "down")]
    if any(name not in found or found[name].type_name != "MXFP4" for name in names):
        raise SystemExit(f"expected {', '.join(names)} of MXFP4 in {model}")
    n_in, n_ff, n_experts = found[names[0]].shape
    used = header.fields[f"{header.fields['general.architecture']}.expert_used_count"]
    gate, up, down = (found[name].offset for name in names)
    return Layer(str(model.resolve()), (gate, up, down), n_in, n_ff, n_experts, used)


def hot_experts(rng: np.random.Generator, layer: Layer, share: float) -> NDArray[np.bool_]:
    """(experts,) which are on the GPU."""
    hot = np.zeros(layer.n_experts, np.bool_)
    hot[rng.choice(layer.n_experts, round(share * layer.n_experts), replace=False)] = True
    return hot


def steps_of(
    rng: np.random.Generator, cases: Sequence[Case], layer: Layer, hot: NDArray[np.bool_], coverage: float
) -> list[Step]:
    """The steps of all cases, in order. No token selects an expert twice."""
    on_gpu, on_cpu = np.flatnonzero(hot), np.flatnonzero(~hot)
    found = []
    for case in cases:
        for number in range(case.steps):
            ids = np.empty((case.tokens, layer.k), np.int32)
            for row in ids:
                cold = case.cold if case.cold is not None else int(rng.binomial(layer.k, 1 - coverage))
                chosen = [rng.choice(on_cpu, cold, replace=False), rng.choice(on_gpu, layer.k - cold, replace=False)]
                row[:] = rng.permutation(np.concatenate(chosen))
            weights = rng.uniform(0.1, 0.3, ids.shape).astype(np.float32)
            found.append(Step(ids, weights, number == case.steps - 1))
    return found


def write_steps(file: Path, steps: Sequence[Step], hot: NDArray[np.bool_], inputs: Floats) -> None:
    """What cpu_experts.cpp reads."""
    with file.open("wb") as stream:
        stream.write(np.array([len(steps), len(inputs)], np.int32).tobytes())
        stream.write(hot.astype(np.int32).tobytes())
        stream.write(inputs.tobytes())
        for step in steps:
            stream.write(np.array([len(step.ids), step.is_last], np.int32).tobytes())
            stream.write(step.ids.tobytes())
            stream.write(step.weights.tobytes())


def dequantised(blocks: Bytes) -> Floats:
    """(rows, columns) of (rows, blocks, BLOCK_BYTES): an exponent, then 16 low and 16 high halves of bytes."""
    scales = np.exp2(blocks[..., :1].astype(np.float32) - 127)
    values = np.concatenate([E2M1[blocks[..., 1:] & 15], E2M1[blocks[..., 1:] >> 4]], axis=-1)
    return (values * scales).reshape(len(blocks), -1)


def in_pairs(blocks: Bytes) -> Bytes:
    """The halves of (..., BLOCK_BYTES) as DeepSeek-V4-Flash's safetensors have them, two neighbours in a byte."""
    low, high = blocks[..., 1:] & 15, blocks[..., 1:] >> 4
    ordered = np.concatenate([low, high], axis=-1)
    pairs: Bytes = ordered[..., 0::2] | ordered[..., 1::2] << 4
    return pairs


@dataclass(frozen=True, slots=True)
class Expected:
    """What one token's cold routes give, (n_in,), by the dequantised weights."""

    token: int
    answer: Floats

    def nmse(self, answers: Floats) -> float:
        """How far a step's answers, (tokens, n_in), are from it."""
        found = answers[self.token]
        return float(((found - self.answer) ** 2).sum() / (self.answer**2).sum())


def expected_answer(layer: Layer, hot: NDArray[np.bool_], inputs: Floats, step: Step) -> Expected:
    """Of the token of a step that has most cold routes."""
    tensors = [layer.tensor(number) for number in range(3)]
    token = int((~hot[step.ids]).sum(axis=1).argmax())
    x = inputs[token]
    total = np.zeros(layer.n_in, np.float32)
    for expert, weight in zip(step.ids[token], step.weights[token], strict=True):
        if not hot[expert]:
            gate, up, down = (dequantised(tensor[expert]) for tensor in tensors)
            gated = gate @ x
            total += weight * (down @ (gated / (1 + np.exp(-gated)) * (up @ x)))
    return Expected(token, total)


def described(
    cases: Sequence[Case], selected: Sequence[tuple[int, int]], expert_bytes: int, microseconds: Sequence[float]
) -> list[dict[str, Any]]:
    """What one engine took, case by case; the first fifth of the steps does not count.

    selected  cold experts and cold routes of each step
    """
    found: list[dict[str, Any]] = []
    at = 0
    for case in cases:
        begin, at = at + case.steps // 5, at + case.steps
        times = np.array(microseconds[begin:at])
        experts, routes = np.array(selected[begin:at]).T
        found.append(
            {
                **asdict(case),
                "cold_experts": float(np.median(experts)),
                "cold_routes": float(np.median(routes)),
                "ms": round(float(np.median(times)) / 1000, 4),
                "ms_10_90": [round(float(value) / 1000, 4) for value in np.percentile(times, (10, 90))],
                "gb_per_s": round(float(np.median(experts * expert_bytes / times)) / 1e3, 2),
            }
        )
    return found


def compiled(libraries: Path, headers: Path, program: Path) -> None:
    """Compile cpu_experts.cpp against the engine's libraries. Raises CalledProcessError with the compiler's words."""
    overlay = ROOT / "kernels_patch" / "overlay"
    subprocess.run(
        [
            *(os.environ.get("CXX", "c++"), "-std=c++17", "-O2", f"-I{overlay}", f"-I{headers}", str(SOURCE)),
            *("-o", str(program), f"-L{libraries}", f"-Wl,-rpath,{libraries}", f"-Wl,-rpath-link,{libraries}"),
            *(f"-l:{name}.so.0" for name in ("libllama", "libggml", "libggml-cpu", "libggml-base")),
            *("-lpthread", "-ldl", "-Wl,--allow-shlib-undefined"),
        ],
        check=True,
        capture_output=True,
        text=True,
    )


def run_ours(program: Path, layer: Layer, threads: int, pause_us: int, steps: Path, answers: Path) -> list[float]:
    """Microseconds of each step. Raises CalledProcessError."""
    numbers = (*layer.offsets, MXFP4, layer.n_in, layer.n_ff, layer.n_experts, layer.k, threads, pause_us)
    done = subprocess.run(
        [str(program), layer.model, *map(str, numbers), str(steps), str(answers)],
        check=True,
        capture_output=True,
        text=True,
    )
    return [float(line) for line in done.stdout.split()]


def answers_in(file: Path, cases: Sequence[Case], layer: Layer) -> list[Floats]:
    """(tokens, n_in) of each case."""
    flat = np.fromfile(file, np.float32)
    ends = np.cumsum([case.tokens * layer.n_in for case in cases])
    return [part.reshape(-1, layer.n_in) for part in np.split(flat, ends[:-1])]


def table(results: dict[str, Any], cases: Sequence[Case]) -> str:
    """Milliseconds and GB/s of the file's weights, as a Markdown table."""
    rows = [["", "cold experts", *results]]
    names = {name: item["cases"] for name, item in results.items() if "cases" in item}
    for number, case in enumerate(cases):
        row = [case.name, ""]
        for name in results:
            if name in names:
                item = names[name][number]
                row[1] = f"{item['cold_experts']:.0f}"
                row.append(f"{item['ms']:.3f} ms, {item['gb_per_s']:.0f} GB/s")
            else:
                row.append("did not run")
        rows.append(row)
    return markdown(rows)


def parsed_case(text: str, steps: int) -> Case:
    """Of "1:2", a token with two cold routes, or "64"."""
    tokens, _, cold = text.partition(":")
    return Case(int(tokens), int(cold) if cold else None, steps if cold else max(5, steps // 16))


def main() -> int:
    """Command line; returns the exit code: 1 when something did not run or answered wrongly."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--libraries", type=Path, help="of our engine; without it only kt-kernel is timed")
    parser.add_argument("--headers", type=Path, help="folder of ggml.h")
    parser.add_argument("--site", type=Path, help="folder of kt_kernel, for its processes alone")
    parser.add_argument("--methods", default=",".join(METHODS), help="of kt-kernel; empty for none")
    parser.add_argument("--cases", default="1:1,1:2,1:3,1:6,16,64,128,249,512", help="tokens, or token:cold routes")
    parser.add_argument("--steps", type=int, default=200, help="of one token; a sixteenth of that of more")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--hot-share", type=float, default=0.44)
    parser.add_argument("--coverage", type=float, default=0.83, help="share of the routes of prefills that is hot")
    parser.add_argument("--pause-us", type=int, default=150, help="between two steps")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each engine")
    a = parser.parse_args()

    rng = np.random.default_rng(17)
    layer = read_layer(a.model, a.layer)
    cases = [parsed_case(text, a.steps) for text in a.cases.split(",")]
    hot = hot_experts(rng, layer, a.hot_share)
    steps = steps_of(rng, cases, layer, hot, a.coverage)
    inputs = rng.standard_normal((max(case.tokens for case in cases), layer.n_in), np.float32)
    results: dict[str, Any] = {}
    command = " ".join(["python", "-m", "benchmarks.peers.cpu_experts", *sys.argv[1:]])
    facts = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "command": command}

    selected = [(np.unique(step.ids[~hot[step.ids]]).size, int((~hot[step.ids]).sum())) for step in steps]
    expected = [expected_answer(layer, hot, inputs, step) for step in steps if step.is_last]

    def keep(name: str, microseconds: Sequence[float], answers: Sequence[Floats], told: dict[str, Any]) -> None:
        found = described(cases, selected, layer.expert_bytes, microseconds)
        for case, right, answer in zip(found, expected, answers, strict=True):
            case["nmse"] = right.nmse(answer)
        results[name] = {**told, "cases": found}

    def write() -> None:
        shape = {key: value for key, value in asdict(layer).items() if key not in ("model", "offsets")}
        write_json(a.out, {**facts, "layer": shape, "threads": a.threads, "hot_share": a.hot_share, "engines": results})

    with tempfile.TemporaryDirectory() as directory:
        file, out = Path(directory, "steps"), Path(directory, "answers")
        write_steps(file, steps, hot, inputs)
        if a.libraries:
            try:
                compiled(a.libraries.resolve(), a.headers.resolve(), Path(directory, "program"))
                times = run_ours(Path(directory, "program"), layer, a.threads, a.pause_us, file, out)
                keep("ostinato", times, answers_in(out, cases, layer), {})
            except subprocess.CalledProcessError as error:
                results["ostinato"] = {"error": error.stderr[-3000:]}
            write()
        for method in filter(None, a.methods.split(",")):
            name = f"kt-kernel {method}"
            job = Path(directory, "job.json")
            asked = {"layer": asdict(layer), "method": method, "threads": a.threads, "pause_us": a.pause_us}
            job.write_text(json.dumps({**asked, "steps": str(file), "out": str(out)}), encoding="utf-8")
            paths = (str(a.site.resolve()) if a.site else "", os.environ.get("PYTHONPATH", ""), str(ROOT))
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.peers.ktransformers_experts", str(job)],
                    env=environment, cwd=directory, capture_output=True, text=True, timeout=a.seconds,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                results[name] = {"error": f"not done after {a.seconds:.0f} s"}
                continue
            if done.returncode != 0:
                results[name] = {"error": f"exit status {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"}
            else:
                told = json.loads(done.stdout.splitlines()[-1])
                keep(name, told.pop("microseconds"), answers_in(out, cases, layer), told)
            write()
    write()
    print(table(results, cases))
    for name, item in results.items():
        if "error" in item:
            print(f"{name}: {item['error']}")
        else:
            print(f"{name}: NMSE {max(case['nmse'] for case in item['cases']):.1e}")
    worst = max((case["nmse"] for item in results.values() for case in item.get("cases", ())), default=0.0)
    return 1 if worst > CLOSE_NMSE or any("error" in item for item in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
