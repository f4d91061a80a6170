"""Coding agents as npm has them, started by `ostinato launch` on a daemon with a scripted engine.

Not part of the usual run: the packages take gigabytes. Install what is to be tried, and name the folders of programs:

    npm install --prefix /tmp/agents @openai/codex opencode-ai @anthropic-ai/claude-code \\
        @mariozechner/pi-coding-agent cline @continuedev/cli
    OSTINATO_AGENTS=/tmp/agents/node_modules/.bin pytest tests/optional/test_agents.py

Each agent has a home of its own and is given a task; the engine answers it with a call of the agent's own shell tool,
and then with what the tool printed. Nothing but loopback is needed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from ostinatod import locations
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.models import bundled_file
from tests.conftest import RunningDaemon, StartDaemon, eventually
from tests.terminal import Terminal

DIRECTORIES = os.environ.get("OSTINATO_AGENTS", "")
PATIENCE_S = 110
READING_S = 1200
"""Some prompts have more than 20,000 tokens, which two cores read in minutes."""


@dataclass(frozen=True)
class Agent:
    """How to ask an agent one thing without a terminal, and what its shell tool is called."""

    client: str
    program: str
    before: tuple[str, ...]
    """Arguments before the task."""
    tool: str
    arguments: dict[str, Any]
    """Of the tool call."""
    silence: str = ""
    """Why it says nothing of an overflow."""
    again: tuple[str, ...] = ()
    """Arguments that continue its last conversation, before what is said next."""
    terminal: tuple[str, ...] = ()
    """Arguments that open it in a terminal, for an agent that goes on with a conversation there only."""
    interface: str = ""
    """What is on the screen then."""

    @property
    def tool_call(self) -> str:
        """The task that makes the engine call the tool."""
        # Some agents quote and escape their arguments once more.
        return f"!tool {self.tool} {json.dumps(self.arguments)}".replace('"', "'")


COMMAND = "expr 40000 + 242"
RESULT = "40242"
AGENTS = (
    Agent(
        "claude",
        "claude",
        ("-p", "--dangerously-skip-permissions"),
        "Bash",
        {"command": COMMAND, "description": "adds"},
        again=("-p", "-c", "--dangerously-skip-permissions"),
    ),
    Agent(
        "codex",
        "codex",
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        "exec_command",
        {"cmd": COMMAND},
        again=(
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "resume",
            "--last",
        ),
    ),
    Agent(
        "opencode",
        "opencode",
        ("run",),
        "bash",
        {"command": COMMAND, "description": "adds"},
        silence="it compacts the conversation and goes on, which a scripted engine answers without end",
        again=("run", "-c"),
    ),
    Agent(
        "pi",
        "pi",
        ("-p",),
        "bash",
        {"command": COMMAND},
        silence="it ends without printing anything",
        again=("-p", "-c"),
    ),
    Agent(
        "cline",
        "cline",
        ("-t", "60"),
        "run_commands",
        {"commands": [COMMAND]},
        terminal=("-i",),
        interface="Auto-approve",
    ),
    Agent("continue", "cn", ("--auto", "-p"), "Bash", {"command": COMMAND}, again=("--auto", "--resume", "-p")),
)


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.client)
def agent(request: pytest.FixtureRequest) -> Agent:
    """Every agent that is installed."""
    found: Agent = request.param
    if shutil.which(found.program, path=DIRECTORIES or "/nonexistent") is None:
        pytest.skip(f"{found.program} is in none of OSTINATO_AGENTS={DIRECTORIES!r}")
    return found


@dataclass
class Bench:
    """A daemon and a place for an agent."""

    daemon: RunningDaemon
    journal: Path
    home: Path
    model: str = "tiny"

    @property
    def work(self) -> Path:
        """Where agents work."""
        return self.home / "work"

    def environment(self, **more: str) -> dict[str, str]:
        """All variables that an agent gets."""
        return {
            "HOME": str(self.home),
            "PATH": f"{DIRECTORIES}:/usr/bin:/bin:{Path(shutil.which('node') or '/usr/bin/node').parent}",
            "OSTINATO_HOME": str(self.daemon.home),
            "OSTINATO_HOST": self.daemon.url,
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
            **more,
        }

    def command(self, agent: Agent, *arguments: str) -> list[str]:
        """Our own command line for the agent."""
        return [sys.executable, "-m", "ostinatod", "launch", agent.client, "--model", self.model, "--", *arguments]

    def start(self, agent: Agent, task: str, *, again: bool = False) -> subprocess.Popen[str]:
        """Start the agent on a task; `again` goes on with its last conversation."""
        return subprocess.Popen(
            # A task that begins with ! could be taken for a command of the agent's own shell.
            self.command(agent, *(agent.again if again else agent.before), f"Now:\n{task}"),
            cwd=self.work,
            env=self.environment(TERM="dumb", CI="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(
        self, agent: Agent, task: str, *, again: bool = False, within_s: float = PATIENCE_S
    ) -> tuple[int | None, str]:
        """Exit code, None if it had to be ended, and output."""
        process = self.start(agent, task, again=again)
        try:
            output, _ = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.end(process)
            return None, process.communicate()[0]
        return process.returncode, output

    def talk(self, agent: Agent, *tasks: str, within_s: float) -> None:
        """Type one task after the other into the agent's own interface, each when the one before is answered."""
        terminal = Terminal(self.home)
        shell = f"cd {shlex.quote(str(self.work))} && exec {shlex.join(self.command(agent, *agent.terminal))}"
        variables = self.environment(TERM="tmux-256color", LC_ALL="C.UTF-8")
        terminal.start(f"sh -c {shlex.quote(shell)}", (120, 40), **variables)
        try:
            terminal.until_shown(agent.interface)
            time.sleep(5)  # what it announces comes a little later, and goes with any key
            terminal.press("BSpace")
            for number, task in enumerate(tasks, 1):
                terminal.press("-l", task)
                terminal.until_shown(task)
                terminal.press("Enter")
                eventually(lambda: self.answered() >= number, terminal.screen(), within_s, every_s=0.5)  # noqa: B023
        finally:
            terminal.close()

    def answered(self) -> int:
        """How many requests the daemon has answered."""
        requests = self.daemon.http.get("/ostinato/requests").json()["requests"]
        return sum(request["status"] == "ok" for request in requests)

    def end(self, process: subprocess.Popen[str]) -> None:
        """End the agent and everything it started."""
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.5)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    def events(self, kind: str) -> int:
        """How often the engine has noted something."""
        return sum(line.startswith(kind) for line in self.journal.read_text().splitlines())


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home for an agent; what the agent has left running ends with the test."""
    place = tmp_path / "agent"
    (place / "work").mkdir(parents=True)
    yield place
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == str(place):
                process.kill()


@pytest.fixture
def bench(start_daemon: StartDaemon, scripted_engine_cache: Path, home: Path, tmp_path: Path) -> Bench:
    """A daemon with a scripted engine of 64k context, and a home."""
    journal = tmp_path / "journal"
    journal.touch()
    script = json.dumps({"n_ctx": 65536, "journal": str(journal)})
    daemon = start_daemon(scripted_engine_cache, OSTINATO_SCRIPTED_ENGINE=script)
    daemon.http.post("/ostinato/load", json={"model": "tiny"})
    return Bench(daemon, journal, home)


def write_first_layer(file: Path) -> None:
    """The bundled model's first layer, said to be trained for 64k tokens: it reads the longest prompts in minutes."""
    whole, part = GGUFReader(bundled_file()), GGUFWriter(file, "qwen3moe")
    changed = {"qwen3moe.context_length": 65536, "qwen3moe.block_count": 1}
    for key, told in whole.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, *_, item = (*told.types, told.types[-1])
            element = item if kind == GGUFValueType.ARRAY else None
            part.add_key_value(key, changed.get(key, told.contents()), kind, sub_type=element)
    for tensor in whole.tensors:
        if not tensor.name.startswith("blk.") or tensor.name.startswith("blk.0."):
            part.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    part.write_header_to_file()
    part.write_kv_data_to_file()
    part.write_tensors_to_file()
    part.close()


