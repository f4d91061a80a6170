"""KTransformers (PyPI wheels kt-kernel and sglang-kt 0.7.2): SGLang with some experts of every layer on the CPU."""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import time
from typing import Any

from benchmarks.peers.protocol import ModelShape, Options, Peer, Tokens, Work

_NEEDS = (
    "it needs the wheels kt-kernel and sglang-kt 0.7.2 with torch 2.9.1, and the model as safetensors; "
    "of a GGUF file it takes the CPU's experts alone"
)


class KTransformers:
    """One model in SGLang's offline engine; its radix cache keeps the context, so a request computes its new tokens.

    Raises RuntimeError with the first import error where a part is missing: kt-kernel is only the CPU's half and
    serves nothing alone.
    """

    def __init__(self, work: Work, options: Options) -> None:
        try:
            importlib.import_module("kt_kernel")
            sglang: Any = importlib.import_module("sglang")
        except ImportError as error:
            raise RuntimeError(f"{error}: {_NEEDS}") from error
        self._engine = sglang.Engine(
            model_path=work.model,
            skip_tokenizer_init=True,
            stream_output=True,
            context_length=work.n_ctx + max(work.lengths),
            max_running_requests=1,
            kt_method="LLAMAFILE",
            kt_weight_path=work.model,
            kt_cpuinfer=work.threads,
            kt_threadpool_count=1,
            **options,
        )
        self._context: list[int] = []

    def _request(self, prompt: list[int], output_tokens: int) -> tuple[list[float], list[int]]:
        """Milliseconds from the request to each output token, and the tokens."""
        sampling = {"max_new_tokens": output_tokens, "ignore_eos": True, "temperature": 0.0}
        arrivals: list[float] = []
        said: list[int] = []
        started = time.perf_counter()
        for chunk in self._engine.generate(input_ids=prompt, sampling_params=sampling, stream=True):
            arrivals.append((time.perf_counter() - started) * 1000)
            # All of them so far, or the new ones.
            said = chunk["output_ids"] if len(chunk["output_ids"]) > len(said) else said + chunk["output_ids"]
        if len(arrivals) != output_tokens:
            raise RuntimeError(f"expected {output_tokens} tokens, got {len(arrivals)}")
        return arrivals, said

    def read_context(self, tokens: Tokens) -> int:
        self._context = tokens.tolist()
        return self._request(self._context, 1)[1][0]

    def prefill(self, tokens: Tokens) -> float:
        return self._request(self._context + tokens.tolist(), 1)[0][0]

    def decode(self, tokens: Tokens) -> list[float]:
        at, _ = self._request(self._context + tokens[:1].tolist(), len(tokens) + 1)
        return [later - earlier for earlier, later in itertools.pairwise(at)]

    def turn(self, reused: int, new: Tokens, output: Tokens) -> tuple[float, float]:
        prompt = self._context[:reused] + new.tolist()
        at, said = self._request(prompt, len(output))
        # It goes on with what it said itself: another answer would have to be read.
        self._context = prompt + said[: len(output) - 1]
        return at[0], at[-1] - at[0]

    def facts(self) -> dict[str, Any]:
        return {name: importlib.metadata.version(name) for name in ("kt-kernel", "sglang-kt")}


def _least(shape: ModelShape) -> Options:
    return {"kt_num_gpu_experts": 1}


def _fitted(shape: ModelShape, options: Options, used: int, allowed: int) -> Options:
    one_of_every_layer = shape.layers * shape.layer_expert_bytes // shape.experts
    more = (allowed - used) // one_of_every_layer
    return {**options, "kt_num_gpu_experts": min(shape.experts, max(1, options["kt_num_gpu_experts"] + more))}


PEER = Peer(
    name="KTransformers",
    open=KTransformers,
    least=_least,
    fitted=_fitted,
    choices={"kt_gpu_prefill_token_threshold": (512, 4096), "kt_expert_placement_strategy": ("uniform", "frequency")},
)
