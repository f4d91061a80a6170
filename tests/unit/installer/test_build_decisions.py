"""What is decided without building: backend, jobs, digests, and what the compiler's output means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinatod.errors import EngineBuildError
from ostinatod.installer.backend_choice import BackendRequest, choose_backend
from ostinatod.installer.build_digest import digest_of, sources_digest
from ostinatod.installer.cuda_probe import CudaCompiler
from ostinatod.installer.job_count import default_jobs, jobs_for
from ostinatod.installer.ninja_progress import NinjaStep, first_errors, parse_line
from ostinatod.installer.toolchain import cpu_identity
from tests.unit.installer.conftest import MiniProject

_GIB = 1 << 30
_NVCC = CudaCompiler(Path("/usr/bin/nvcc"), True, "12.4", ("80", "86", "89", "90"))


@pytest.mark.parametrize(
    ("request_", "compiler", "gpus", "arch", "backend", "architectures", "reason"),
    [
        ("auto", _NVCC, ("89",), None, "cuda", ("89",), "CUDA 12.4 for compute capability 8.9"),
        ("auto", _NVCC, ("86", "90"), None, "cuda", ("86", "90"), "8.6, 9.0"),
        ("auto", None, ("89",), None, "cpu", (), "no CUDA compiler (nvcc) found (install"),
        ("auto", _NVCC, (), None, "cpu", (), "no NVIDIA GPU found"),
        ("auto", None, (), None, "cpu", (), "no NVIDIA GPU found"),
        ("auto", _NVCC, ("120",), None, "cpu", (), "not for 120"),
        ("auto", CudaCompiler(Path("nvcc"), True, "11.0", ()), ("80",), None, "cuda", ("80",), "8.0"),
        ("cpu", _NVCC, ("89",), None, "cpu", (), "asked for"),
        ("cuda", _NVCC, ("89",), None, "cuda", ("89",), "8.9"),
        ("cuda", _NVCC, (), "8.9", "cuda", ("89",), "8.9"),
        ("cuda", _NVCC, ("80",), "86;90-real", "cuda", ("86", "90-real"), "8.6, 90-real"),
    ],
)
def test_backend_choice(
    request_: BackendRequest,
    compiler: CudaCompiler | None,
    gpus: tuple[str, ...],
    arch: str | None,
    backend: str,
    architectures: tuple[str, ...],
    reason: str,
) -> None:
    choice = choose_backend(request_, compiler, gpus, arch)
    assert (choice.backend, choice.architectures) == (backend, architectures)
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("compiler", "gpus", "arch", "complaint"),
    [
        (_NVCC, (), None, "no NVIDIA GPU found"),
        (None, ("89",), None, "nvcc"),
        (_NVCC, ("120",), None, "not for 120"),
        (_NVCC, (), "ampere", "expected compute capabilities"),
    ],
)
def test_cuda_that_cannot_be_compiled_is_an_error_when_asked_for(
    compiler: CudaCompiler | None, gpus: tuple[str, ...], arch: str | None, complaint: str
) -> None:
    with pytest.raises(EngineBuildError, match=complaint):
        choose_backend("cuda", compiler, gpus, arch)


@pytest.mark.parametrize(
    ("cores", "memory_gib", "jobs"),
    [(16, 16, 10), (4, 64, 4), (8, 1.0, 1), (2, 3.0, 2), (32, 12, 8)],  # 16 / 1.5 = 10.67, 12 / 1.5 = 8
)
def test_jobs_follow_the_scarcer_of_cores_and_memory(cores: int, memory_gib: float, jobs: int) -> None:
    assert jobs_for(cores, int(memory_gib * _GIB)) == jobs


def test_jobs_respect_the_limits_of_parent_control_groups(tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / "user.slice" / "session"
    group.mkdir(parents=True)
    (tmp_path / "membership").write_text("0::/user.slice/session\n")
    (group / "memory.max").write_text("max\n")
    (group / "cpu.max").write_text("max 100000\n")
    unlimited = default_jobs(tmp_path / "cgroup", tmp_path / "membership")
    (group.parent / "memory.max").write_text(f"{_GIB}\n")
    assert default_jobs(tmp_path / "cgroup", tmp_path / "membership") == 1
    (group.parent / "memory.max").write_text("max\n")
    (group / "cpu.max").write_text("150000 100000\n")
    assert default_jobs(tmp_path / "cgroup", tmp_path / "membership") == 1
    assert unlimited == default_jobs(tmp_path / "cgroup", tmp_path / "absent")


@pytest.mark.parametrize("name", ["UPSTREAM", "CMakeLists.txt", "patches/series", "overlay/hook.c"])
def test_any_changed_source_changes_the_digest(mini_project: MiniProject, name: str) -> None:
    before = sources_digest(mini_project.sources)
    file = mini_project.sources / name
    file.write_bytes(file.read_bytes() + b" ")
    assert sources_digest(mini_project.sources) != before


def test_a_renamed_source_changes_the_digest_and_other_files_do_not(mini_project: MiniProject) -> None:
    before = sources_digest(mini_project.sources)
    (mini_project.sources / "README.md").write_text("prose")
    (mini_project.sources / "overlay" / "__pycache__").mkdir()
    (mini_project.sources / "overlay" / "__pycache__" / "x.pyc").write_text("")
    (mini_project.sources / "overlay" / ".hook.c.swp").write_text("")
    assert sources_digest(mini_project.sources) == before
    (mini_project.sources / "overlay" / "hook.c").rename(mini_project.sources / "overlay" / "hooks.c")
    assert sources_digest(mini_project.sources) != before


def test_digests_tell_neighbouring_values_apart() -> None:
    assert digest_of("ab", "c") != digest_of("a", "bc")


def test_cpu_identity_changes_with_the_instruction_set_only(tmp_path: Path) -> None:
    def identity(flags: str) -> tuple[str, ...]:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n")
        return cpu_identity(tmp_path / "cpuinfo")

    assert identity("fpu avx2 smep") == identity("avx2 new_mitigation_flag")
    assert identity("avx2") != identity("avx2 avx512f")


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (
            "[3/120] Building CXX object llama.cpp/src/CMakeFiles/llama.dir/llama-graph.cpp.o",
            NinjaStep(3, 120, "llama-graph.cpp"),
        ),
        ("[7/9] Building CUDA object ggml/CMakeFiles/x.dir/mmq.cu.o", NinjaStep(7, 9, "mmq.cu")),
        ("[8/9] Linking CXX shared library bin/libllama.so", NinjaStep(8, 9, "libllama.so")),
        ("[9/9] Generating header", NinjaStep(9, 9, "Generating header")),
        ("ninja: no work to do.", None),
        ("  [3/120] indented", None),
    ],
)
def test_ninja_lines(line: str, step: NinjaStep | None) -> None:
    assert parse_line(line) == step


def test_the_first_error_is_shown_without_the_command_that_met_it() -> None:
    output = [
        "[1/9] Building CXX object a.cpp.o",
        "FAILED: b.cpp.o",
        "/usr/bin/c++ -Werror=error -c /src/error.cpp -o b.cpp.o",
        "/src/b.cpp:3:5: error: 'x' was not declared",
        "    3 |     x = 1;",
        "ninja: build stopped: subcommand failed.",
    ]
    assert first_errors(output)[0] == "/src/b.cpp:3:5: error: 'x' was not declared"
    assert first_errors(["a", "b"], limit=1) == ["b"]
