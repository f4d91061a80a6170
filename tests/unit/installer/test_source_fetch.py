from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from ostinatod.errors import EngineBuildError
from ostinatod.installer.build_progress import BuildProgress
from ostinatod.installer.source_fetch import fetch_sdist, unpack_llama_cpp
from ostinatod.installer.upstream import read_upstream
from tests.unit.installer.conftest import MiniProject, write_archive


@pytest.fixture
def local_index(mini_project: MiniProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip looks into the folder of the miniature only."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(mini_project.sdist.parent))


@pytest.mark.usefixtures("local_index")
def test_pip_fetches_the_pinned_file_once(mini_project: MiniProject, tmp_path: Path) -> None:
    upstream = read_upstream(mini_project.sources / "UPSTREAM")
    reports: list[BuildProgress] = []
    for _ in range(2):
        file = fetch_sdist(upstream, tmp_path / "downloads", tmp_path / "log", reports.append)
        assert file.read_bytes() == mini_project.sdist.read_bytes()
    assert [(report.step, report.done) for report in reports if report.total == 1] == [("download", 1)]
    assert [entry.name for entry in (tmp_path / "downloads").iterdir()] == ["mini_llama-1.0.tar.gz"]


@pytest.mark.usefixtures("local_index")
def test_other_bytes_than_the_pinned_ones_are_refused(mini_project: MiniProject, tmp_path: Path) -> None:
    mini_project.write("UPSTREAM", f"llama.cpp 0c1e57098\nmini-llama 1.0 sha256={'0' * 64}\n")
    upstream = read_upstream(mini_project.sources / "UPSTREAM")
    with pytest.raises(EngineBuildError, match="could not fetch") as caught:
        fetch_sdist(upstream, tmp_path / "downloads", tmp_path / "log", lambda progress: None)
    assert "hash" in caught.value.message.lower()
    assert list((tmp_path / "downloads").iterdir()) == []


def test_only_what_a_build_needs_is_unpacked(mini_project: MiniProject, tmp_path: Path) -> None:
    assert unpack_llama_cpp(mini_project.sdist, tmp_path / "source") == 1
    files = [file for file in (tmp_path / "source").rglob("*") if file.is_file()]
    assert [str(file.relative_to(tmp_path / "source")) for file in files] == ["src/answer.c"]


@pytest.mark.parametrize(
    "name", ["x-1/vendor/llama.cpp/../../../../evil", "/x-1/vendor/llama.cpp/evil", "x-1/vendor/llama.cpp/..\\evil"]
)
def test_an_entry_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    archive = write_archive(tmp_path / "a.tar.gz", {name: b"x"})
    with pytest.raises(EngineBuildError, match="leaves the archive's folder"):
        unpack_llama_cpp(archive, tmp_path / "source")
    assert not (tmp_path / "source").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("x-1/vendor/llama.cpp/src/link")
        entry.type, entry.linkname = kind, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(EngineBuildError, match="not an ordinary file"):
        unpack_llama_cpp(tmp_path / "a.tar.gz", tmp_path / "source")


def test_an_archive_cut_short_leaves_no_source(tmp_path: Path) -> None:
    content = bytes(range(256)) * 400
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        entry = tarfile.TarInfo("x-1/vendor/llama.cpp/src/a")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    (tmp_path / "a.tar.gz").write_bytes(whole.getvalue()[:-200])
    with pytest.raises(EngineBuildError, match="cannot unpack"):
        unpack_llama_cpp(tmp_path / "a.tar.gz", tmp_path / "source")
    assert not (tmp_path / "source").exists()


def test_an_archive_without_llama_cpp_is_refused(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.tar.gz", {"x-1/README.md": b"x"})
    with pytest.raises(EngineBuildError, match="no such folder"):
        unpack_llama_cpp(archive, tmp_path / "source")


def test_a_malformed_pin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "UPSTREAM").write_text("llama.cpp 0c1e57098\nllama-cpp-python 0.3.36\n")
    with pytest.raises(EngineBuildError, match="sha256"):
        read_upstream(tmp_path / "UPSTREAM")
