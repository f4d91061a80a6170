"""served.py LIBRARIES MODEL PACK OUT.json [--device gpu]: what the engine's server answers, by placement of experts.

Several slots in one batch, embeddings of several inputs, drafts that passes of some tokens verify, and conversations
that go back to a context checkpoint, whose batches are small and end a prompt: with half of the experts hot, beside
llama.cpp's own nodes on the same device. The last need models with memory that cannot be rolled back, and drafts of a
model's own models with a draft layer; they are made of PACK (see tiny_recipes.py). Run as a module.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostinatod.profiles.gguf_model import fingerprint, read_model
from ostinatod.profiles.residency import ExpertLayout, Residency, write_residency
from ostinatod.verification import nmse
from tests.e2e.workers.engine_server import PLACED, STOCK, Device, EngineServer
from tests.e2e.workers.tiny_recipes import Encoder, make_model, read_pack

SLOTS = 4
PROMPTS = (
    "The order W3792453 was delivered. The customer wants to",
    "def fibonacci(n):\n    ",
    "To install the package, run the following command. " * 6,
    "I want to return the shoes that I bought last week, since they are too small. " * 10,
)
WITH_CHECKPOINTS = ("gpt-oss", "qwen3next")
"""A sliding window, and recurrent layers."""

REPETITIVE = "def add(a, b):\n    return a + b\n\n" * 6
"""What has been there before is drafted again."""
LOOK_UP = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "7")
"""Up to seven tokens that followed the same three: passes of two to eight."""
WITH_DRAFT_LAYER = "glm4moe, draft layer"
DRAFT_LAYER = ("--spec-type", "draft-mtp", "--spec-draft-n-max", "3")

Outcome = dict[str, Any]


class Placements:
    """Flags for an engine with llama.cpp's own nodes, and for one with half of a model's experts hot."""

    def __init__(self, device: Device, model: Path, directory: Path) -> None:
        header = read_model([model])
        layers = sorted({int(t.name.split(".")[1]) for t in header.tensors() if "_exps." in t.name})
        layout = ExpertLayout(fingerprint(header), tuple(layers), header.expert_count)
        every_second = tuple(range(0, layout.n_experts, 2))
        path = directory / f"{model.stem}.residency"
        write_residency(path, Residency(layout, 1, 1_750_000_000, {}, (every_second,) * len(layers)))
        common = ("--threads", "1", "--metrics", "--ctx-size", "4096")
        own = ("--ostinato-fingerprint", layout.fingerprint, "--ostinato-residency", str(path))
        self.flags = {"stock": (*common, *STOCK[device]), "half": (*common, *PLACED[device], *own)}


def tokens(engine: EngineServer, *prompts: str) -> list[list[list[float]]]:
    """Greedy tokens behind each of the prompts: a token's id, and by how many nats it was likelier than the next one.

    Prompts of one request begin together, which those of several threads need not.
    """
    body = {"prompt": prompts, "n_predict": 24, "temperature": 0, "ignore_eos": True, "n_probs": 2}
    answer = engine.post("/completion", body)
    if answer.status != 200:
        raise RuntimeError(f"a completion: {answer.body}")
    return [[_margin(step) for step in one["completion_probabilities"]] for one in _in_order(answer.body)]


def _in_order(body: Any) -> list[Outcome]:
    return sorted(body, key=lambda one: int(one["index"])) if isinstance(body, list) else [body]


def _margin(step: Outcome) -> list[float]:
    first, second = (entry["logprob"] for entry in step["top_logprobs"])
    return [step["id"], first - second]


def slots(engine: EngineServer) -> Outcome:
    """Tokens behind all prompts at once, and how many were worked on in one batch."""
    answers = tokens(engine, *PROMPTS)
    metrics = engine.text("/metrics")
    busy = next(line for line in metrics.splitlines() if line.startswith("llamacpp:n_busy_slots_per_decode"))
    return {"tokens": answers, "busy_slots_per_decode": float(busy.split()[-1])}


def disagreement(answer: list[list[float]], stock: list[list[float]]) -> float:
    """By how many nats the stock nodes preferred another token where the two first differ; 0 where they never do."""
    gaps = (gap for (token, _), (expected, gap) in zip(answer, stock, strict=True) if token != expected)
    return next(gaps, 0.0)


def embeddings(engine: EngineServer) -> list[list[float]]:
    """Vectors of all prompts, by one request."""
    answer = engine.post("/v1/embeddings", {"input": list(PROMPTS)})
    if answer.status != 200:
        raise RuntimeError(f"embeddings: {answer.body}")
    return [entry["embedding"] for entry in answer.body["data"]]


def drafted(engine: EngineServer, prompt: str | list[int]) -> Outcome:
    """Greedy tokens, how many of them were drafted, and how many drafts were right."""
    body = {"prompt": prompt, "n_predict": 48, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    answer = engine.post("/completion", body)
    if answer.status != 200:
        raise RuntimeError(f"an answer with drafts: {answer.body}")
    timings = answer.body["timings"]
    counts = {name: timings.get(f"draft_n{part}", 0) for name, part in (("drafts", ""), ("accepted", "_accepted"))}
    return {"tokens": answer.body["tokens"], **counts}


def conversation(engine: EngineServer) -> list[Outcome]:
    """Turns over made-up tokens; the third and fourth go back to what earlier ones began with."""
    rng = np.random.default_rng(29)
    begin, first, second, third = (rng.integers(5, 120, n).tolist() for n in (700, 40, 70, 9))
    turns = []
    for prompt in (begin, begin + first, begin + second, begin + first + third, begin + second + third):
        body = {"prompt": prompt, "n_predict": 12, "temperature": 0, "ignore_eos": True, "return_tokens": True}
        answer = engine.post("/completion", {**body, "cache_prompt": True})
        if answer.status != 200:
            raise RuntimeError(f"a turn of {len(prompt)} tokens: {answer.body}")
        timings = answer.body["timings"]
        turns.append({"tokens": answer.body["tokens"], "read": timings["prompt_n"], "of": len(prompt)})
    return turns


def read_arguments() -> argparse.Namespace:
    """LIBRARIES MODEL PACK OUT [--device cpu|gpu]"""
    parser = argparse.ArgumentParser()
    parser.add_argument("libraries", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    return parser.parse_args()


def made_models(
    arguments: argparse.Namespace, directory: Path, names: Sequence[str]
) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Name, file and flags of each model of the pack that is asked for, made when it is its turn."""
    encoder = Encoder(arguments.libraries)
    for recipe in read_pack(arguments.pack):
        if recipe.name in names:
            path = directory / f"{recipe.name}.gguf"
            make_model(recipe, "quantised", encoder, path)
            yield recipe.name, path, ("--override-kv", f"{recipe.architecture}.context_length=int:4096")


