"""A miniature of the real thing: a source distribution with a small llama.cpp, and a superproject that patches it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

_PYPROJECT = b"""[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

_BACKEND = b"""import os

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    name = "mini_llama-1.0.dist-info"
    os.mkdir(os.path.join(directory, name))
    with open(os.path.join(directory, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: mini-llama\\nVersion: 1.0\\n")
    return name

def build_wheel(directory, config_settings=None, metadata_directory=None):
    raise RuntimeError("nothing is built here")
"""

_ANSWER = b"""int ostinato_hook(void);

int answer(void) {
    int base = 40;
    return base;
}
"""

_CMAKE = """cmake_minimum_required(VERSION 3.18)
project(mini C)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(base STATIC overlay/main.c ${OSTINATO_LLAMA_CPP}/src/answer.c)
# The hook is compiled after all else, so that a mistake in it finds the rest done.
set_source_files_properties(overlay/hook.c PROPERTIES OBJECT_DEPENDS ${CMAKE_BINARY_DIR}/libbase.a)
foreach(name ostinato-engine llama-server llama-bench)
    add_executable(${name} overlay/hook.c)
    target_link_libraries(${name} base)
endforeach()
"""

_MAIN = """#include <stdio.h>
int answer(void);
int main(void) { printf("%d\\n", answer()); return 0; }
"""

_HOOK = "int ostinato_hook(void) { return 2; }\n"

_PATCH = """From: somebody
Subject: [PATCH] answer: add what the hook gives

---
 src/answer.c | 1 +
 1 file changed, 1 insertion(+)

diff --git a/src/answer.c b/src/answer.c
--- a/src/answer.c
+++ b/src/answer.c
@@ -2,5 +2,6 @@ int ostinato_hook(void);

 int answer(void) {
     int base = 40;
+    base += ostinato_hook();
     return base;
 }
--\x20
2.39.5
"""


def write_archive(file: Path, entries: Mapping[str, bytes]) -> Path:
    """A tar.gz with those regular files."""
    with tarfile.open(file, "w:gz") as archive:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file


@dataclass(frozen=True)
class MiniProject:
    """The superproject, its pinned sdist, and the cache the build uses."""

    sources: Path
    sdist: Path
    cache: Path

    def write(self, name: str, text: str) -> None:
        """Replaces one file of the superproject."""
        (self.sources / name).write_text(text, encoding="utf-8")


@pytest.fixture
def mini_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MiniProject:
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OSTINATO_ENGINE_CACHE", raising=False)
    root = "mini_llama-1.0"
    (tmp_path / "index").mkdir()
    sdist = write_archive(
        tmp_path / "index" / f"{root}.tar.gz",
        {
            f"{root}/PKG-INFO": b"Metadata-Version: 2.1\nName: mini-llama\nVersion: 1.0\n",
            f"{root}/pyproject.toml": _PYPROJECT,
            f"{root}/backend.py": _BACKEND,
            f"{root}/vendor/llama.cpp/src/answer.c": _ANSWER,
            f"{root}/vendor/llama.cpp/docs/ops.md": b"large\n",
            f"{root}/vendor/llama.cpp/models/vocab.gguf": b"GGUF",
        },
    )
    sources = tmp_path / "kernels_patch"
    (sources / "patches").mkdir(parents=True)
    (sources / "overlay").mkdir()
    project = MiniProject(sources, sdist, tmp_path / "home" / "cache" / "engine")
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    project.write("UPSTREAM", f"llama.cpp 0c1e57098\nmini-llama 1.0 sha256={digest}\n")
    project.write("CMakeLists.txt", _CMAKE)
    project.write("overlay/main.c", _MAIN)
    project.write("overlay/hook.c", _HOOK)
    project.write("patches/series", "# hooks\nanswer-add-what-the-hook-gives.patch\n")
    project.write("patches/answer-add-what-the-hook-gives.patch", _PATCH)
    return project
