"""The bindings refuse a library that is not the one they were written for, and accept the engine's own."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostinatod.bindings import ABI_VERSION, LLAMA_CPP_COMMIT, check_abi
from ostinatod.errors import AbiMismatch
from ostinatod.installer.engine_build import EngineBuild

HEADER = Path(__file__).parents[2] / "kernels_patch" / "overlay" / "ostinato.h"


class Mirror(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int64),)


CORE = SimpleNamespace(llama_model_params=Mirror, llama_context_params=Mirror, llama_batch=Mirror)


def function(result: Any) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        return result

    return call


def library(*, abi: int = ABI_VERSION, commit: str = LLAMA_CPP_COMMIT, size: int = 8) -> Any:
    return SimpleNamespace(
        ostinato_abi_version=function(abi),
        ostinato_llama_commit=function(commit.encode()),
        ostinato_sizeof=function(size),
    )


def test_a_library_that_agrees_is_accepted() -> None:
    check_abi(CORE, library())


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (library(abi=ABI_VERSION + 1), f"expected ABI version {ABI_VERSION}, found {ABI_VERSION + 1}"),
        (library(commit="deadbeef1"), f"expected llama.cpp {LLAMA_CPP_COMMIT}, the library is deadbeef1"),
        (library(size=16), "llama_model_params: expected 8 bytes, the library has 16"),
        (SimpleNamespace(), "no Ostinato interface"),
    ],
    ids=["abi", "commit", "size", "stock"],
)
def test_a_library_that_differs_is_refused_with_both_sides(other: Any, said: str) -> None:
    with pytest.raises(AbiMismatch, match=re.escape(said)):
        check_abi(CORE, other)


def test_the_header_and_the_bindings_name_the_same_abi() -> None:
    assert f"#define OSTINATO_ABI_VERSION {ABI_VERSION}\n" in HEADER.read_text()


@pytest.mark.parametrize(("given", "loads"), [({}, "EAGER"), ({"CUDA_MODULE_LOADING": "LAZY"}, "LAZY")])
def test_kernels_are_loaded_before_they_can_wait_for_each_other(
    tmp_path: Path, given: dict[str, str], loads: str
) -> None:
    code = (
        "import contextlib, os, sys; from pathlib import Path\n"
        "from ostinatod.bindings import AbiMismatch, load_bindings\n"
        "with contextlib.suppress(AbiMismatch): load_bindings(Path(sys.argv[1]))\n"
        "print(os.environ['CUDA_MODULE_LOADING'])"
    )
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_MODULE_LOADING"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, env={**kept, **given}
    )
    assert done.stdout == f"{loads}\n", done.stderr


@pytest.mark.engine
def test_the_built_engine_is_accepted(engine_build: EngineBuild) -> None:
    code = (
        "import sys; from pathlib import Path; from ostinatod.bindings import load_bindings;"
        "load_bindings(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(engine_build.library_directory)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
