"""The engine's record of what its CPU branch took, compiled by itself: what is kept of decode steps and of passes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

OVERLAY = Path(__file__).parents[2] / "kernels_patch" / "overlay" / "ostinato"

_PROGRAM = r"""
#include <cstdio>
#include <stddef.h>

#include "step-times.h"

using number = unsigned long long;

int main() {
    static ostinato_step_times times;
    ostinato_speeds speeds;
    const std::vector<int32_t> one = { 7, 1 };             // expert 7 has one row
    const std::vector<int32_t> two = { 3, 1, 9, 2 };       // experts 3 and 9 have one row each
    times.add({ 0, 1, 1, 100 }, speeds, 1000, one);
    times.add({ 0, 1, 1, 120 }, speeds, 1000, one);
    times.add({ 0, 1, 2, 200 }, speeds, 1000, two);
    times.add({ 1, 1, 2, 300 }, speeds, 1000, two);
    times.add({ 0, 1, 0, 5 },   speeds, 1000, {});         // nothing was left to the CPU
    times.add({ 0, 1, ostinato_step_times::MAX_COLD + 1, 5 }, speeds, 1000, two);
    times.add({ ostinato_step_times::MAX_LAYERS, 1, 1, 5 },   speeds, 1000, one);
    times.add({ 0, 8, 20, 1000 }, speeds, 1000, { 3, 1, 9, 20 });
    const uint64_t unmeasured = times.prefill_sums().predicted_ns;
    speeds.is_default = false;
    speeds.cpu_row  = 1e-9;                                // 1 µs for an expert of 1,000 bytes with one row
    speeds.cpu_rows = 4e-9;                                // 4 µs with 16
    times.add({ 0, 8, 17, 6000 }, speeds, 1000, { 3, 1, 9, 17 });
    const auto layer = times.decode_of(0, 30, 1000);
    const auto other = times.decode_of(1, 31, 1000);
    const auto sums  = times.prefill_sums();
    printf("{\"il\": %d, \"steps\": [%llu, %llu, %llu], \"ns\": [%llu, %llu], \"other\": [%llu, %llu], ",
        layer.il, (number) layer.steps[0], (number) layer.steps[1], (number) layer.steps[2],
        (number) layer.ns[0], (number) layer.ns[1],
        (number) other.steps[1], (number) other.ns[1]);
    printf("\"prefill\": [%llu, %llu, %llu], \"predicted\": [%llu, %llu]}\n", (number) sums.steps,
        (number) sums.n_routes, (number) sums.ns, (number) unmeasured,
        (number) sums.predicted_ns);
}
"""


def test_decode_steps_are_kept_by_cold_routes_and_passes_beside_their_prediction(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, program = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(_PROGRAM, encoding="utf-8")
    command = [compiler, "-std=c++17", f"-I{OVERLAY}", str(source), str(OVERLAY / "upload-choice.cpp")]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=120)
    told = json.loads(subprocess.run([program], check=True, capture_output=True, timeout=60).stdout)
    assert told["il"] == 30
    assert told["steps"] == [2, 1, 0]
    assert told["ns"] == [220, 200]
    assert told["other"] == [1, 300]
    assert told["prefill"] == [2, 37, 7000]
    # Without measured speeds nothing is predicted; then 1 µs for one row and 4 µs for 16.
    assert told["predicted"] == [0, 5000]