@pytest.fixture
def reading_bench(engine_build: EngineBuild, start_daemon: StartDaemon, home: Path, tmp_path: Path) -> Bench:
    """A daemon with the real engine. What it answers means nothing, and a bias makes it end soon; reading counts."""
    model = tmp_path / "one-layer.gguf"
    write_first_layer(model)
    ends_soon = "--logit-bias 2+9"
    daemon = start_daemon(locations.engine_cache_dir(), OSTINATO_ENGINE_ARGS=ends_soon, OSTINATO_PARALLEL="2")
    daemon.http.post("/ostinato/add", json={"path": str(model), "name": "one-layer"}).raise_for_status()
    daemon.http.post("/ostinato/load", json={"model": "one-layer"})
    return Bench(daemon, tmp_path / "journal", home, "one-layer")


@pytest.mark.engine
@pytest.mark.timeout(2 * READING_S + 60)
def test_the_next_turn_of_an_agent_reads_only_what_is_new(reading_bench: Bench, agent: Agent) -> None:
    tasks = ("Say hello.", "And now say it again.")
    if agent.terminal:
        if shutil.which("tmux") is None:
            pytest.skip(f"{agent.client} goes on with a conversation in a terminal only, and tmux is missing")
        reading_bench.talk(agent, *tasks, within_s=READING_S)
    elif agent.again:
        for again, task in zip((False, True), tasks, strict=True):
            code, output = reading_bench.run(agent, task, again=again, within_s=READING_S)
            assert code is not None, output[-3000:]
    else:
        pytest.skip(f"{agent.client} cannot go on with a conversation")
    requests = reading_bench.daemon.http.get("/ostinato/requests").json()["requests"]
    turns = [request for request in requests if request["kind"] in ("first", "after_user")]
    figures = ("kind", "new_tokens", "reused_tokens", "ttft_ms", "prefix_break")
    print([[request[name] for name in figures] for request in turns])
    latest, first = turns[0], turns[-1]
    assert latest["prefix_break"] is None
    assert latest["reused_tokens"] >= 0.9 * first["new_tokens"]
    assert latest["new_tokens"] < 0.1 * first["new_tokens"]


