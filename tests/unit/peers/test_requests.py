"""Drivers of engines that take whole requests, over packages of the same names that generate nothing but tokens.

The packages stand at the border to the real ones, which need a GPU: they have the calls the drivers make, no more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.measure import peer_named
from benchmarks.peers.protocol import ModelShape, Work
from benchmarks.peers.run import run_setting

GIB = 2**30
SHAPE = ModelShape(layers=8, layer_expert_bytes=4 * GIB, experts=256, other_bytes=GIB)
WORK = Work(model="m.gguf", depth=40, lengths=(8, 16), decode_tokens=5, repeats=2, threads=1, vocabulary=100)

_FREETOKEN = {
    "__init__.py": "",
    "core.py": """
from dataclasses import dataclass
@dataclass
class SamplingParams:
    max_tokens: int
    ignore_eos: bool
""",
    "scheduler/__init__.py": "",
    "scheduler/scheduler.py": """
def load_tokenizer(path): raise ValueError("no tokenizer in " + path)
def load_eos_token_ids(path, tokenizer): raise ValueError("no tokenizer in " + path)
""",
    "llm/__init__.py": "",
    "llm/llm.py": """
import time
from types import SimpleNamespace
from freetoken.scheduler import scheduler
class RequestAllFinished(Exception): pass
class Tensor(list):
    clone = list.copy
    def fill_(self, token):
        self[0] = token
        return self