def models_with_checkpoints(
    arguments: argparse.Namespace, directory: Path
) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Those whose slots keep context checkpoints."""
    return made_models(arguments, directory, WITH_CHECKPOINTS)


def main() -> int:
    """The program."""
    arguments = read_arguments()
    result: Outcome = {"device": arguments.device}

    def served(model: Path, flags: Sequence[str]) -> EngineServer:
        return EngineServer(arguments.libraries, model, flags)

    with tempfile.TemporaryDirectory() as directory:
        flags: Mapping[str, tuple[str, ...]] = Placements(arguments.device, arguments.model, Path(directory)).flags
        several = ("--parallel", str(SLOTS), "--kv-unified")
        with served(arguments.model, (*flags["stock"], *several)) as engine:
            alone = [tokens(engine, prompt)[0] for prompt in PROMPTS]
            at_once = slots(engine)
            result["stock_disagreement"] = list(map(disagreement, at_once["tokens"], alone))
        with served(arguments.model, (*flags["half"], *several)) as engine:
            half = slots(engine)
            result["slots"] = {"disagreement": list(map(disagreement, half["tokens"], alone)), "half": half}
            result["residency"] = engine.get("/ostinato/status").body["residency"]
        vectors = {}
        for name in flags:
            pooled = ("--embeddings", "--pooling", "mean", "--ubatch-size", "512")
            with served(arguments.model, (*flags[name], *several, *pooled)) as engine:
                vectors[name] = np.array(embeddings(engine), np.float32)
        result["embeddings"] = {"nmse": nmse(vectors["half"], vectors["stock"]), "shape": list(vectors["half"].shape)}
        result["drafts"] = {"looked up": {}, "of its own": {}}
        for name in flags:
            with served(arguments.model, (*flags[name], "--parallel", "1", *LOOK_UP)) as engine:
                result["drafts"]["looked up"][name] = drafted(engine, REPETITIVE)
        ids = np.random.default_rng(5).integers(5, 120, 90).tolist()
        for _, path, longer in made_models(arguments, Path(directory), (WITH_DRAFT_LAYER,)):
            own = Placements(arguments.device, path, Path(directory)).flags
            for name in own:
                with served(path, (*own[name], "--parallel", "1", *longer, *DRAFT_LAYER)) as engine:
                    result["drafts"]["of its own"][name] = drafted(engine, ids)
        result["checkpoints"] = {}
        for recipe, path, longer in models_with_checkpoints(arguments, Path(directory)):
            flags = Placements(arguments.device, path, Path(directory)).flags
            turns = result["checkpoints"][recipe] = {}
            for name in flags:
                with served(path, (*flags[name], "--parallel", "1", *longer)) as engine:
                    turns[name] = conversation(engine)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
