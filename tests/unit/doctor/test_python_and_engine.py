from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ostinatod.doctor.engine_checks import check_bindings, check_compiler, check_engine, find_build
from ostinatod.doctor.python_checks import check_environment, check_packages, check_python
from ostinatod.errors import EngineBuildError
from ostinatod.installer import bindings
from ostinatod.installer.build_cache import BuildCache, EngineBuild
from ostinatod.installer.toolchain import Toolchain
from ostinatod.installer.upstream import Upstream


def test_an_old_python_is_a_problem() -> None:
    found = check_python((3, 9, 2), "/usr/bin/python3.9")
    assert (found.level, "3.9.2" in found.found, "installer" in (found.hint or "")) == ("problem", True, True)
    assert check_python((3, 14, 0), "python").level == "ok"


def test_running_outside_an_environment_is_told(tmp_path: Path) -> None:
    assert check_environment(tmp_path, tmp_path).level == "warning"


def test_another_ostinato_on_path_is_told(tmp_path: Path) -> None:
    for name in ("own/bin", "other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "ostinato").touch(mode=0o755)
    found = check_environment(tmp_path / "own", tmp_path, str(tmp_path / "other"))
    assert found.level == "warning"
    assert str(tmp_path / "other" / "ostinato") in found.found
    assert check_environment(tmp_path / "own", tmp_path, str(tmp_path / "own" / "bin")).level == "ok"


def test_missing_and_unfit_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = ["click>=999", "no-such-package", "no-such-extra; extra == 'dev'", "psutil"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: stated)
    found = check_packages()
    assert found.level == "problem"
    assert "no-such-package is missing" in found.found
    assert "is not >=999" in found.found
    assert "no-such-extra" not in found.found


def test_a_distribution_that_is_not_installed_is_a_problem() -> None:
    assert check_packages("no-such-distribution").level == "problem"


@pytest.fixture
def build(tmp_path: Path) -> EngineBuild:
    server = tmp_path / "bin" / "ostinato-engine"
    server.parent.mkdir()
    server.write_text("#!/bin/sh\necho version 1\n")
    server.chmod(0o755)
    return EngineBuild(tmp_path, server, server.parent, "cpu", "d" * 64, "0c1e57098aa", "s")


def test_no_engine_is_a_problem(tmp_path: Path) -> None:
    assert find_build(BuildCache(tmp_path).current) is None
    found = check_engine(None, up_to_date=False, environment={})
    assert (found.level, found.hint) == ("problem", "Build it: ostinato engine build")


def test_an_engine_of_other_sources_is_a_problem(build: EngineBuild) -> None:
    assert check_engine(build, up_to_date=True, environment={"PATH": os.environ["PATH"]}).level == "ok"
    found = check_engine(build, up_to_date=False, environment={"PATH": os.environ["PATH"]})
    assert (found.level, "other sources" in found.found) == ("problem", True)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\necho 'libcudart.so.12: cannot open shared object file' >&2\nexit 127\n", "libcudart"),
        ("#!/bin/sh\nexit 132\n", "status 132"),
        ("#!/no/such/interpreter\n", "No such file"),
    ],
)
def test_an_engine_that_does_not_start_says_why(build: EngineBuild, script: str, said: str) -> None:
    build.server.write_text(script)
    found = check_engine(build, up_to_date=True, environment={"PATH": os.environ["PATH"]})
    assert (found.level, said in found.found) == ("problem", True)


def test_a_missing_compiler_is_a_problem_only_without_an_engine(build: EngineBuild) -> None:
    def find() -> Toolchain:
        raise EngineBuildError("no C++ compiler found", hint="apt install it")

    assert check_compiler(find, None).level == "problem"
    found = check_compiler(find, build)
    assert (found.level, found.hint) == ("warning", "apt install it")
    tools = Toolchain(Path("cmake"), Path("ninja"), None, ("g++ 12",))
    assert check_compiler(lambda: tools, build).level == "ok"


@pytest.mark.parametrize(
    ("installed", "libraries", "found"),
    [
        (None, [], "found none"),
        ("0.1", [], "found 0.1"),
        ("1.0", ["llama_cpp/lib/libllama.so"], "libllama.so"),
    ],
)
def test_bindings_of_another_kind_are_told(
    installed: str | None, libraries: Sequence[str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinatod.doctor.engine_checks.installed_version", lambda package: installed)
    monkeypatch.setattr("ostinatod.doctor.engine_checks.bundled_libraries", lambda package: libraries)
    finding = check_bindings(Upstream("c", "llama-cpp-python", "1.0", "0" * 64))
    assert (finding.level, found in finding.found) == ("warning", True)


def test_the_bindings_of_this_environment_are_looked_up_where_they_are() -> None:
    version = importlib.metadata.version("pytest")
    assert check_bindings(Upstream("c", "pytest", version, "0" * 64)).level == "ok"
    assert bindings.installed_version("no-such-package") is None
    assert sys.prefix