class LLM:
    def __init__(self, model, **options):
        assert options["moe_cache_mem"] > 0 and options["max_running_req"] == 1
        self.tokenizer = scheduler.load_tokenizer(model)
        assert scheduler.load_eos_token_ids(model, self.tokenizer) == set()
        sampler = SimpleNamespace(sample=lambda logits, arguments: Tensor([7]))
        cache = SimpleNamespace(cache_size=512, prefill_hit_rows=9, prefill_total_rows=99)
        self.engine = SimpleNamespace(moe_offload_cache=cache, sampler=sampler)
        self.status_map = {}
    def offline_send_result(self, reply):
        self.status_map[0].output_ids += [m.next_token for m in reply if hasattr(m, "next_token")]
    def generate(self, prompts, sampling):
        assert sampling.ignore_eos
        self.status_map = {0: SimpleNamespace(output_ids=[])}
        self.offline_send_result([SimpleNamespace(prompt_tokens=len(prompts[0]), cached_tokens=len(prompts[0]) // 2)])
        time.sleep(0.15)
        for token in range(sampling.max_tokens):
            time.sleep(0.002)
            said = self.engine.sampler.sample(None, None)[0]
            self.offline_send_result([SimpleNamespace(next_token=said)])
        # scheduled before the last reply was seen
        assert self.engine.sampler.sample(None, None) == [7]
        self.tokenizer.decode([])
""",
}
_TORCH = "from types import SimpleNamespace\n__version__ = '0'\ncuda = SimpleNamespace(memory_reserved=lambda: 5)\n"
_SGLANG = """
import time
class Engine:
    def __init__(self, **options):
        assert options["skip_tokenizer_init"] and options["kt_num_gpu_experts"] == 3
    def generate(self, input_ids, sampling_params, stream):
        time.sleep(0.15)
        for token in range(sampling_params["max_new_tokens"]):
            time.sleep(0.002)
            yield {"output_ids": [token + 7]}
"""


def site(directory: Path, files: dict[str, str], distributions: tuple[str, ...]) -> dict[str, str]:
    """The environment of a process that finds these modules and package versions first."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name in distributions:
        metadata = directory / f"{name.replace('-', '_')}-1.0.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(directory)}


def freetoken_site(directory: Path) -> dict[str, str]:
    files = {f"freetoken/{name}": text for name, text in _FREETOKEN.items()}
    return site(directory, {**files, "torch.py": _TORCH}, ("freetoken",))


def assert_timed(figures: dict[str, Any] | None, error: str) -> None:
    assert figures is not None, error
    assert 2 <= figures["decode_ms"] < 150
    assert figures["prefill_ms"]["8"] >= 152
    assert figures["next_token"] == 7


def test_freetoken_times_the_first_token_and_each_one_after_it(tmp_path: Path) -> None:
    options = {"moe-strategy": "offload", "moe-cache-mem": GIB}

    outcome = run_setting("freetoken", peer_named("freetoken"), WORK, options, 60.0, freetoken_site(tmp_path))

    assert_timed(outcome.figures, outcome.error)
    assert outcome.figures is not None
    facts = outcome.figures["facts"]
    prompts = facts.pop("prompts")
    assert prompts[:2] == [[40, 20], [41, 20]]
    assert len(prompts) == 2 + len(WORK.lengths) * (WORK.repeats + 1)
    assert facts == {
        "freetoken": "1.0",
        "torch": "0",
        "slots": 512,
        "prefill_hits": [9, 99],
        "torch_reserved_bytes": 5,
    }


def test_ktransformers_times_the_first_token_and_each_one_after_it(tmp_path: Path) -> None:
    environment = site(tmp_path, {"kt_kernel.py": "", "sglang.py": _SGLANG}, ("kt-kernel", "sglang-kt"))

    outcome = run_setting(
        "ktransformers", peer_named("ktransformers"), WORK, {"kt_num_gpu_experts": 3}, 60.0, environment
    )

    assert_timed(outcome.figures, outcome.error)


def test_a_bandwidth_measurement_that_fails_is_told(tmp_path: Path) -> None:
    environment = freetoken_site(tmp_path)
    program = "import sys; sys.exit('no such link')"
    (tmp_path / "freetoken" / "moe").mkdir()
    (tmp_path / "freetoken" / "moe" / "benchbw.py").write_text(program, encoding="utf-8")
    options = {"moe-strategy": "hybrid", "moe-cache-mem": GIB, "moe-hybrid-max-fetch": -1}

    outcome = run_setting("freetoken", peer_named("freetoken"), WORK, options, 60.0, environment)

    assert outcome.figures is None
    assert outcome.error.splitlines()[-1] == "no such link"


def test_freetokens_cache_grows_into_the_memory_and_shrinks_out_of_what_it_may_not_use() -> None:
    peer = peer_named("freetoken")
    least = peer.least(SHAPE)

    more = peer.fitted(SHAPE, least, 10 * GIB, 16 * GIB)
    less = peer.fitted(SHAPE, more, 17 * GIB, 16 * GIB)

    assert least["moe-cache-mem"] > 2 * SHAPE.layer_expert_bytes
    assert 5.5 * GIB < more["moe-cache-mem"] - least["moe-cache-mem"] < 6 * GIB
    assert less["moe-cache-mem"] < more["moe-cache-mem"] - GIB
    assert peer.fitted(SHAPE, more, 16 * GIB - 2**20, 16 * GIB) == more


@pytest.mark.parametrize(("used", "experts"), [(4 * GIB, 97), (40 * GIB, 1)])
def test_ktransformers_gpu_experts_are_counted_per_layer(used: int, experts: int) -> None:
    peer = peer_named("ktransformers")

    options = peer.fitted(SHAPE, {"kt_num_gpu_experts": 1}, used, 16 * GIB)

    # 8 layers x 4 GiB / 256 experts: 128 MiB for one more of every layer
    assert options["kt_num_gpu_experts"] == experts


@pytest.mark.parametrize(("options", "specs"), [([], None), (["--widths", "1024"], ["freetoken__store_1024_1"])])
def test_kernels_are_packaged_where_the_engine_will_look(
    tmp_path: Path, options: list[str], specs: list[str] | None
) -> None:
    environment = freetoken_site(tmp_path)
    packager = """
from types import SimpleNamespace
def default_kernel_specs():
    return [SimpleNamespace(name=f"freetoken__store_{width}_1") for width in (512, 1024)]
def compile_and_package_kernels(*, out_dir, build_dir, specs, verbose, clean):
    return [out_dir + "/k.so", specs]
"""
    (tmp_path / "freetoken" / "kernel").mkdir()
    (tmp_path / "freetoken" / "kernel" / "aot.py").write_text(packager, encoding="utf-8")

    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.freetoken_kernels", "out", *options],
        cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert (child.returncode, child.stdout) == (0, f"out/k.so\n{specs}\n"), json.dumps(child.stderr)


def test_modules_of_other_models_are_not_compiled_and_the_longest_comes_first() -> None:
    from benchmarks.peers.freetoken_kernels import needed

    wanted = ["store_1024_128_1_false", "index_8192_4_128_1_false", "fast_index_copy_update_flag"]
    wanted += ["fast_index_copy_multi_1024_8", "batch_memcpy", "radix"]
    others = ["store_512_128_1_false", "index_4096_4_128_1_false", "fast_index_copy_2048_16_2048_1024_4_1"]
    names = [f"freetoken__{name}" for name in (*others, *wanted, "ggml")]

    assert needed(names, [1024, 8192]) == ["freetoken__ggml", *(f"freetoken__{name}" for name in wanted)]


def test_matrix_kernels_of_other_types_are_left_out_by_name(tmp_path: Path) -> None:
    from benchmarks.peers.freetoken_kernels import keep_types

    folder = tmp_path / "csrc" / "ggml" / "ggml-cuda" / "template-instances"
    folder.mkdir(parents=True)
    sources = {
        "mxfp4": "DECL_MMQ_CASE(GGML_TYPE_MXFP4);\n\nDECL_MMQ_CASE_W4A4(GGML_TYPE_MXFP4);\n",
        "nvfp4": "DECL_MMQ_CASE(GGML_TYPE_NVFP4);\n\nDECL_MMQ_CASE_W4A4(GGML_TYPE_NVFP4);\n",
    }
    for name, text in sources.items():
        (folder / f"mmq-instance-{name}.cu").write_text(f'#include "../mmq.cuh"\n\n{text}', encoding="utf-8")
    vectors = folder.parent / "mmvq.cu"
    cases = {
        name: f"        case {name}:\n            mul_mat_vec_q_switch_ncols_dst<{name}>\n"
        "                (vx, vy);\n            break;\n"
        for name in ("GGML_TYPE_NVFP4", "GGML_TYPE_MXFP4", "GGML_TYPE_Q4_K")
    }
    others = "        case GGML_TYPE_NVFP4:   return 4;\n"
    vectors.write_text(others + "".join(cases.values()), encoding="utf-8")
    with pytest.raises(SystemExit, match="expected kernels of q9"):
        keep_types(tmp_path, ["q9"])

    assert keep_types(tmp_path, ["mxfp4"]) == keep_types(tmp_path, ["mxfp4"]) == 1

    assert sources["mxfp4"] in (folder / "mmq-instance-mxfp4.cu").read_text(encoding="utf-8")
    other = (folder / "mmq-instance-nvfp4.cu").read_text(encoding="utf-8")
    assert "mmq.cuh" not in other
    assert other.count("left out of this build: GGML_TYPE_NVFP4") == 2
    assert "mul_mat_q_case<GGML_TYPE_NVFP4, GGML_PREC_Q4>" in other
    left = vectors.read_text(encoding="utf-8")
    assert left.startswith(others)
    assert cases["GGML_TYPE_MXFP4"] in left
    assert left.count("mul_mat_vec_q_switch_ncols_dst") == 1
    for name in ("GGML_TYPE_NVFP4", "GGML_TYPE_Q4_K"):
        assert f'        case {name}: GGML_ABORT("left out of this build: {name}");\n' in left
