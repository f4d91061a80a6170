"""Experts on the CPU alone: which steps are timed, that both ways of handing over weights mean the file's, and what is
told. kt-kernel's extension is played by one that computes with numpy from the addresses it is given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.cpu_experts import (
    Case,
    Layer,
    dequantised,
    described,
    hot_experts,
    in_pairs,
    main,
    read_layer,
    steps_of,
)
from benchmarks.peers.ktransformers_experts import from_bfloat16, in_bfloat16
from tests.fakes import gguf
from tests.unit.peers.mxfp4_layer import write_layer
from tests.unit.peers.test_requests import site

_KT_KERNEL = """
import ctypes, sys, time
from types import ModuleType, SimpleNamespace
import numpy as np

__version__, __cpu_variant__ = "0.7.2", "pretended"
TABLE = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)
TABLE = np.concatenate([TABLE, -TABLE])

def at(address, kind, shape):
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer(ctypes.string_at(address, count), kind).reshape(shape)

def floats(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)

class MOEConfig:
    def __init__(self, experts, k, hidden, inner, mask):
        self.shape = experts, k, hidden, inner
        self.hot = at(mask, np.bool_, experts)
        self.quant_config = SimpleNamespace()

class Experts:
    def __init__(self, config):
        self.config = config
    def load_weights_task(self, order):
        def load():
            experts, _, hidden, inner = self.config.shape
            assert at(order, np.int64, experts).tolist() == list(range(experts))
            self.up = [self.part("up", e, inner, hidden) for e in range(experts)]
            self.gate = [self.part("gate", e, inner, hidden) for e in range(experts)]
            self.down = [self.part("down", e, hidden, inner) for e in range(experts)]
        return load
    def forward_task(self, count, k, ids, weights, inputs, out, incremental):
        def forward():
            time.sleep(0.002)
            n, hidden = at(count, np.int32, 1)[0], self.config.shape[2]
            assert n <= self.config.max_len and not incremental
            x = floats(at(inputs, np.uint16, (n, hidden)))
            found = np.zeros((n, hidden), np.float32)
            for i, (row, factors) in enumerate(zip(at(ids, np.int64, (n, k)), at(weights, np.float32, (n, k)))):
                for e, factor in zip(row, factors):
                    if not self.config.hot[e]:
                        g = self.gate[e] @ x[i]
                        found[i] += factor * (self.down[e] @ (g / (1 + np.exp(-g)) * (self.up[e] @ x[i])))
            bits = np.ascontiguousarray(found.view(np.uint32) + 0x8000 >> 16).astype(np.uint16)
            ctypes.memmove(out, bits.ctypes.data, bits.nbytes)
        return forward

class MOE(Experts):
    def part(self, name, e, rows, columns):
        assert getattr(self.config, name + "_type") == 39 and self.config.hidden_type == "BF16"
        size = rows * columns // 32 * 17
        blocks = at(getattr(self.config, name + "_proj") + e * size, np.uint8, (rows, columns // 32, 17))
        halves = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], -1)
        return (TABLE[halves] * np.exp2(blocks[..., :1] - 127.0)).reshape(rows, columns).astype(np.float32)

