"""Real CMake, a real compiler, a miniature llama.cpp."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from ostinatod.errors import EngineBuildError, EngineNotBuilt
from ostinatod.installer.build_cache import BuildCache
from ostinatod.installer.build_progress import BuildProgress
from ostinatod.installer.child_process import run_logged
from ostinatod.installer.engine_build import EngineBuild, build_engine, find_engine, is_up_to_date
from tests.conftest import eventually
from tests.unit.installer.conftest import MiniProject

needs_tools = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in ("cmake", "ninja", "cc", "c++")), reason="needs cmake, ninja and a compiler"
)


def _build(project: MiniProject, reports: list[BuildProgress] | None = None) -> EngineBuild:
    record = (reports if reports is not None else []).append
    return build_engine("cpu", 2, record, sdist=project.sdist, sources=project.sources)


def _says(build: EngineBuild) -> str:
    return subprocess.run([build.server], capture_output=True, text=True, check=True).stdout.strip()


@needs_tools
def test_a_build_is_patched_compiled_found_and_not_repeated(mini_project: MiniProject) -> None:
    reports: list[BuildProgress] = []
    build = _build(mini_project, reports)
    assert _says(build) == "42"  # 40 in the source, 2 by way of the patch and the overlay
    assert list(dict.fromkeys(report.step for report in reports)) == [
        "unpack", "patch", "configure", "compile", "install",
    ]  # fmt: skip
    compiled = [report for report in reports if report.step == "compile" and report.total > 1]
    assert compiled[-1].done == compiled[-1].total
    assert any(report.detail == "answer.c" for report in compiled)
    assert find_engine() == build
    assert (build.backend, build.llama_cpp_commit) == ("cpu", "0c1e57098")
    assert {"llama-server", "llama-bench"} <= {entry.name for entry in build.library_directory.iterdir()}

    again: list[BuildProgress] = []
    assert _build(mini_project, again) == build
    assert again == []


@needs_tools
def test_a_failed_compile_says_why_and_resumes(mini_project: MiniProject) -> None:
    mini_project.write("overlay/hook.c", "int ostinato_hook(void) { return undeclared; }\n")
    with pytest.raises(EngineBuildError) as caught:
        _build(mini_project)
    assert "undeclared" in caught.value.message
    assert "ostinato engine build" in (caught.value.hint or "")
    log = next(Path(word) for word in caught.value.message.split() if word.endswith(".log"))
    assert "undeclared" in log.read_text()
    with pytest.raises(EngineNotBuilt):
        find_engine()

    mini_project.write("overlay/hook.c", "int ostinato_hook(void) { return 3; }\n")
    reports: list[BuildProgress] = []
    build = _build(mini_project, reports)
    assert _says(build) == "43"
    compiled = {report.detail for report in reports if report.step == "compile" and report.total > 1}
    assert "hook.c" in compiled
    assert compiled.isdisjoint({"main.c", "answer.c"})
    assert "unpack" not in [report.step for report in reports]


@needs_tools
def test_a_changed_overlay_is_a_new_build_that_recompiles_only_what_changed(mini_project: MiniProject) -> None:
    first = _build(mini_project)
    assert is_up_to_date(first, mini_project.sources)
    mini_project.write("overlay/hook.c", "int ostinato_hook(void) { return 4; }\n")
    assert not is_up_to_date(first, mini_project.sources)
    reports: list[BuildProgress] = []
    second = _build(mini_project, reports)
    assert (_says(first), _says(second)) == ("42", "44")
    assert find_engine() == second
    details = {report.detail for report in reports if report.step == "compile" and report.total > 1}
    assert "hook.c" in details
    assert details.isdisjoint({"main.c", "answer.c"})


@needs_tools
def test_an_engine_that_does_not_start_is_not_installed(mini_project: MiniProject) -> None:
    mini_project.write(
        "overlay/main.c", '#include <stdio.h>\nint main(void) { fprintf(stderr, "no libfoo"); return 7; }\n'
    )
    with pytest.raises(EngineBuildError, match="does not start: no libfoo"):
        _build(mini_project)
    with pytest.raises(EngineNotBuilt):
        find_engine()


def test_a_patch_that_does_not_fit_names_file_text_and_command(mini_project: MiniProject) -> None:
    patch = mini_project.sources / "patches" / "answer-add-what-the-hook-gives.patch"
    patch.write_text(patch.read_text().replace("int base = 40", "int base = 41"))
    with pytest.raises(EngineBuildError) as caught:
        _build(mini_project)
    for expected in (patch.name, "src/answer.c", "int base = 41;", "0c1e57098"):
        assert expected in caught.value.message
    assert "ostinato engine build" in (caught.value.hint or "")


def test_another_file_than_the_pinned_one_is_refused(mini_project: MiniProject) -> None:
    mini_project.sdist.write_bytes(mini_project.sdist.read_bytes() + b"\0")
    with pytest.raises(EngineBuildError, match="not the pinned source"):
        _build(mini_project)


def test_interrupting_a_command_ends_it_and_its_children(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    with pytest.raises(KeyboardInterrupt) as caught:
        run_logged(["sh", "-c", "sleep 100 & echo $!; wait"], tmp_path / "log", interrupt)
    eventually(lambda: not _is_running(str(caught.value)), "its child has ended")


def _is_running(pid: str) -> bool:
    """Whether the process lives; one that ended and was not yet collected does not."""
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _fake_build(cache: BuildCache, binaries: Path, digest: str) -> EngineBuild:
    binaries.mkdir(exist_ok=True)
    (binaries / "ostinato-engine").write_text("#!/bin/sh\n")
    (binaries / "ostinato-engine").chmod(0o755)
    note = {"backend": "cpu", "llama_cpp_commit": "0c1e57098", "sources_digest": "s"}
    return cache.install(binaries, digest, note)


def test_no_build_and_a_gutted_build_are_both_not_built(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "cache")
    with pytest.raises(EngineNotBuilt, match="none has been built") as caught:
        cache.current()
    assert "ostinato engine build" in (caught.value.hint or "")
    build = _fake_build(cache, tmp_path / "bin", "a" * 64)
    cache.make_current(build)
    assert cache.current() == build
    build.server.unlink()
    with pytest.raises(EngineNotBuilt, match="incomplete"):
        cache.current()


def test_the_note_is_replaced_whole(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "cache")
    first = _fake_build(cache, tmp_path / "bin", "a" * 64)
    second = _fake_build(cache, tmp_path / "bin", "b" * 64)
    cache.make_current(first)
    with (cache.root / "current.json").open() as reader:  # opened before the change, read after it
        cache.make_current(second)
        assert json.load(reader) == {"digest": first.digest}
    assert cache.current() == second
    assert not list(cache.root.glob("*.partial"))


@pytest.mark.parametrize("digest", ["../../etc", "", "A" * 64, "a" * 63])
def test_a_note_cannot_name_a_folder_elsewhere(tmp_path: Path, digest: str) -> None:
    cache = BuildCache(tmp_path)
    (tmp_path / "current.json").write_text(json.dumps({"digest": digest}))
    with pytest.raises(EngineNotBuilt):
        cache.current()


def test_binaries_without_the_engine_are_not_installed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    with pytest.raises(EngineBuildError, match="made no ostinato-engine"):
        BuildCache(tmp_path / "cache").install(tmp_path / "bin", "a" * 64, {})


def test_pruning_keeps_the_newest_builds_and_the_current_one(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "cache")
    builds = [_fake_build(cache, tmp_path / "bin", letter * 64) for letter in "abcde"]
    for age, build in enumerate(builds):
        subprocess.run(["touch", "-d", f"@{1000 - age}", str(build.directory)], check=True)
    for name in ("source-old", "source-new", "work-1"):
        (cache.root / name).mkdir()
    cache.prune(builds[-1], cache.root / "source-new", cache.root / "work-1")
    left = {entry.name[0] for entry in cache.root.iterdir() if len(entry.name) == 64}
    assert left == {"a", "b", "e"}
    assert (cache.root / "source-new").exists()
    assert not (cache.root / "source-old").exists()
    assert (cache.root / "work-1").exists()
