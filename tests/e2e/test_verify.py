"""`ostinato verify` on the real engine and the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ostinatod.cli.app import cli
from ostinatod.cli.verify import NOISE_SHARE, is_same, run_comparison
from ostinatod.errors import EngineError
from ostinatod.installer.engine_build import EngineBuild
from tests.e2e.conftest import RunWorker


@pytest.mark.engine
@pytest.mark.timeout(240)
def test_the_bundled_model_computes_the_same_wherever_its_experts_are(
    engine_build: object, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
    done = CliRunner().invoke(cli, ["verify", "tiny", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "same"
    placements = {case["placement"]: case for case in result["cases"]}
    assert list(placements) == ["all hot", "all cold", "every second hot", "random"]
    assert placements["all hot"]["nmse"] == 0.0
    assert 0.0 < placements["random"]["nmse"] < result["noise"]
    assert all(case["repeats"] for case in result["cases"])
    assert "evaluating: all cold" in done.stderr


def test_noise_and_repetition_decide() -> None:
    def case(nmse: float, *, repeats: bool = True) -> dict[str, object]:
        return {"nmse": nmse, "repeats": repeats, "placement": "random", "same_token": 1.0}

    assert is_same(case(1e-4), 1e-4)
    assert is_same(case(NOISE_SHARE * 1e-4), 1e-4)
    assert not is_same(case(NOISE_SHARE * 1.1e-4), 1e-4)
    assert not is_same(case(0.0, repeats=False), 1e-4)


def test_libraries_that_do_not_fit_are_told_with_what_was_found_and_the_next_command(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=f"the comparison failed: .*{tmp_path}") as refused:
        run_comparison(tmp_path, tmp_path / "model.gguf", "cpu")
    assert "ostinato engine build" in str(refused.value.hint)


@pytest.mark.engine
def test_a_model_loads_with_its_experts_kept_in_host_memory(run_worker: RunWorker, engine_build: EngineBuild) -> None:
    found = run_worker("host_experts", engine_build.library_directory)
    assert (int(found["n_layers"]), bool(found["overridden"])) == (8, True)
