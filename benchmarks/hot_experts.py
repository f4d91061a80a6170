"""Decode and prefill of one model by setting, in one process each: stock llama.cpp's placements against hot experts.

    python benchmarks/hot_experts.py --libraries BIN --model MODEL.gguf --settings SETTINGS.json --out RESULT.json

SETTINGS.json is a list of objects:

    name          of the row
    kind          "stock" (whole layers), or "ostinato"
    cpu_layers    stock: so many layers keep their experts in host memory (the first ones)
    load_mode     "mmap", or "none": read into page-locked memory
    min_batch     stock: tokens from which experts are uploaded (GGML_OP_OFFLOAD_MIN_BATCH)
    hot           ostinato: share of all experts that is hot, chosen by route counts of other tokens
    environment   further environment variables
    threads       of the CPU

Every setting loads the model, reads a context of --depth tokens, then times single tokens and prefills of --lengths new
tokens behind that context. Its logits for fixed tokens are compared with the first setting's.

Tokens are random, or with --sessions those of recorded ones (agent_sessions.py): the development part chooses the hot
experts, and what is timed is text of the held-out part.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from agent_sessions import read_sessions
from numpy.typing import NDArray

from ostinatod.bench.placed_model import EngineLog, PlacedModel
from ostinatod.bench.settings import from_json
from ostinatod.bindings import load_bindings

PROFILE_TOKENS = 4096
PROFILE_PARTS = 8
"""So many pieces of text of PROFILE_TOKENS tokens each."""

CHECK_PREFILL = 249
CHECK_DECODE = 32

OWN_KEYS = ("hot", "profile", "hot_experts", "coverage")
"""Of SETTINGS.json and of what is added to it; the others are those of `bench.settings.Setting`."""


class Text:
    """Tokens to read, one piece after the other, from the start again where they end."""

    def __init__(self, sessions: Path | None, part: str, n_vocab: int) -> None:
        self._rng = np.random.default_rng(17)
        self._n_vocab = n_vocab
        self._at = 0
        self._tokens: NDArray[np.int32] | None = None
        if sessions:
            chosen = [session for session in read_sessions(sessions) if session.part == part]
            pieces = [piece for session in chosen for turn in session.turns for piece in (turn.new, turn.answer)]
            self._tokens = np.concatenate(pieces)

    def next(self, n: int) -> list[int]:
        """The next n tokens."""
        if self._tokens is None:
            return self._rng.integers(0, self._n_vocab, n).tolist()
        at = np.arange(self._at, self._at + n) % len(self._tokens)
        self._at += n
        return self._tokens[at].tolist()


def measure(arguments: argparse.Namespace, setting: dict[str, Any], out: Path) -> None:
    """The child process: one setting."""
    bindings = load_bindings(arguments.libraries)
    core: Any = bindings.llama_cpp.llama_cpp
    log = EngineLog(core)
    core.llama_backend_init()
    try:
        run = PlacedModel(
            bindings,
            arguments.model,
            from_json({name: value for name, value in setting.items() if name not in OWN_KEYS}),
            n_ctx=max(arguments.depth, PROFILE_TOKENS) + max(arguments.lengths) + 512,
            on_gpu=True,
            hot=np.load(setting["hot_experts"]) if "hot_experts" in setting else None,
            counted=bool(setting.get("profile")),
        )
        result: dict[str, Any] = {"setting": setting, "load_s": round(run.load_s, 2)}

        if setting.get("profile"):
            known = Text(arguments.sessions, "development", run.n_vocab)
            for _ in range(PROFILE_PARTS):
                run.read(known.next(PROFILE_TOKENS))
                run.rewind(0)
            np.save(setting["profile"], bindings.route_counts(run.handle).prefill)

        text = Text(arguments.sessions, "held-out", run.n_vocab)
        check = text.next(CHECK_PREFILL + CHECK_DECODE)
        run.decode(check[:CHECK_PREFILL])
        rows = [run.logits()]
        for token in check[CHECK_PREFILL:]:
            run.decode([token])
            rows.append(run.logits())
        np.save(out.with_suffix(".npy"), np.stack(rows))
        run.rewind(0)

        run.read(text.next(arguments.depth))
        before = run.devices()
        decoded = text.next(arguments.decode_tokens + 16)
        steps = [run.decode(decoded[i : i + 1]) for i in range(len(decoded))]
        after = run.devices()
        result["decode_ms"] = round(statistics.median(steps[16:]), 4)
        result["decode_ms_mean"] = round(statistics.mean(steps[16:]), 4)
        if after:
            n = len(steps)
            result["decode_cold_routes"] = (
                sum(a.cold_routes - b.cold_routes for a, b in zip(after, before, strict=True)) / n
            )
            result["decode_linked_routes"] = sum(a.linked - b.linked for a, b in zip(after, before, strict=True)) / n
            result["decode_cpu_ms"] = (
                sum(a.cpu_busy_ns - b.cpu_busy_ns for a, b in zip(after, before, strict=True)) / n / 1e6
            )
            result["decode_gpu_wait_ms"] = (
                sum(a.waited_ns - b.waited_ns for a, b in zip(after, before, strict=True)) / n / 1e6
            )
        prefill = {}
        sides = {}
        for length in arguments.lengths:
            times = []
            before = run.devices() if after else []
            for _ in range(arguments.repeats + 1):
                run.rewind(arguments.depth)
                times.append(run.read(text.next(length)))
            prefill[length] = round(statistics.median(times[1:]), 2)
            if after:
                sides[length] = [
                    {
                        name: (getattr(now, name) - getattr(then, name)) / (arguments.repeats + 1)
                        for name in (
                            "cold_routes",
                            "cpu_routes",
                            "cpu_busy_ns",
                            "uploaded",
                            "uploaded_bytes",
                            "waited_ns",
                        )
                    }
                    for now, then in zip(run.devices(), before, strict=True)
                ]
        result["prefill_ms"] = prefill
        result["prefill_sides"] = sides
        if after:
            result["devices"] = [vars_of(d) for d in run.devices()]
        result["splits"] = re.findall(r"splits = ([\d /]*\d)", log.text)[-1:] or None
        result["memory"] = re.findall(r"(\w+) +(model|KV|compute) buffer size = +([\d.]+) MiB", log.text)
        result["speeds"] = re.findall(r"measure_speeds: (.*)", log.text)
        out.write_text(json.dumps(result), encoding="utf-8")
    except BaseException:
        lines = log.text.splitlines(keepends=True)
        sys.stderr.write("".join(line for line in lines if "llama_graph_n_input_tensors" not in line)[-3000:])
        raise


def vars_of(device: Any) -> dict[str, Any]:
    """A frozen dataclass with slots as a dictionary."""
    return {name: getattr(device, name) for name in device.__slots__}


def hottest(counts: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """(L, E): the `share` of all experts with the most routes."""
    flat = counts.reshape(-1)
    hot = np.zeros(flat.shape, bool)
    hot[np.argsort(-flat.astype(np.int64), kind="stable")[: round(share * flat.size)]] = True
    return hot.reshape(counts.shape)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--libraries", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sessions", type=Path, help="recorded sessions as tokens, in place of random ones")
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument(
        "--lengths", type=lambda text: [int(n) for n in text.split(",")], default=[128, 343, 511, 1024, 2048]
    )
    parser.add_argument("--decode-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--one-out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    settings = json.loads(arguments.settings.read_text(encoding="utf-8"))
    if arguments.one is not None:
        measure(arguments, settings[arguments.one], arguments.one_out)
        return 0

    results: list[dict[str, Any]] = []
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        profile = Path(directory, "profile.npy")
        settings[0]["profile"] = str(profile)
        reference = None
        for i, setting in enumerate(settings):
            if setting["kind"] == "ostinato":
                setting["hot_experts"] = str(Path(directory, f"{i}-hot.npy"))
                counts = np.load(profile)
                hot = hottest(counts, setting["hot"])
                setting["coverage"] = round(float(counts[hot].sum() / counts.sum()), 4)
                np.save(setting["hot_experts"], hot)
            resolved = Path(directory, "settings.json")
            resolved.write_text(json.dumps(settings), encoding="utf-8")
            out = Path(directory, f"{i}.json")
            environment = {**os.environ, "CUDA_MODULE_LOADING": "EAGER", **setting.get("environment", {})}
            if "min_batch" in setting:
                environment["GGML_OP_OFFLOAD_MIN_BATCH"] = str(setting["min_batch"])
            command = [
                sys.executable,
                __file__,
                "--libraries",
                str(arguments.libraries),
                "--model",
                str(arguments.model),
            ]
            command += [
                "--settings",
                str(resolved),
                "--out",
                str(arguments.out),
                "--one",
                str(i),
                "--one-out",
                str(out),
            ]
            command += ["--sessions", str(arguments.sessions)] if arguments.sessions else []
            command += ["--depth", str(arguments.depth), "--lengths", ",".join(map(str, arguments.lengths))]
            command += ["--decode-tokens", str(arguments.decode_tokens), "--repeats", str(arguments.repeats)]
            started = time.monotonic()
            child = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=300)
            if child.returncode != 0:
                failed += 1
                print(f"{setting['name']}: failed with status {child.returncode}\n{child.stderr[-2500:]}", flush=True)
                continue
            result = json.loads(out.read_text(encoding="utf-8"))
            logits = np.load(out.with_suffix(".npy")).astype(np.float64)
            reference = logits if reference is None else reference
            result["nmse"] = float(((logits - reference) ** 2).sum() / (reference**2).sum())
            result["same_argmax"] = float((logits.argmax(1) == reference.argmax(1)).mean())
            result["wall_s"] = round(time.monotonic() - started, 1)
            results.append(result)
            cold = (
                f" cold/token {result['decode_cold_routes']:.2f} linked {result['decode_linked_routes']:.2f}"
                f" wait {result['decode_gpu_wait_ms']:.3f} cpu {result['decode_cpu_ms']:.3f}"
                f" columns {result['devices'][0]['link_columns']}/{result['devices'][0]['hidden_columns']}"
                if "devices" in result
                else ""
            )
            print(
                f"{setting['name']:34s} decode {result['decode_ms']:7.3f} prefill "
                + " ".join(f"{n}:{ms:.0f}" for n, ms in result["prefill_ms"].items())
                + f" nmse {result['nmse']:.1e} argmax {result['same_argmax']:.2f} load {result['load_s']}s"
                + f" splits {result['splits']} ({result['wall_s']} s)"
                + cold,
                flush=True,
            )
            arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
