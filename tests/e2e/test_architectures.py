"""Where experts lie changes no architecture's results: two branches against the stock nodes, on the CPU.

Every architecture of the pinned source that loads experts is evaluated on tiny random models, with f32 and with mixed
quantised expert weights. Set OSTINATO_PLACEMENT_TABLE to a file name to get the measurements as a table.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod import locations
from ostinatod.installer.build_cache import EngineBuild
from ostinatod.installer.engine_build import kernels_patch_dir
from ostinatod.installer.job_count import default_jobs
from ostinatod.installer.source_fetch import unpack_pinned
from ostinatod.installer.upstream import read_upstream
from ostinatod.verification import nmse
from tests.e2e.programs import ROOT, run_program
from tests.e2e.workers.gpu_architectures import PLACEMENTS as PATH_PLACEMENTS
from tests.e2e.workers.ties import near_ties
from tests.e2e.workers.tiny_recipes import KINDS, read_pack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PACK = ROOT / "tests" / "data" / "architectures.tar.xz"

PLACEMENTS = ("all_hot", "all_cold", "half", "random")

ROUNDING_NMSE = 1e-12
"""Allowed where the stock nodes happen to round alike in passes of different sizes. Measured: at most 4e-15 there."""

MOST_NMSE = {"f32": 1e-6, "mixed": 1e-3}
"""Never allowed, whatever the stock nodes do. A token's hot and cold routes are summed apart, and quantised products of
8 rows or more go through other kernels in the stock nodes: both round differently, and layers amplify it. Measured: at
most 1.5e-7 (f32) and 7.9e-5 (mixed), both of gemma4, whose random router is nearly tied."""

TELLING = 100.0
"""How many times larger the effect of a branch that is left out has to be, for a comparison to mean anything."""

COMMON = ("expert_count=8", "expert_used_count=3", "expert_feed_forward_length=256", "feed_forward_length=256")


@dataclass(frozen=True)
class Variant:
    """Tiny models of one architecture, and what of them is compared."""

    name: str
    architecture: str
    changes: tuple[str, ...] = ()
    """Of the metadata, as ostinato-tiny-models takes them, after COMMON."""
    output: str = "logits"
    stock_layers: int = 0
    """Layers that keep the stock nodes in spite of a residency set, with a reason in the log."""


PLAIN = (
    "afmoe", "arctic", "bailingmoe", "bailingmoe2", "bailingmoe3", "cohere2moe", "dbrx", "deepseek", "deepseek2",
    "deepseek2-ocr", "deepseek32", "deepseek4", "dots1", "dots3note", "ernie4_5-moe", "exaone-moe", "glm-dsa",
    "glm4moe", "glm5-next", "gpt-oss", "granite", "granite_swa", "granitehybrid", "granitemoe", "grok", "grovemoe",
    "hunyuan-moe", "hy_v3", "hy_v4", "jamba", "kimi-k3", "kimi-linear", "laguna", "lfm2moe", "llada-moe", "llama",
    "llama4", "maple", "mellum", "mimo2", "minicpm", "minimax-01", "minimax-m2", "minimax-m3", "mistral3", "mistral4",
    "olmoe", "phimoe", "qwen2moe", "qwen35moe", "qwen3moe", "qwen3next", "qwen3vlmoe", "qwen4exp", "rnd1",
    "smallthinker", "step35",
)  # fmt: skip

WITH_DRAFT_LAYER = ("cohere2moe", "deepseek2", "deepseek32", "glm-dsa", "hy_v3", "qwen35moe", "qwen3next", "step35")
"""Architectures whose multi-token predictor has experts, and needs no other metadata."""

CLAMPED = ("bailingmoe3", "deepseek4", "glm5-next", "hy_v4", "maple", "step35")
"""Architectures that limit what goes into the activation, in two ways."""

ATTENTION = "attention.head_count=2,0,2,2", "attention.head_count_kv=2,0,2,2"

VARIANTS = (
    *(Variant(name, name) for name in PLAIN),
    Variant("gemma4", "gemma4", ("attention.sliding_window_pattern=1,1,1,1,0",)),
    Variant("llama-embed", "llama-embed", output="embeddings"),
    Variant("nemotron_h", "nemotron_h", ("feed_forward_length=0,0,256",)),
    Variant("nemotron_h_moe", "nemotron_h_moe", ("feed_forward_length=0,0,256",)),
    Variant(
        "nomic-bert-moe", "nomic-bert-moe", ("tokenizer.ggml.token_type_count=2", "moe_every_n_layers=2"), "embeddings"
    ),
    # what metadata change in the routes or in the experts
    Variant("deepseek2, expert groups", "deepseek2", ("expert_group_count=4", "expert_group_used_count=2")),
    Variant("deepseek4, hash layers", "deepseek4", ("hash_layer_count=2",)),
    Variant("grovemoe, adjugate groups", "grovemoe", ("experts_per_group=2",)),
    Variant("llama4, one expert per token", "llama4", ("expert_used_count=1",)),
    Variant("qwen3moe, every expert selected", "qwen3moe", ("expert_used_count=8",)),
    Variant("qwen35moe, gate and up apart", "qwen35moe", ("--separate",)),
    Variant(
        "nemotron_h, layers select differently many",
        "nemotron_h",
        ("block_count=4", "feed_forward_length=0,0,256,256", *ATTENTION, "expert_used_count=3,3,3,2"),
    ),
    Variant("granite_swa, graph against metadata", "granite_swa", ("expert_used_count=3,2",), stock_layers=1),
    *(Variant(f"{name}, tight limits", name, ("swiglu_clamp_exp=0.05",)) for name in CLAMPED),
    # the experts of a draft layer
    *(
        Variant(f"{name}, draft layer", name, ("block_count=3", "nextn_predict_layers=1"), "draft")
        for name in WITH_DRAFT_LAYER
    ),
    Variant(
        "bailingmoe3, draft layer",
        "bailingmoe3",
        ("block_count=3", "nextn_predict_layers=1", "attention.head_count=1,0,1", "attention.head_count_kv=1,0,1",
         "swiglu_clamp_exp=4.0", "swiglu_clamp_shexp=5.0"),
        "draft",
    ),
    Variant(
        "glm4moe, draft layer",
        "glm4moe",
        ("block_count=3", "nextn_predict_layers=1", "rope.dimension_sections=0,0,0,0"),
        "draft",
    ),
    Variant(
        "nemotron_h_moe, draft layer",
        "nemotron_h_moe",
        ("block_count=4", "nextn_predict_layers=1", "feed_forward_length=0,0,256,256", *ATTENTION),
        "draft",
    ),
)  # fmt: skip

NOT_EVALUATED = {
    "dflash": "a draft model that computes on the hidden states of the model it drafts for",
    "refact": "loads experts, but its graph never computes them",
}

SOURCES_OF = {"ernie4-5": "ernie4_5-moe", "openai-moe": "gpt-oss", "lfm2": "lfm2moe"}
"""Files of src/models that are not named after the architecture whose experts they load."""


@dataclass(frozen=True)
class Measurement:
    """One variant and file: how far each placement is from the stock nodes."""

    variant: str
    file: str
    noise: float
    nmse: dict[str, float]
    same_token: float
    missing: float

    def row(self) -> str:
        """A line of the table in docs/placement-invariance.md."""
        cells = [f"{value:.1e}" if value else "0" for value in (self.noise, *(self.nmse[p] for p in PLACEMENTS))]
        return " | ".join(
            [f"| {self.variant}", self.file, *cells, f"{100 * self.same_token:.1f} %", f"{self.missing:.1e} |"]
        )


@pytest.fixture(scope="module")
def table() -> Iterator[list[Measurement]]:
    """Collects the measurements, and writes them where OSTINATO_PLACEMENT_TABLE says."""
    measurements: list[Measurement] = []
    yield measurements
    if path := os.environ.get("OSTINATO_PLACEMENT_TABLE"):
        head = ["architecture", "weights", "stock, one pass", *PLACEMENTS, "same token", "without every second expert"]
        lines = [f"| {' | '.join(head)} |", "|---|---|" + "---|" * (len(head) - 2), *(m.row() for m in measurements)]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def allowed_nmse(file: str, noise: float) -> float:
    """No more than the stock nodes differ from themselves when the same tokens come in one pass instead of five."""
    return min(MOST_NMSE[file], max(ROUNDING_NMSE, noise))


def evaluate(variant: Variant, programs: Path, libraries: Path, out: Path) -> Any:
    """The arrays that workers/architecture.py writes for a variant."""
    worker = (sys.executable, "-m", "tests.e2e.workers.architecture")
    with tempfile.TemporaryDirectory(dir=out.parent) as directory:
        for command in (
            [str(programs / "ostinato-tiny-models"), variant.architecture, directory, *COMMON, *variant.changes],
            [*worker, str(libraries), directory, str(out), variant.output],
        ):
            run_program(command, timeout_s=300)
    return np.load(out)


@pytest.fixture(scope="module")
def evaluations(
    request: pytest.FixtureRequest,
    programs: Path,
    engine_build: EngineBuild,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Future[Any]]]:
    """The arrays of every variant that this session tests, by name; evaluated beside each other."""
    directory = tmp_path_factory.mktemp("architectures")
    parameters = [getattr(getattr(item, "callspec", None), "params", {}) for item in request.session.items]
    variants = [p["variant"] for p in parameters if isinstance(p.get("variant"), Variant)]
    pool = ThreadPoolExecutor(default_jobs())
    yield {
        variant.name: pool.submit(
            evaluate, variant, programs, engine_build.library_directory, directory / f"{index}.npz"
        )
        for index, variant in enumerate(variants)
    }
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name.replace(", ", "-").replace(" ", "_"))
def test_no_placement_changes_the_results(
    variant: Variant, evaluations: Mapping[str, Future[Any]], table: list[Measurement]
) -> None:
    outputs = evaluations[variant.name].result()
    missing = nmse(outputs["missing-stock"], outputs["f32-stock"])
    for file in ("f32", "mixed"):
        stock = outputs[f"{file}-stock"]
        placed = {placement: outputs[f"{file}-{placement}"] for placement in PLACEMENTS}
        same = {placement: placed[placement].argmax(axis=1) == stock.argmax(axis=1) for placement in PLACEMENTS}
        errors = {placement: nmse(placed[placement], stock) for placement in PLACEMENTS}
        noise = nmse(outputs[f"{file}-one_pass"], stock)
        table.append(
            Measurement(variant.name, file, noise, errors, min(float(s.mean()) for s in same.values()), missing)
        )

        allowed = allowed_nmse(file, noise)
        assert np.isfinite(stock).all()
        assert placed["all_hot"].tobytes() == stock.tobytes()
        for placement, error in errors.items():
            assert error <= allowed, f"{file}, {placement}"
            assert error * TELLING < missing, f"{file}, {placement}"
            assert (same[placement] | near_ties(stock, allowed)).all(), f"{file}, {placement}"

    computed = outputs["routes"] > 0
    assert computed.any()
    assert computed.all() or variant.output == "draft"
    layers = {line.split("layer ")[1].split()[0] for line in outputs["refused"].tolist()}
    assert len(layers) == variant.stock_layers, outputs["refused"]


def test_the_operators_compute_every_set_of_ids(programs: Path) -> None:
    run_program([str(programs / "ostinato-test-operators")], timeout_s=300)


def test_products_over_zero_slots_are_right_in_every_row(programs: Path) -> None:
    """On a CPU; on a GPU the same program also tries routes that are left out."""
    run_program([str(programs / "ostinato-skip-test"), "CPU", "quick"], timeout_s=300)


def test_the_recipes_for_gpus_are_those_of_all_variants() -> None:
    recipes = [(recipe.name, recipe.output, recipe.stock_layers) for recipe in read_pack(PACK)]
    assert recipes == [(variant.name, variant.output, variant.stock_layers) for variant in VARIANTS]


def test_the_sweep_for_gpus_passes_on_a_cpu(engine_build: EngineBuild, tmp_path: Path) -> None:
    """One architecture, with the split path: what a CPU has of it."""
    out = tmp_path / "sweep.json"
    sweep = (sys.executable, "-m", "tests.e2e.workers.gpu_architectures", str(engine_build.library_directory))
    run_program(
        [*sweep, str(PACK), str(out), "--device", "cpu", "--only", "bailingmoe3", "--limit-s", "250"], timeout_s=280
    )
    (architecture,) = json.loads(out.read_text(encoding="utf-8"))["architectures"]
    assert {(case["weights"], case["placement"]) for case in architecture["cases"]} == {
        (kind, placement) for kind in KINDS for placement in PATH_PLACEMENTS["split"]
    }
    assert "bailingmoe3" in out.with_suffix(".md").read_text(encoding="utf-8")


def test_every_architecture_that_loads_experts_is_evaluated(stock_libraries: Path) -> None:
    upstream = read_upstream(kernels_patch_dir() / "UPSTREAM")
    log = locations.log_dir() / "test-programs-build.log"
    source = unpack_pinned(locations.engine_cache_dir(), upstream, None, log, lambda progress: None)
    loads_experts = re.compile(r"ffn_up_exps\s*=|create_tensor_gate_up_exps\(layer")

    def plain(name: str) -> str:
        return re.sub("[-_]", "", name)

    evaluated = {plain(variant.architecture) for variant in VARIANTS} | {plain(name) for name in NOT_EVALUATED}
    models = [file for file in (source / "src" / "models").glob("*.cpp") if loads_experts.search(file.read_text())]
    assert len(models) > 50
    assert {m.stem for m in models if plain(SOURCES_OF.get(m.stem, m.stem)) not in evaluated} == set()
