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

from ostinatod import bindings_abi
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


C_TYPES: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "const char *": ctypes.c_char_p,
    "double": ctypes.c_double,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}


def members_in_header(name: str) -> list[tuple[str, Any]]:
    """Names and types of a structure's members, as ctypes has them."""
    text = HEADER.read_text(encoding="utf-8")
    sizes = dict(re.findall(r"#define (\w+) (\d+)\n", text))
    body = re.search(rf"^struct {name} {{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL)
    assert body, name
    found = []
    for line in body[1].splitlines():
        member = re.match(r"\s*(.+?)\s*(\w+)(?:\[(\w+)\])?;", line)
        assert member, line
        kind = ctypes.c_int if member[1].startswith("enum ") else C_TYPES[member[1]]
        if member[3]:
            kind = kind * int(sizes.get(member[3], member[3]))
        found.append((member[2], kind))
    return found


@pytest.mark.parametrize(
    ("structure", "mirror"),
    [
        ("ostinato_route_shape", bindings_abi.RouteShape),
        ("ostinato_config", bindings_abi.Config),
        ("ostinato_device_status", bindings_abi.DeviceStatus),
        ("ostinato_decode_times", bindings_abi.DecodeTimes),
        ("ostinato_learned_costs", bindings_abi.LearnedCosts),
        ("ostinato_residency_facts", bindings_abi.ResidencyFacts),
        ("ostinato_residency_status", bindings_abi.ResidencyStatus),
    ],
)
def test_structures_have_the_header_s_members_in_its_order(structure: str, mirror: type[ctypes.Structure]) -> None:
    assert list(mirror._fields_) == members_in_header(structure)


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
