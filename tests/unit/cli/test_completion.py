"""Completion as real shells do it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.fakes.daemon import FakeDaemon, listing
from tests.unit.cli.conftest import Invoke

SCRIPTS = Path(sys.executable).parent


def complete_in_bash(script: str, line: str, words: list[str], daemon_url: str) -> list[str]:
    """What bash offers for `line`, whose last word begins at the last of `words`, and what it says on the way."""
    quoted = " ".join(f"'{word}'" for word in words)
    program = f"""{script}
        COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}
        _ostinato_completion ostinato "${{COMP_WORDS[-1]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}", "OSTINATO_HOST": daemon_url}
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


def names_in_bash(script: str, line: str, words: list[str], daemon_url: str) -> list[str]:
    """The same where something is to be offered: half a second for the daemon's answer is short on a busy machine."""
    return list(eventually(lambda: complete_in_bash(script, line, words, daemon_url), "something is offered"))


@pytest.fixture
def bash_script(invoke: Invoke) -> str:
    return invoke("completion", "show", "bash").stdout


def test_bash_completes_commands_and_model_names(bash_script: str, daemon: FakeDaemon, home: Path) -> None:
    daemon.models = {name: listing(name) for name in ("qwen", "quartz", "tiny")}
    assert complete_in_bash(bash_script, "ostinato eng", ["ostinato", "eng"], daemon.url) == ["engine"]
    assert names_in_bash(bash_script, "ostinato show q", ["ostinato", "show", "q"], daemon.url) == ["qwen", "quartz"]


def test_bash_completes_names_with_a_colon(bash_script: str, daemon: FakeDaemon, home: Path) -> None:
    daemon.models = {name: listing(name) for name in ("org/repo:Q4_K_M", "org/repo:Q8_0")}
    # bash takes the colon for a word of its own and replaces only what comes after it.
    words = ["ostinato", "run", "org/repo", ":", "Q4"]
    assert names_in_bash(bash_script, "ostinato run org/repo:Q4", words, daemon.url) == ["Q4_K_M"]
    assert names_in_bash(bash_script, "ostinato run org", [*words[:2], "org"], daemon.url) == [
        "org/repo:Q4_K_M",
        "org/repo:Q8_0",
    ]


def test_bash_is_offered_nothing_and_told_nothing_without_a_daemon(bash_script: str, home: Path) -> None:
    assert complete_in_bash(bash_script, "ostinato show q", ["ostinato", "show", "q"], "127.0.0.1:1") == []


def test_a_broken_answer_or_setting_offers_nothing(invoke: Invoke, daemon: FakeDaemon) -> None:
    words = {"COMP_WORDS": "ostinato show q", "COMP_CWORD": "2", "_OSTINATO_COMPLETE": "bash_complete"}
    daemon.errors["/api/tags"] = (200, {"models": "nonsense"})
    assert (invoke(**words).stdout.strip(), invoke(**words).stderr) == ("", "")
    broken = invoke(**words, OSTINATO_THREADS="many")
    assert (broken.stdout.strip(), broken.stderr) == ("", "")


def test_a_hostile_name_cannot_reach_the_line_that_is_typed(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.models = {"q\x1b]0;x\x07\nplain,evil": listing("q\x1b]0;x\x07\nplain,evil")}
    words = {"COMP_WORDS": "ostinato show q", "COMP_CWORD": "2", "_OSTINATO_COMPLETE": "bash_complete"}
    assert invoke(**words).stdout.splitlines() == ["plain,q]0;xplain,evil"]


def test_log_sources_are_completed_without_a_daemon(invoke: Invoke) -> None:
    words = {"COMP_WORDS": "ostinato logs d", "COMP_CWORD": "2", "_OSTINATO_COMPLETE": "bash_complete"}
    assert invoke(**words, OSTINATO_HOST="127.0.0.1:1").stdout.split() == ["plain,daemon"]


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_each_shell_reads_its_script(invoke: Invoke, shell: str, check: str, tmp_path: Path) -> None:
    script = invoke("completion", "show", shell).stdout
    assert "_OSTINATO_COMPLETE" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not on this machine")
    (tmp_path / "script").write_text(script)
    done = subprocess.run([shell, check, tmp_path / "script"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def in_shell(program: str, script: Path, daemon_url: str) -> list[str]:
    """Lines that a real shell prints for a program, with the script at hand."""
    shell = shutil.which(program.split()[0])
    if shell is None:
        pytest.skip(f"{program.split()[0]} is not on this machine")
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OSTINATO_HOST": daemon_url, "SCRIPT": str(script), "LC_ALL": "C.UTF-8"}
    words = [shell, *program.split(" ", 2)[1:]]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_fish_completes_names_and_whole_descriptions(
    invoke: Invoke, daemon: FakeDaemon, home: Path, tmp_path: Path
) -> None:
    daemon.models = {name: listing(name) for name in ("org/repo:Q4_K_M", "org/repo:Q8_0", "tiny")}
    script = tmp_path / "ostinato.fish"
    script.write_text(invoke("completion", "show", "fish").stdout)
    ask = "fish -c source $SCRIPT; complete -C 'ostinato eng'; complete -C 'ostinato show org/repo:'"
    assert in_shell(ask, script, daemon.url) == [
        "engine\tBuild the engine, or show which build is...",
        "org/repo:Q4_K_M",
        "org/repo:Q8_0",
    ]


def test_zsh_completes_names_with_a_colon(invoke: Invoke, daemon: FakeDaemon, home: Path, tmp_path: Path) -> None:
    daemon.models = {name: listing(name) for name in ("org/repo:Q4_K_M", "org/repo:Q8_0", "tiny")}
    script = tmp_path / "_ostinato"
    script.write_text(invoke("completion", "show", "zsh").stdout)
    # What the completion system is given, without a terminal to show it on.
    ask = (
        "zsh -fc compdef() { :; };"
        " compadd() { print -l $completions }; _describe() { print -l $completions_with_descriptions };"
        " source $SCRIPT; words=(ostinato show org); CURRENT=3; _ostinato_completion;"
        " words=(ostinato eng); CURRENT=2; _ostinato_completion"
    )
    assert in_shell(ask, script, daemon.url) == [
        "org/repo:Q4_K_M",
        "org/repo:Q8_0",
        "engine:Build the engine, or show which build is...",
    ]


def test_installing_takes_the_shell_in_use_and_uninstalling_its_file(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    place = {"HOME": str(tmp_path / "user"), "SHELL": "/usr/bin/zsh"}
    told = json.loads(invoke("completion", "install", "--json", **place).stdout)
    assert (told["shell"], told["changed"]) == ("zsh", True)
    script = Path(told["file"])
    assert script.read_text().startswith("#compdef ostinato\n# Installed by")
    again = invoke("completion", "install", **place)
    assert (again.stdout, "already installed" in again.stderr, "fpath" in again.stderr) == ("", True, True)
    assert json.loads(invoke("completion", "uninstall", "--json", **place).stdout) == {"removed": [str(script)]}
    assert invoke("completion", "uninstall", **place).stderr == "No completion is installed.\n"
    assert not script.exists()


def test_an_unknown_shell_is_wrong_usage(invoke: Invoke) -> None:
    assert invoke("completion", "install", SHELL="/bin/csh").exit_code == 2
    assert invoke("completion", "show", "csh").exit_code == 2
