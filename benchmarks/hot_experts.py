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
tokens behind that context. Its logits for fixed tokens are compared with the first setting's. Tokens are random.
"""

from __future__ import annotations

import argparse
import ctypes
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
from numpy.typing import NDArray

from ostinatod.bindings import EXPERT_TENSORS, Bindings, PlacementOptions, load_bindings

PROFILE_TOKENS = 4096
CHECK_PREFILL = 249
CHECK_DECODE = 32


class Run:
    """One loaded model with one context."""

    def __init__(self, bindings: Bindings, model: Path, setting: dict[str, Any], n_ctx: int) -> None:
        self.bindings = bindings
        self.core: Any = bindings.llama_cpp.llama_cpp
        core = self.core
        params = core.llama_model_default_params()
        params.n_gpu_layers = 99
        params.use_extra_bufts = False
        modes = {"mmap": core.LLAMA_LOAD_MODE_MMAP, "none": core.LLAMA_LOAD_MODE_NONE}
        params.load_mode = modes[setting.get("load_mode", "mmap")]
        patterns = [EXPERT_TENSORS]
        if setting["kind"] == "stock":
            patterns = [rb"blk\.%d" % layer + EXPERT_TENSORS for layer in range(setting.get("cpu_layers", 0))]
        self._overrides = bindings.keep_in_host_memory(params, patterns)
        started = time.monotonic()
        self.model = core.llama_model_load_from_file(str(model).encode(), params)
        if not self.model:
            raise RuntimeError(f"{model} cannot be loaded")
        self.n_vocab = core.llama_vocab_n_tokens(core.llama_model_get_vocab(self.model))
        if "hot_experts" in setting:
            bindings.set_residency(self.model, np.load(setting["hot_experts"]))
        params = core.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, 2048, 2048
        # the CPU branch has threads of its own, and llama.cpp's would only spin beside them
        params.n_threads = params.n_threads_batch = 1 if setting["kind"] == "ostinato" else setting.get("threads", 16)
        params.flash_attn_type = 1
        self.context = core.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("no context can be made of this model")
        self.load_s = time.monotonic() - started
        self.memory = core.llama_get_memory(self.context)

    def decode(self, tokens: NDArray[np.int32]) -> float:
        """Milliseconds of one call of llama_decode with its results ready."""
        core = self.core
        array = (ctypes.c_int32 * len(tokens))(*tokens.tolist())
        started = time.perf_counter()
        batch = core.llama_batch_get_one(ctypes.cast(array, ctypes.POINTER(ctypes.c_int32)), len(tokens))
        status = core.llama_decode(self.context, batch)
        core.llama_synchronize(self.context)
        elapsed = (time.perf_counter() - started) * 1000
        if status != 0:
            raise RuntimeError(f"a pass of {len(tokens)} tokens failed with status {status}")
        return elapsed

    def rewind(self, position: int) -> None:
        self.core.llama_memory_seq_rm(self.memory, 0, position, -1)

    def logits(self) -> NDArray[np.float32]:
        row = self.core.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(row, (self.n_vocab,)).copy()


def measure(arguments: argparse.Namespace, setting: dict[str, Any], out: Path) -> None:
    """The child process: one setting."""
    bindings = load_bindings(arguments.libraries)
    core: Any = bindings.llama_cpp.llama_cpp
    log: list[str] = []
    callback = core.llama_log_callback(lambda level, text, _: log.append(text.decode(errors="replace")))
    core.llama_log_set(callback, None)
    core.llama_backend_init()
    rng = np.random.default_rng(17)
    if setting["kind"] == "ostinato":
        bindings.configure(
            placement=PlacementOptions(
                two_branches=True,
                pool_bytes=setting.get("pool_bytes", 0),
                n_threads=setting.get("threads", 0),
                timeout_ms=setting.get("timeout_ms", 5000),
                upload_tokens=setting.get("upload_tokens", 0),
                upload_all_tokens=setting.get("upload_all_tokens", 0),
            )
        )
    elif setting.get("profile"):
        bindings.count_routes(True)
    try:
        n_ctx = max(arguments.depth, PROFILE_TOKENS) + max(arguments.lengths) + 512
        run = Run(bindings, arguments.model, setting, n_ctx)
        result: dict[str, Any] = {"setting": setting, "load_s": round(run.load_s, 2)}

        tokens = rng.integers(0, run.n_vocab, PROFILE_TOKENS).astype(np.int32)
        if setting.get("profile"):
            for at in range(0, PROFILE_TOKENS, 2048):
                run.decode(tokens[at : at + 2048])
            np.save(setting["profile"], bindings.route_counts(run.model).prefill)
            run.rewind(0)

        check = rng.integers(0, run.n_vocab, CHECK_PREFILL + CHECK_DECODE).astype(np.int32)
        run.decode(check[:CHECK_PREFILL])
        rows = [run.logits()]
        for token in check[CHECK_PREFILL:]:
            run.decode(np.array([token], np.int32))
            rows.append(run.logits())
        np.save(out.with_suffix(".npy"), np.stack(rows))
        run.rewind(0)

        context = rng.integers(0, run.n_vocab, arguments.depth).astype(np.int32)
        for at in range(0, arguments.depth, 2048):
            run.decode(context[at : at + 2048])
        before = devices(run) if setting["kind"] == "ostinato" else []
        decoded = rng.integers(0, run.n_vocab, arguments.decode_tokens + 16).astype(np.int32)
        steps = [run.decode(decoded[i : i + 1]) for i in range(len(decoded))]
        after = devices(run) if setting["kind"] == "ostinato" else []
        result["decode_ms"] = round(statistics.median(steps[16:]), 4)
        result["decode_ms_mean"] = round(statistics.mean(steps[16:]), 4)
        if after:
            n = len(steps)
            result["decode_cold_routes"] = (
                sum(a.cold_routes - b.cold_routes for a, b in zip(after, before, strict=True)) / n
            )
            result["decode_gpu_wait_ms"] = (
                sum(a.waited_ns - b.waited_ns for a, b in zip(after, before, strict=True)) / n / 1e6
            )
        prefill = {}
        sides = {}
        for length in arguments.lengths:
            times = []
            before = devices(run) if after else []
            for _ in range(arguments.repeats + 1):
                run.rewind(arguments.depth)
                new = rng.integers(0, run.n_vocab, length).astype(np.int32)
                times.append(sum(run.decode(new[at : at + 2048]) for at in range(0, length, 2048)))
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
                    for now, then in zip(devices(run), before, strict=True)
                ]
        result["prefill_ms"] = prefill
        result["prefill_sides"] = sides
        if after:
            result["devices"] = [vars_of(d) for d in devices(run)]
        text = "".join(log)
        result["splits"] = re.findall(r"splits = ([\d /]*\d)", text)[-1:] or None
        result["memory"] = re.findall(r"(\w+) +(model|KV|compute) buffer size = +([\d.]+) MiB", text)
        out.write_text(json.dumps(result), encoding="utf-8")
    except BaseException:
        sys.stderr.write("".join(line for line in log if "llama_graph_n_input_tensors" not in line)[-3000:])
        raise


def vars_of(device: Any) -> dict[str, Any]:
    """A frozen dataclass with slots as a dictionary."""
    return {name: getattr(device, name) for name in device.__slots__}


def devices(run: Run) -> list[Any]:
    """The GPUs' figures so far."""
    return run.bindings.device_status(run.model)


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
                f" cold/token {result['decode_cold_routes']:.2f} wait {result['decode_gpu_wait_ms']:.3f}"
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
