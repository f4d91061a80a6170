"""Coding agents as npm and PyPI have them, started by `ostinato launch` on a daemon with a scripted engine.

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
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from ostinatod import locations
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.models import bundled_file
from tests.conftest import RunningDaemon, StartDaemon, eventually

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
    tool: str | None
    arguments: dict[str, Any]
    """Of the tool call."""
    silence: str = ""
    """Why it says nothing of an overflow."""
    again: tuple[str, ...] = ()
    """Arguments that continue its last conversation, before what is said next; none where it cannot."""

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
    Agent("cline", "cline", ("-t", "60"), "run_commands", {"commands": [COMMAND]}),
    Agent("continue", "cn", ("--auto", "-p"), "Bash", {"command": COMMAND}, again=("--auto", "--resume", "-p")),
    Agent(
        "aider",
        "aider",
        ("--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings", "--message"),
        None,
        {},
    ),
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

    def start(self, agent: Agent, task: str, *, again: bool = False) -> subprocess.Popen[str]:
        """Start the agent on a task, through our own command line; `again` goes on with its last conversation."""
        work = self.home / "work"
        work.mkdir(exist_ok=True)
        environment = {
            "HOME": str(self.home),
            "PATH": f"{DIRECTORIES}:/usr/bin:/bin:{Path(shutil.which('node') or '/usr/bin/node').parent}",
            "OSTINATO_HOME": str(self.daemon.home),
            "OSTINATO_HOST": self.daemon.url,
            "TERM": "dumb",
            "CI": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }
        command = [sys.executable, "-m", "ostinatod", "launch", agent.client, "--model", self.model, "--"]
        return subprocess.Popen(
            # In aider a message that begins with ! is a command for its own shell.
            [*command, *(agent.again if again else agent.before), f"Now:\n{task}"],
            cwd=work,
            env=environment,
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
def bench(start_daemon: StartDaemon, scripted_engine_cache: Path, tmp_path: Path) -> Bench:
    """A daemon with a scripted engine of 64k context, and a home."""
    journal, home = tmp_path / "journal", tmp_path / "agent"
    journal.touch()
    home.mkdir()
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
def reading_bench(engine_build: EngineBuild, start_daemon: StartDaemon, tmp_path: Path) -> Bench:
    """A daemon with the real engine. What it answers means nothing, and a bias makes it end soon; reading counts."""
    home, model = tmp_path / "agent", tmp_path / "one-layer.gguf"
    home.mkdir()
    write_first_layer(model)
    ends_soon = "--logit-bias 2+7"
    daemon = start_daemon(locations.engine_cache_dir(), OSTINATO_ENGINE_ARGS=ends_soon, OSTINATO_PARALLEL="2")
    daemon.http.post("/ostinato/add", json={"path": str(model), "name": "one-layer"}).raise_for_status()
    daemon.http.post("/ostinato/load", json={"model": "one-layer"})
    return Bench(daemon, tmp_path / "journal", home, "one-layer")


@pytest.mark.engine
@pytest.mark.timeout(2 * READING_S + 60)
def test_the_next_turn_of_an_agent_reads_only_what_is_new(reading_bench: Bench, agent: Agent) -> None:
    if not agent.again:
        pytest.skip(f"{agent.client} cannot go on with a conversation without a terminal")
    for again, task in ((False, "Say hello."), (True, "And now say it again.")):
        code, output = reading_bench.run(agent, task, again=again, within_s=READING_S)
        assert code is not None, output[-3000:]
    requests = reading_bench.daemon.http.get("/ostinato/requests").json()["requests"]
    turns = [request for request in requests if request["kind"] in ("first", "after_user")]
    print([(request["kind"], request["new_tokens"], request["reused_tokens"]) for request in turns])
    latest, first = turns[0], turns[-1]
    assert latest["reused_tokens"] >= 0.9 * first["new_tokens"]
    assert latest["new_tokens"] < 0.1 * first["new_tokens"]


@pytest.mark.timeout(PATIENCE_S + 60)
def test_an_agent_chats_and_uses_its_tool(bench: Bench, agent: Agent) -> None:
    code, output = bench.run(agent, agent.tool_call if agent.tool else "Say hello.")
    print(output[-3000:])
    assert code == 0
    assert bench.events("begin") >= (2 if agent.tool else 1)
    if agent.tool:
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
