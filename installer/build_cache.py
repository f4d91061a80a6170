"""Finished engine builds, kept by digest below `locations.engine_cache_dir()`, and the note that says which is current.

<digest>/bin          executables and shared libraries together
<digest>/build.json   what it was built from
current.json          the digest in use
source-*, work-*, downloads   what builds start from; `engine_build` owns them
stock-*               libraries of the unpatched pin, for comparisons; `stock_build` owns them
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinatod.errors import EngineBuildError, EngineNotBuilt
from ostinatod.installer.backend_choice import Backend

SERVER_NAME = "ostinato-engine"
BUILD_COMMAND = "ostinato engine build"

_DIGEST = re.compile(r"[0-9a-f]{64}")

_BUILDS_KEPT = 3
"""The current build and the ones before it, so that an engine that still runs keeps its files."""

_WORKS_KEPT = 2
"""One for each backend, so that going back and forth compiles nothing twice."""


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """One finished build."""

    directory: Path
    server: Path
    """The executable `ostinato-engine`."""
    library_directory: Path
    """Where libllama and the ggml libraries lie: the value for LLAMA_CPP_LIB_PATH."""
    backend: Backend
    digest: str
    llama_cpp_commit: str
    sources_digest: str
    """Digest of the pin, the patches and the overlay it was built from."""


@dataclass(frozen=True, slots=True)
class BuildCache:
    """The directory that holds builds. Nothing is created before it is needed."""

    root: Path

    def current(self) -> EngineBuild:
        """The build in use. Raises EngineNotBuilt when there is none, or when its files are gone."""
        note = _read_json(self.root / "current.json")
        build = self.find(str(note.get("digest", ""))) if note else None
        if build is None:
            found = "none has been built" if not note else f"build {note.get('digest')} is incomplete"
            raise EngineNotBuilt(f"expected a compiled engine in {self.root}: {found}", hint=f"run `{BUILD_COMMAND}`")
        return build

    def find(self, digest: str) -> EngineBuild | None:
        """The finished build of that digest, or None."""
        if not _DIGEST.fullmatch(digest):
            return None
        directory = self.root / digest
        note = _read_json(directory / "build.json")
        server = directory / "bin" / SERVER_NAME
        if not note or not os.access(server, os.X_OK):
            return None
        try:
            return EngineBuild(
                directory=directory,
                server=server,
                library_directory=server.parent,
                backend=note["backend"],
                digest=digest,
                llama_cpp_commit=note["llama_cpp_commit"],
                sources_digest=note["sources_digest"],
            )
        except KeyError:
            return None

    def make_current(self, build: EngineBuild) -> None:
        """Notes `build` as the one in use; readers see the old note or the new one, never a part."""
        _replace_json(self.root / "current.json", {"digest": build.digest})

    def install(self, binaries: Path, digest: str, note: dict[str, Any]) -> EngineBuild:
        """Copies `binaries` in under `digest` with `note` as its build.json, and returns the finished build.

        It appears under its name only when complete. Raises EngineBuildError when the engine is not among them.
        """
        if not os.access(binaries / SERVER_NAME, os.X_OK):
            raise EngineBuildError(f"the compile ended without error but made no {SERVER_NAME} in {binaries}")
        partial = self.root / f"{digest}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(binaries, partial / "bin", symlinks=True)
        _replace_json(partial / "build.json", note)
        shutil.rmtree(self.root / digest, ignore_errors=True)
        partial.rename(self.root / digest)
        build = self.find(digest)
        if build is None:
            raise EngineBuildError(f"the build in {self.root / digest} is incomplete")
        return build

    def prune(self, build: EngineBuild, source: Path, work: Path) -> None:
        """Removes what `build` made superfluous: all but the newest builds and work directories, and other sources."""
        builds = [note.parent for note in self.root.glob("*/build.json") if _DIGEST.fullmatch(note.parent.name)]
        works = list(self.root.glob("work-*"))
        sources = [path for path in self.root.glob("source-*") if path != source]
        for directory in [
            *_oldest(builds, build.directory, _BUILDS_KEPT),
            *_oldest(works, work, _WORKS_KEPT),
            *sources,
        ]:
            shutil.rmtree(directory, ignore_errors=True)

    def entries(self) -> list[Path]:
        """Everything in the directory that this project made there."""
        patterns = ("current.json", "build.lock", "downloads", "source-*", "stock-*", "work-*")
        found = [path for pattern in patterns for path in self.root.glob(pattern)]
        return found + [path for path in self.root.glob("*") if _DIGEST.fullmatch(path.name.removesuffix(".partial"))]

    @contextmanager
    def locked(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Lets one process build at a time; calls `on_wait` once before it waits for another one."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "build.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _oldest(directories: list[Path], keep: Path, n_kept: int) -> list[Path]:
    """All but the `n_kept` newest, of which `keep` is one whatever its age."""
    others = sorted((path for path in directories if path != keep), key=lambda path: path.stat().st_mtime, reverse=True)
    return others[n_kept - 1 :]


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _replace_json(file: Path, value: dict[str, Any]) -> None:
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    partial.replace(file)
