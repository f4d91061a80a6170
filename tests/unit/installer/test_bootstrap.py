"""The first stage, as it runs before anything is installed."""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ostinatod.installer import bootstrap, packages, prerequisites, removal
from ostinatod.installer.environment import Environment
from ostinatod.installer.steps import InstallError, Steps

_INSTALLER = Path(bootstrap.__file__).resolve().parent


def _script(file: Path, body: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone, as far as the first stage reads one."""
    shutil.copytree(_INSTALLER, tmp_path / "clone" / "installer", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "clone" / "pyproject.toml").write_text('[project]\nname = "x"\n')
    return tmp_path / "clone"


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path / "log", io.StringIO())


def test_a_fresh_clone_needs_the_standard_library_only(clone: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, '.'); import installer.bootstrap\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(names - set(sys.stdlib_module_names) - {'installer', '__main__'}))"
    )
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], cwd=clone, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_the_folder_runs_as_a_command_without_site_packages(clone: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-E", str(clone / "installer"), "--help"], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0
    for verb in ("install", "run", "test", "uninstall"):
        assert verb in done.stdout


def test_the_entry_point_parses_on_old_interpreters_and_refuses_first() -> None:
    tree = ast.parse((_INSTALLER / "__main__.py").read_text(), feature_version=(3, 4))
    first = next(node for node in tree.body if isinstance(node, ast.If))
    assert "version_info" in ast.unparse(first.test)
    assert "Python 3.10 or newer" in ast.unparse(first)
    imported = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    assert imported == ["importlib", "os", "sys"]


@pytest.mark.parametrize(
    ("arguments", "own", "forwarded"),
    [
        ([], ["install"], []),
        (["--backend", "cpu"], ["install", "--backend", "cpu"], []),
        (["-h"], ["-h"], []),
        (["uninstall", "--purge"], ["uninstall", "--purge"], []),
        (["run"], ["run"], []),
        (["run", "tiny", "hello"], ["run"], ["tiny", "hello"]),
        (["run", "--jobs", "2", "tiny", "--jobs"], ["run", "--jobs", "2"], ["tiny", "--jobs"]),
        (["test", "--backend=cpu", "-k", "diff", "-x"], ["test", "--backend=cpu"], ["-k", "diff", "-x"]),
        (["test", "--", "--jobs"], ["test"], ["--jobs"]),
    ],
)
def test_foreign_words_are_forwarded(arguments: list[str], own: list[str], forwarded: list[str]) -> None:
    assert bootstrap.split_arguments(arguments) == (own, forwarded)


def test_all_that_is_missing_is_named_at_once_with_one_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(packages, "find_family", lambda: packages.FAMILIES[0])
    python = str(_script(tmp_path / "python3", "exit 1"))
    with pytest.raises(InstallError) as caught:
        prerequisites.require(python, makes_environment=True)
    assert "no C++ compiler" in str(caught.value)
    assert f"{python} cannot make a virtual environment" in str(caught.value)
    assert str(caught.value).endswith("apt install build-essential python3-venv")
    with pytest.raises(InstallError) as caught:
        prerequisites.require(python, makes_environment=False)
    assert str(caught.value).endswith("apt install build-essential")
    compiler = _script(tmp_path / "clang++", "")
    assert prerequisites.find_compiler() == str(compiler)
    prerequisites.require(python, makes_environment=False)


def test_build_tools_are_missing_when_absent_or_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    scripts = tmp_path / "scripts"
    assert prerequisites.missing_build_tools(scripts) == ["cmake", "ninja"]
    _script(tmp_path / "path" / "cmake", "echo cmake version 3.17.9")
    _script(tmp_path / "path" / "ninja", "echo 1.11")
    assert prerequisites.missing_build_tools(scripts) == ["cmake"]
    _script(scripts / "cmake", "echo cmake version 4.0.1")
    assert prerequisites.missing_build_tools(scripts) == []


def test_an_environment_is_made_once_and_known_as_ours(clone: Path, steps: Steps, tmp_path: Path) -> None:
    # A real environment, but without pip, whose unpacking takes most of the time.
    real = f'exec {sys.executable} "$@"'
    python = _script(tmp_path / "python", f'case "$2" in venv) set -- -m venv --without-pip "$3";; esac; {real}')
    environment = Environment(clone)
    environment.ensure(str(python), steps)
    assert environment.is_ours
    shown = subprocess.run([environment.python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True)
    assert shown.stdout.strip() == str(environment.directory)
    made = environment.directory.stat().st_ino
    environment.ensure(sys.executable, steps)
    environment.ensure(None, steps)
    assert environment.directory.stat().st_ino == made


def test_an_environment_of_ours_that_broke_is_made_again(clone: Path, steps: Steps, tmp_path: Path) -> None:
    python = _script(
        tmp_path / "python",
        'case "$*" in *version_info*) echo "True 3.12.1 /usr";; "-m venv"*) mkdir -p "$3"; touch "$3/new";; esac',
    )
    environment = Environment(clone)
    environment.directory.mkdir()
    environment.stamp_file.write_text(
        '{"made_here": true, "key": "old"}'
    )  # without an interpreter, as after an upgrade
    environment.ensure(str(python), steps)
    assert (environment.directory / "new").exists()
    assert environment.stamp() == {"made_here": True}


def test_a_python_without_venv_and_pip_names_the_packages(clone: Path, steps: Steps, tmp_path: Path) -> None:
    python = _script(tmp_path / "python", 'case "$2" in *version_info*) echo "True 3.12.1 /usr";; *) exit 1;; esac')
    with pytest.raises(InstallError, match="Install it and run this again"):
        Environment(clone).ensure(str(python), steps)
    assert not (clone / ".venv").exists()


def test_without_venv_virtualenv_is_fetched_by_pip(clone: Path, steps: Steps, tmp_path: Path) -> None:
    record = tmp_path / "calls"
    python = _script(
        tmp_path / "python",
        f"""case "$*" in
            *version_info*) echo "True 3.12.1 /usr"; exit 0;;
            *"import venv"*|"-m virtualenv --version") exit 1;;
        esac
        echo "$PYTHONPATH|$*" >> {record}
        case "$*" in "-m virtualenv"*) mkdir -p "$3";; esac""",
    )
    Environment(clone).ensure(str(python), steps)
    tool = clone / "build" / "virtualenv"
    _, install, make = ["", *record.read_text().splitlines()][-3:]
    assert f"--target {tool} virtualenv" in install
    assert make == f"{tool}|-m virtualenv {clone / '.venv'}"
    assert Environment(clone).is_ours


def test_an_interpreter_that_is_too_old_is_refused_by_name(clone: Path, steps: Steps, tmp_path: Path) -> None:
    python = _script(tmp_path / "python3.9", "echo False 3.9.2 /usr")
    with pytest.raises(InstallError, match=r"python3\.9"):
        Environment(clone).ensure(str(python), steps)


def test_somebody_elses_environment_is_never_replaced(clone: Path, steps: Steps) -> None:
    (clone / ".venv").mkdir()
    (clone / ".venv" / "precious").write_text("")
    with pytest.raises(InstallError, match="was not made by this installer"):
        Environment(clone).ensure(None, steps)
    assert (clone / ".venv" / "precious").exists()


def test_packages_are_installed_again_only_for_another_project_file_or_more_extras(clone: Path, steps: Steps) -> None:
    environment = Environment(clone)
    record = clone / "calls"
    _script(
        environment.python,
        f'case "$2" in *version_info*) echo "True 3.12.1 /usr";; *) echo "$*" >> {record};; esac',
    )

    def installed() -> list[str]:
        lines = record.read_text().splitlines() if record.exists() else []
        record.unlink(missing_ok=True)
        return [line.partition("--editable ")[2].removeprefix(str(clone)) for line in lines]

    environment.ensure_package(frozenset(), steps)
    assert installed() == [""]
    environment.ensure_package(frozenset(), steps)
    assert installed() == []
    environment.ensure_package(frozenset({"dev"}), steps)
    assert installed() == ["[dev]"]
    environment.ensure_package(frozenset(), steps)
    assert installed() == []
    (clone / "pyproject.toml").write_text('[project]\nname = "y"\n')
    environment.ensure_package(frozenset(), steps)
    assert installed() == ["[dev]"]
    assert not environment.is_ours


def test_a_failed_command_shows_the_end_of_its_output(tmp_path: Path) -> None:
    stream = io.StringIO()
    steps = Steps(tmp_path / "log", stream)
    with pytest.raises(InstallError) as caught, steps.step("Trying"):
        steps.run(["sh", "-c", "seq 1 100; echo the reason >&2; exit 3"])
    assert "status 3" in str(caught.value)
    assert "the reason" in str(caught.value)
    assert "    90\n" in str(caught.value)  # the last twelve lines: 90 to 100 and the reason
    assert "    89\n" not in str(caught.value)
    assert str(tmp_path / "log") in str(caught.value)
    assert stream.getvalue().startswith("Trying")
    assert "failed" in stream.getvalue()


@pytest.fixture
def installed(clone: Path, tmp_path: Path) -> Environment:
    """An environment of ours whose Python tells of builds and data, and notes what else it is asked to run."""
    environment = Environment(clone)
    for name in ("cache/build", "data/ostinato"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ostinato.service").touch()
    paths = {
        "builds": [str(tmp_path / "cache" / "build")],
        "data": [str(tmp_path / "data" / "ostinato")],
        "integration": [str(tmp_path / "ostinato.service")],
        "folders": [str(tmp_path / "cache"), str(tmp_path / "data")],
    }
    _script(
        environment.python,
        f"""case "$2" in *owned_paths) echo '{json.dumps(paths)}';; *) echo "$2" >> {tmp_path}/asked;; esac""",
    )
    environment.stamp_file.write_text('{"made_here": true}')
    (clone / "build" / "types").mkdir(parents=True)
    (clone / "build" / "mine").write_text("")
    (clone / ".mypy_cache").mkdir()
    (clone / "core" / "__pycache__").mkdir(parents=True)
    return environment


def test_uninstall_removes_what_was_made_and_keeps_data(
    installed: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert removal.uninstall(installed, purge=False, assume_yes=True) == 0
    assert not installed.directory.exists()
    assert not (tmp_path / "cache" / "build").exists()
    assert not (installed.checkout / "build" / "types").exists()
    assert (installed.checkout / "build" / "mine").exists()
    assert (tmp_path / "data" / "ostinato").exists()
    # What the checks and Python leave in the checkout, and folders of ours that are empty now.
    assert not (installed.checkout / ".mypy_cache").exists()
    assert not (installed.checkout / "core" / "__pycache__").exists()
    assert not (tmp_path / "cache").exists()
    assert str(tmp_path / "ostinato.service") in capsys.readouterr().out
    assert not (tmp_path / "ostinato.service").exists()


def test_uninstall_ends_the_service_while_the_environment_is_still_there(
    installed: Environment, tmp_path: Path
) -> None:
    removal.uninstall(installed, purge=False, assume_yes=True)
    assert (tmp_path / "asked").read_text() == "ostinatod.installer.integration\n"


def test_uninstall_purges_data_only_when_told_to(installed: Environment, tmp_path: Path) -> None:
    assert removal.uninstall(installed, purge=True, assume_yes=True) == 0
    assert not (tmp_path / "data" / "ostinato").exists()
    assert tmp_path.exists()


def test_uninstall_removes_nothing_when_it_cannot_ask(
    installed: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(InstallError, match="--yes"):
        removal.uninstall(installed, purge=False, assume_yes=False)
    assert installed.directory.exists()
    assert (tmp_path / "cache" / "build").exists()


def test_uninstall_keeps_an_environment_it_did_not_make(
    installed: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    installed.stamp_file.write_text('{"key": "k"}')
    assert removal.uninstall(installed, purge=False, assume_yes=True) == 0
    assert os.path.exists(installed.python)
    assert "did not make it" in capsys.readouterr().out


def test_running_it_again_after_a_pull_does_what_has_changed_and_no_more(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "_checkout", lambda: clone)
    monkeypatch.setattr(prerequisites, "find_compiler", lambda: "/usr/bin/c++")
    monkeypatch.setattr(prerequisites, "missing_build_tools", lambda scripts: [])
    calls = tmp_path / "calls"
    _script(
        Environment(clone).python,
        f'case "$2" in *version_info*) echo "True 3.12.1 /usr";; *) echo "$2 $3" >> {calls};; esac',
    )

    def asked(*arguments: str) -> list[str]:
        assert bootstrap.main(arguments) == 0
        lines = calls.read_text().splitlines()
        calls.unlink()
        return lines

    engine = "ostinatod.installer.engine_setup --backend"
    assert asked() == ["pip install", engine]
    assert asked() == [engine]  # which builds nothing that exists
    (clone / "installer" / "steps.py").write_text("# new code: an editable installation has it already\n")
    assert asked("install", "--backend", "cpu") == [engine]
    (clone / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["new"]\n')
    assert asked() == ["pip install", engine]
    assert "Everything is in place" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], ["tiny", bootstrap._DEFAULT_PROMPT, "--max-tokens", "120"]),
        (["mine"], ["mine", bootstrap._DEFAULT_PROMPT, "--max-tokens", "120"]),
        (["tiny", "hello"], ["tiny", "hello"]),
        (["--json", "tiny", "hello"], ["--json", "tiny", "hello"]),
    ],
)
def test_a_prompt_of_ours_gets_an_answer_that_ends(given: list[str], words: list[str]) -> None:
    assert bootstrap.words_of_run(given) == words
