"""Rows in processes of their own: what happens to those that fail, and when time is over."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from measured_row import Job
from row_runner import GRACE_S, Rows, difference

from ostinatod.bench.settings import Setting

STOCK = Setting("stock", "stock")


def rows(folder: Path, seconds: float = 60.0) -> Rows:
    job = Job(libraries=str(folder), model="none.gguf", setting={}, out="", contexts=str(folder))
    return Rows(job, folder / "out.json", {"model": "m"}, seconds, folder)


def test_a_row_that_fails_is_kept_with_its_last_words(tmp_path: Path) -> None:
    found = rows(tmp_path)
    row = found.run(STOCK)
    # No libraries are in the folder.
    assert row["failed"].startswith("status ")
    assert str(tmp_path) in row["failed"]
    written = json.loads((tmp_path / "out.json").read_text())
    assert [item["failed"] for item in written["results"]] == [row["failed"]]
    assert written["model"] == "m"


def test_no_row_is_begun_that_cannot_end(tmp_path: Path) -> None:
    found = rows(tmp_path, seconds=GRACE_S)
    assert found.run(STOCK)["failed"] == "no time was left"
    found = rows(tmp_path, seconds=1000)
    found.results.append({"load_s": 999.0})
    assert found.run(STOCK)["failed"] == "no time was left"


def test_hot_experts_need_a_row_that_has_counted(tmp_path: Path) -> None:
    assert rows(tmp_path).run(Setting("hot", "ostinato"), hot=0.5)["failed"] == "no row has counted routes"


def test_a_row_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import json, pathlib, sys, time\n"
        "job = json.loads(pathlib.Path(sys.argv[1]).read_text())\n"
        "out = pathlib.Path(job['out'])\n"
        "if job['setting']['name'] == 'writes':\n"
        "    depths = {'8': {'texts': [], 'decode_ms': 1.0}, '9': {'texts': []}}\n"
        "    out.write_text(json.dumps({'load_s': 0.0, 'depths': depths}))\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr("row_runner.CHILD", slow)
    monkeypatch.setattr("row_runner.GRACE_S", 0.0)
    begun = time.monotonic()
    row = rows(tmp_path, seconds=0.6).run(Setting("writes", "stock"))
    assert row["cut"]
    assert "failed" not in row
    # Of the other context nothing had been measured yet.
    assert list(row["depths"]) == ["8"]
    (tmp_path / "other").mkdir()
    assert rows(tmp_path / "other", seconds=0.3).run(Setting("hangs", "stock"))["failed"]
    assert time.monotonic() - begun < 20


def test_differences_tell_rounding_from_equality() -> None:
    reference = np.array([[1.0, 2.0], [4.0, 3.0]], np.float32)
    assert difference(reference.copy(), reference) == {"nmse": 0.0, "same_argmax": 1.0, "same_bits": True}
    other = reference.copy()
    other[1, 1] = 5.0
    told = difference(other, reference)
    assert told["nmse"] == pytest.approx(4 / 30)
    assert (told["same_argmax"], told["same_bits"]) == (0.5, False)
