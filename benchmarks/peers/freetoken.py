"""FreeToken (PyPI wheel freetoken 0.2.1), in its offline mode.

Experts lie in page-locked host banks, with an LRU cache of them on the GPU. It measures link and CPU once per model
("ft bench bw"); the hybrid strategy divides its cache misses between the two by that.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.peers.protocol import ModelShape, Options, Peer, Tokens, Work

_CLOSE_ENOUGH = 512 * 2**20
"""Bytes that may stay unused before a setting is fitted to the memory once more."""

_NO_TOKENIZER = SimpleNamespace(decode=lambda _: "", eos_token_id=None)


def _bandwidth_profile(model: str, threads: int) -> Path:
    """The file of FreeToken's own measurement for this model, made on first use."""
    path = Path(tempfile.gettempdir(), f"ostinato-peers-freetoken-{Path(model).stem}-{threads}.json")
    if not path.exists():
        command = [sys.executable, "-m", "freetoken.moe.benchbw", "--model", model, "--cpu-threads", str(threads)]
        child = subprocess.run([*command, "--out", str(path)], capture_output=True, text=True, timeout=200)
        if not path.exists():
            raise RuntimeError(
                f"{' '.join(command)}: status {child.returncode}\n{(child.stdout + child.stderr)[-3000:]}"
            )
    return path