@pytest.mark.timeout(PATIENCE_S + 60)
def test_an_agent_chats_and_uses_its_tool(bench: Bench, agent: Agent) -> None:
    code, output = bench.run(agent, agent.tool_call)
    print(output[-3000:])
    assert code == 0
    assert bench.events("begin") >= 2
    assert RESULT in output
    assert "told:" in output
    # What the engine had read for the call is still the beginning of what it reads after it.
    requests = bench.daemon.http.get("/ostinato/requests").json()["requests"]
    print([(request["kind"], request["prefix_break"]) for request in requests])
    after_tool = [request for request in requests if request["kind"] == "after_tool"]
    assert after_tool
    assert [request["prefix_break"] for request in after_tool] == [None] * len(after_tool)


@pytest.mark.timeout(PATIENCE_S + 60)
def test_an_agent_that_is_ended_during_prefill_leaves_the_engine_idle(bench: Bench, agent: Agent) -> None:
    process = bench.start(agent, "!slow 100")
    try:
        eventually(lambda: bench.events("begin"), "the agent has asked", 100)
        time.sleep(0.5)
    finally:
        bench.end(process)
        process.communicate()
    eventually(lambda: bench.events("gone") == bench.events("begin"), "the engine has stopped", 5)


@pytest.mark.timeout(PATIENCE_S + 60)
def test_an_overflow_reaches_the_user_in_words(bench: Bench, agent: Agent) -> None:
    if agent.silence:
        pytest.skip(f"{agent.client}: {agent.silence}")
    code, output = bench.run(agent, "!overflow now")
    print(output[-3000:])
    assert code is not None
    assert any(words in output.lower() for words in ("context window", "context length", "too long"))


@pytest.mark.timeout(PATIENCE_S + 60)
def test_codex_takes_the_daemon_for_its_local_provider_without_launch(bench: Bench) -> None:
    (codex,) = (agent for agent in AGENTS if agent.client == "codex")
    if shutil.which(codex.program, path=DIRECTORIES or "/nonexistent") is None:
        pytest.skip(f"{codex.program} is in none of OSTINATO_AGENTS={DIRECTORIES!r}")
    environment = bench.environment(TERM="dumb", CI="1", CODEX_OSS_BASE_URL=f"{bench.daemon.url}/v1")
    program = shutil.which(codex.program, path=DIRECTORIES)
    done = subprocess.run(
        [str(program), *codex.before, "--oss", "--local-provider", "ollama", "-m", "tiny", f"Now:\n{codex.tool_call}"],
        cwd=bench.work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    print(done.stdout[-2000:], done.stderr[-2000:])
    assert done.returncode == 0
    assert RESULT in done.stdout + done.stderr
    requests = bench.daemon.http.get("/ostinato/requests").json()["requests"]
    assert {request["dialect"] for request in requests} == {"responses"}