class AVX2MXFP4_MOE(Experts):
    def part(self, name, e, rows, columns):
        quant = self.config.quant_config
        assert (quant.bits, quant.group_size, quant.zero_point) == (4, 32, False)
        pairs = at(getattr(self.config, name + "_projs")[0][e], np.uint8, (rows, columns // 2))
        scales = floats(at(getattr(self.config, name + "_scales")[0][e], np.uint16, (rows, columns // 32)))
        halves = np.stack([pairs & 15, pairs >> 4], -1).reshape(rows, columns)
        return TABLE[halves] * np.repeat(scales, 32, 1)

class WorkerPoolConfig:
    pass

class CPUInfer:
    backend_ = "the pool"
    def __init__(self, config):
        assert config.subpool_count == 1 and config.subpool_thread_count == [2]
    def submit(self, task):
        self.task = task
    def sync(self):
        self.task()

kt_kernel_ext = SimpleNamespace(
    moe=SimpleNamespace(MOEConfig=MOEConfig, MOE=MOE, AVX2MXFP4_MOE=AVX2MXFP4_MOE),
    kvcache=SimpleNamespace(ggml_type=SimpleNamespace(BF16="BF16")),
    WorkerPoolConfig=WorkerPoolConfig, CPUInfer=CPUInfer,
)
"""


def run(monkeypatch: pytest.MonkeyPatch, model: Path, out: Path, *options: str) -> int:
    arguments = ["cpu_experts", "--model", str(model), "--out", str(out), "--threads", "2", "--pause-us", "10"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--cases", "1:2,5", "--steps", "10", *options])
    return main()


def test_both_of_its_kinds_are_timed_on_the_weights_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site(tmp_path / "site", {"kt_kernel.py": _KT_KERNEL}, ())
    out = tmp_path / "result.json"

    code = run(monkeypatch, write_layer(tmp_path), out, "--site", str(tmp_path / "site"))

    told = capsys.readouterr().out
    assert code == 0, told
    result = json.loads(out.read_text(encoding="utf-8"))
    engines = result["engines"]
    assert {name: item["kernel"] for name, item in engines.items()} == {
        "kt-kernel LLAMAFILE": "MOE",
        "kt-kernel MXFP4": "AVX2MXFP4_MOE",
    }
    for item in engines.values():
        single, several = item["cases"]
        assert (single["cold_experts"], single["cold_routes"], several["tokens"]) == (2, 2, 5)
        assert single["ms"] >= 2
        assert single["nmse"] < 1e-4
        assert several["nmse"] < 1e-4
    assert result["layer"] == {"n_in": 64, "n_ff": 32, "n_experts": 12, "k": 3}
    assert "| 1 token, 2 cold | 2 |" in told


def test_an_answer_that_is_wrong_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = _KT_KERNEL.replace("[pairs & 15, pairs >> 4]", "[pairs >> 4, pairs & 15]")
    site(tmp_path / "site", {"kt_kernel.py": swapped}, ())

    model, out = write_layer(tmp_path), tmp_path / "out.json"

    assert run(monkeypatch, model, out, "--site", str(tmp_path / "site"), "--methods", "MXFP4") == 1


def test_what_is_not_installed_is_said_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"

    assert run(monkeypatch, write_layer(tmp_path), out, "--methods", "MXFP4") == 1

    error = json.loads(out.read_text(encoding="utf-8"))["engines"]["kt-kernel MXFP4"]["error"]
    assert "No module named 'kt_kernel'" in error
    assert "| did not run |" in capsys.readouterr().out


def test_steps_have_the_cold_routes_that_were_asked_for() -> None:
    layer = Layer("", (0, 0, 0), 64, 32, 50, 6)
    rng = np.random.default_rng(1)
    hot = hot_experts(rng, layer, 0.44)
    cases = [Case(1, 1, 20), Case(1, 6, 20), Case(200, None, 3)]

    steps = steps_of(rng, cases, layer, hot, 0.83)

    assert hot.sum() == 22
    assert [step.is_last for step in steps].index(True) == 19
    assert sum(step.is_last for step in steps) == 3
    assert all((~hot[step.ids]).sum() == 1 for step in steps[:20])
    assert all((~hot[step.ids]).sum() == 6 for step in steps[20:40])
    assert all(len(set(row)) == 6 for step in steps for row in step.ids.tolist())
    assert all(0.12 < (~hot[step.ids]).mean() < 0.22 for step in steps[40:])


def test_times_are_medians_without_the_first_steps() -> None:
    times = [900.0, 900.0, *[200.0] * 7, 400.0]

    (found,) = described([Case(1, 2, 10)], [(2, 2)] * 10, 1_000_000, times)

    assert (found["ms"], found["gb_per_s"], found["cold_experts"]) == (0.2, 10.0, 2.0)


def test_weights_in_pairs_are_the_same_weights() -> None:
    blocks = np.random.default_rng(5).integers(0, 256, (4, 2, 17), dtype=np.uint8)
    blocks[..., 0] = 127
    halves = in_pairs(blocks).reshape(4, -1)

    apart = np.stack([halves & 15, halves >> 4], axis=-1).reshape(4, -1)

    signs = np.where(apart & 8, -1, 1)
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[apart & 7]
    np.testing.assert_array_equal(dequantised(blocks), signs * sizes)


def test_bfloat16_is_rounded_to_the_nearest() -> None:
    values = np.array([1.0, -2.5, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)

    np.testing.assert_array_equal(from_bfloat16(in_bfloat16(values)), [1.0, -2.5, 1.0, 1 + 2**-6, 1 + 2**-7])


def test_other_weights_than_mxfp4_are_refused(tmp_path: Path) -> None:
    tensors = [gguf.Tensor(f"blk.0.ffn_{part}_exps.weight", (256, 64, 4), "Q4_K") for part in ("gate", "up", "down")]
    file = gguf.write(tmp_path / "m.gguf", {"general.architecture": "qwen3moe"}, tensors)

    with pytest.raises(SystemExit, match=r"expected blk\.0\.ffn_gate_exps\.weight.* of MXFP4"):
        read_layer(file, 0)