def scheduler_options(work: Work, options: Options) -> dict[str, Any]:
    """The keyword arguments of freetoken.llm.LLM."""
    strategy = options["moe-strategy"]
    found: dict[str, Any] = {
        "moe_strategy": strategy,
        "max_running_req": 1,
        "cuda_graph_max_bs": 1,
        "num_token_override": -(-(work.n_ctx + max(work.lengths)) // 128) * 128,
        "max_seq_len_override": work.n_ctx + max(work.lengths),
        "max_extend_tokens": options.get("max-prefill-length", 8192),
        "moe_cpu_threads": work.threads,
        "moe_prefill_hit_d2d": bool(options.get("moe-prefill-hit-d2d", False)),
        "moe_hybrid_max_fetch": options.get("moe-hybrid-max-fetch", -1),
        "attention_backend": options.get("attention-backend", "auto"),
        "moe_collect_stats": False,
    }
    if strategy != "cpu":
        found["moe_cache_mem"] = options["moe-cache-mem"]
    return found


class _SaidTokens:
    """Makes a sampler, after it did its work, say given tokens: a random model's own would soon repeat themselves."""

    def __init__(self, sampler: Any) -> None:
        self._sample = sampler.sample
        self._wanted: list[int] = []
        self._count = 0
        self._first: Any = None
        sampler.sample = self._said

    def next(self, wanted: list[int]) -> None:
        """What the next request says."""
        self._wanted, self._count = wanted, 0

    @property
    def own(self) -> int:
        """What it would have said itself first."""
        return int(self._first[0])

    def _said(self, logits: Any, arguments: Any) -> Any:
        own = self._sample(logits, arguments)
        # A step that was begun before the request was seen to be over says nothing that counts.
        if self._count >= len(self._wanted):
            return own
        if self._count == 0:
            self._first = own.clone()
        self._count += 1
        return own.fill_(self._wanted[self._count - 1])


class FreeToken:
    """One model in the offline scheduler; its prefix cache keeps the context, so a request computes its new tokens."""

    def __init__(self, work: Work, options: Options) -> None:
        if options["moe-strategy"] == "hybrid" and options.get("moe-hybrid-max-fetch", -1) < 0:
            os.environ["FREETOKEN_BENCHBW_PATH"] = str(_bandwidth_profile(work.model, work.threads))
        scheduler: Any = importlib.import_module("freetoken.scheduler.scheduler")
        # the measured files carry no tokenizer: token ids go in and come out
        scheduler.load_tokenizer = lambda *_, **__: _NO_TOKENIZER
        scheduler.load_eos_token_ids = lambda *_, **__: set()
        llm: Any = importlib.import_module("freetoken.llm.llm")
        core: Any = importlib.import_module("freetoken.core")
        self._finished: type[Exception] = llm.RequestAllFinished
        self._sampling = core.SamplingParams
        self._arrivals: list[float] = []
        self._prompts: list[tuple[int, int]] = []
        arrivals, prompts = self._arrivals, self._prompts

        class Timed(llm.LLM):  # type: ignore[misc]  # of a package without types
            def offline_send_result(self, reply: list[Any]) -> None:
                super().offline_send_result(reply)
                now = time.perf_counter()
                arrivals.extend(now for message in reply if hasattr(message, "next_token"))
                prompts.extend((m.prompt_tokens, m.cached_tokens) for m in reply if hasattr(m, "cached_tokens"))

        self._llm = Timed(work.model, **scheduler_options(work, options))
        self._said = _SaidTokens(self._llm.engine.sampler)
        self._context: list[int] = []

    def _request(self, prompt: list[int], output: list[int]) -> list[float]:
        """Milliseconds from the request to each output token; it says `output`, whatever it would choose."""
        self._arrivals.clear()
        self._said.next(output)
        sampling = self._sampling(max_tokens=len(output), ignore_eos=True)
        started = time.perf_counter()
        self._llm.generate([prompt], sampling)
        if len(self._arrivals) != len(output):
            raise RuntimeError(f"expected {len(output)} tokens, got {len(self._arrivals)}")
        if (said := [int(token) for token in self._llm.status_map[0].output_ids]) != output:
            raise RuntimeError(f"expected it to say {output[:8]} and so on, found {said[:8]}")
        return [(at - started) * 1000 for at in self._arrivals]

    def read_context(self, tokens: Tokens) -> int:
        self._context = tokens.tolist()
        self._request(self._context, [0])
        return self._said.own

    def prefill(self, tokens: Tokens) -> float:
        return self._request(self._context + tokens.tolist(), [0])[0]

    def decode(self, tokens: Tokens) -> list[float]:
        first, *others = tokens.tolist()
        at = self._request([*self._context, first], [*others, 0, 0])
        return [later - earlier for earlier, later in itertools.pairwise(at)]

    def turn(self, reused: int, new: Tokens, output: Tokens) -> tuple[float, float]:
        prompt = self._context[:reused] + new.tolist()
        at = self._request(prompt, output.tolist())
        self._context = prompt + output[:-1].tolist()
        return at[0], at[-1] - at[0]

    def facts(self) -> dict[str, Any]:
        torch: Any = importlib.import_module("torch")
        cache = getattr(self._llm.engine, "moe_offload_cache", None)
        return {
            "freetoken": importlib.metadata.version("freetoken"),
            "torch": torch.__version__,
            "slots": getattr(cache, "cache_size", None),
            # of every request so far: tokens of its prompt, and of those what its prefix cache had
            "prompts": list(self._prompts),
            # of what prefills streamed with --moe-prefill-hit-d2d: experts that were in the slots, and all
            "prefill_hits": [getattr(cache, name, None) for name in ("prefill_hit_rows", "prefill_total_rows")],
            "torch_reserved_bytes": torch.cuda.memory_reserved(),
        }


def _least(shape: ModelShape) -> Options:
    # two layers of slots are the least with which it streams one layer while it computes another; slots are padded
    return {"moe-strategy": "hybrid", "moe-cache-mem": shape.layer_expert_bytes * 33 // 16}


def _fitted(shape: ModelShape, options: Options, used: int, allowed: int) -> Options:
    if 0 <= allowed - used < _CLOSE_ENOUGH:
        return options
    cache = options["moe-cache-mem"] + allowed - used - _CLOSE_ENOUGH // 4
    least = _least(shape)["moe-cache-mem"]
    everything = shape.layers * shape.layer_expert_bytes * 33 // 32
    return {**options, "moe-cache-mem": max(least, min(cache, everything))}


PEER = Peer(
    name="FreeToken",
    open=FreeToken,
    least=_least,
    fitted=_fitted,
    choices={
        # a prefill streams every expert of every layer, however short it is; with this, those that have no slot
        "moe-prefill-hit-d2d": (False, True),
        "moe-strategy": ("hybrid", "offload"),
        "moe-hybrid-max-fetch": (-1, 0, 2),
        "max-prefill-length": (8192, 2048),
    },
    # its process group of one needs no name of this machine
    environment={"GLOO_SOCKET_IFNAME": "lo"},
    # Triton's kernels, which need the GPU
    first_s=150.0,
)
