"""What is tried of a live daemon, step by step; each returns one fact, and raises where something does not hold."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import psutil
from live_chat import Answer, Message, ask, prompts, recorded_conversations
from live_host import Host, ballast, eventually
from live_steps import CheckFailed, check

from ostinatod.engine.gpu_experts import RESERVE_BYTES
from ostinatod.machine.gpus import list_gpus

T = TypeVar("T")

MIB = 1024**2
GIB = 1024**3
STAGING_SHARE = 1 / 8
"""Of the pool's memory, which uploads land in."""
POOL_OWN_MIB = 18
"""What a pool takes without any expert: experts pass through 16 MiB of it when others become hot."""
SESSIONS = 3
TURNS_BEFORE, TURNS_AFTER = 3, 1
"""Of each session, before and after the set of hot experts changes."""
AGAIN_TOKENS = 16
"""What may be read again although it was there: where a template ends a prompt, and the last token."""
SAME_ROOM_SHARE = 0.9
"""Of the hot experts that were there before, which a plan for the same memory has at least."""
LONG_ANSWER_TOKENS = 3000
KILL_AFTER_EVENTS = 5
GPU_LEFT_BYTES = 64 * MIB
"""By which a GPU's free memory may differ before and after."""
DASHBOARD = Path(__file__).with_name("live_dashboard.py")
USES = {
    "dense": ("dense",),
    "kv": ("KV",),
    "pool": ("pool",),
    "borrowed": ("borrowed", "lent"),
    "staging": ("staging", "stage"),
}
"""Uses of a GPU's memory that do not change while nothing runs, and the dashboard's words for them."""


class Live:
    """One run. The order of its methods is that of the steps."""

    def __init__(self, host: Host, model: str, hot_share: float) -> None:
        self.host = host
        self.name = model
        self.file = Path(model) if Path(model).is_file() else None
        self.hot_share = hot_share
        self.gpus = list_gpus()
        self.found: dict[str, Any] = {}
        self.left_out: list[str] = []
        self.talks: list[tuple[str, list[list[Message]]]] = []
        self.last: dict[str, Answer] = {}

    def starts(self) -> str:
        """The daemon, told how large the pool may be; nothing else is set on a machine with GPUs."""
        build = self.host.json("engine", "status")
        estimate = self.host.json("load", "--estimate-only", str(self.file or self.name))
        self.found["engine"], self.found["estimate"] = build, estimate
        self.on_gpu = build["backend"] == "cuda" and bool(self.gpus)
        hot_bytes = self.hot_share * estimate["expert_weights_bytes"] / (len(self.gpus) if self.on_gpu else 1)
        pool_mib = POOL_OWN_MIB - int(-hot_bytes / (1 - STAGING_SHARE) // MIB)
        # What is learned is applied only when asked for, so that this run is the same each time.
        self.host.set(OSTINATO_LEARN_IDLE="never", OSTINATO_ENGINE_ARGS=f"--ostinato-pool-mib {pool_mib}")
        if not self.on_gpu:
            self.left_out.append("no GPU, or an engine for the CPU: what is about GPUs; both branches run on the CPU")
            self.host.set(OSTINATO_HOT_EXPERTS_FRACTION=str(self.hot_share))
        self.host.start()
        if self.file is not None:
            self.name = self.host.json("pull", str(self.file), "--name", "live")["name"]
        setting = self.host.get("/ostinato/status")["settings"]["gpu_experts"]
        check(setting == "auto", "the setting gpu_experts to be auto", setting)
        return f"{build['backend']} engine, {len(self.gpus)} GPUs, pools of {pool_mib} MiB at most"

    def whole_by_itself(self) -> str:
        """A model that fits the GPUs is there whole."""
        self.host.cli("load", self.name)
        try:
            return self._is_whole()
        finally:
            self.host.cli("stop", self.name)

    def _is_whole(self) -> str:
        model = self.host.model(self.name)
        self.found["whole"] = model
        choice = model["gpu_experts"]
        check(choice["chosen"] == "stock", "llama.cpp's own placement", choice)
        if self.on_gpu:
            check("all layers are on the GPUs" in choice["reason"], "the reason that it fits the GPUs", choice)
            dense = sum(device["dense_bytes"] for device in model["engine"]["memory"]["devices"])
            least = self.found["estimate"]["expert_weights_bytes"]
            check(dense >= least, f"at least {least} bytes of weights on the GPUs", dense)
        answer = ask(self.host.http, self.name, [{"role": "user", "content": "hello"}], "whole")
        check(answer.error is None and answer.text, "an answer", answer.error)
        return f"{choice['chosen']}: {choice['reason']}"

    def profile(self) -> str:
        """The machine, measured."""
        told = self.host.json("profile", "--refresh")
        self.found["profile"] = told
        check(len(told["gpus"]) == len(self.gpus), f"{len(self.gpus)} GPUs", told["gpus"])
        for gpu in told["gpus"]:
            slow = [name for name, value in gpu.items() if name.endswith("_gbps") and not value]
            check(not slow, "every transfer to be measured", (slow, told["transfers_reason"]))
        speeds = ", ".join(f"{gpu['name']}: up {gpu['upload_gbps']} GB/s" for gpu in told["gpus"])
        return f"{speeds or 'no GPU'}; memory read at {told['memory']['read_gbps']:.1f} GB/s"

    def verify(self) -> str:
        """The placement changes no answers."""
        told = self.host.json("verify", self.name)
        self.found["verify"] = told
        check(told["verdict"] == "same", "the same answers", told)
        worst = max(case["nmse"] for case in told["cases"])
        return f"{len(told['cases'])} placements, NMSE {worst:.1e} at most, stock's own noise {told['noise']:.1e}"

    def pool_by_itself(self) -> str:
        """While another program has the GPUs' memory, a model that does not fit whole has an expert pool."""
        self._with_little_memory(lambda: self.host.cli("load", self.name), self._pids)
        return self._has_pool()

    def pool_when_asked_for(self) -> str:
        """The same by `gpu_experts = "pool"`, so that what follows has something to try where "auto" has failed."""
        self.host.kill()
        self.host.set(OSTINATO_GPU_EXPERTS="pool")
        self.host.start()
        self.host.cli("load", self.name)
        return self._has_pool()

    def _has_pool(self) -> str:
        model = self.host.model(self.name)
        self.found["pool"] = model
        choice, residency = model["gpu_experts"], model["engine"]["residency"]
        if self.on_gpu:
            check(choice["chosen"] == "pool" and not choice["refused"], "an expert pool", choice)
            check(all(device["gpu"] for device in model["engine"]["devices"]), "all layers on GPUs", model["engine"])
        estimate = self.found["estimate"]
        n_experts = estimate["n_experts"] * estimate["n_moe_layers"]
        check(0 < residency["hot_experts"] < n_experts, f"some of {n_experts} experts hot", residency)
        share = residency["hot_experts"] / n_experts
        return f"{choice['chosen']}: {choice['reason']}; {residency['hot_experts']} hot ({share:.0%})"

    def conversations(self) -> str:
        """Recorded sessions in turn, each reading only what is new to it."""
        for number, messages in enumerate(recorded_conversations(SESSIONS)):
            self.talks.append((f"live-{number}", list(prompts(messages))[: TURNS_BEFORE + TURNS_AFTER]))
        answers = self._say(range(TURNS_BEFORE))
        later = [answer for answer in answers if answer.cached_tokens]
        check(len(later) >= SESSIONS * (TURNS_BEFORE - 1), "every later turn to reuse the one before", len(later))
        ttft = sorted(answer.ttft_ms for answer in later if answer.ttft_ms is not None)
        return f"{len(answers)} requests in {SESSIONS} sessions, TTFT of later turns {ttft[len(ttft) // 2]} ms (median)"

    def learns(self) -> str:
        """What was learned is applied between two turns; conversations go on with what they had read."""
        before = self.host.json("plan", self.name)
        check(before["proposal"], "a proposal", before["skew"])
        hot_before = self.host.model(self.name)["engine"]["residency"]["hot_experts"]
        applied = self.host.json("plan", self.name, "--apply")
        residency = self.host.model(self.name)["engine"]["residency"]
        check(residency["generation"] == applied["generation"], f"generation {applied['generation']}", residency)
        check(applied["moved"] > 0 and applied["swap_ms"] is not None, "experts to be moved in place", applied)
        least = SAME_ROOM_SHARE * hot_before
        check(residency["hot_experts"] >= least, f"the room of {hot_before} experts to be used", residency)
        answers = self._say(range(TURNS_BEFORE, TURNS_BEFORE + TURNS_AFTER))
        self.found["applied"] = applied
        kept = min(answer.cached_tokens or 0 for answer in answers)
        return f"{applied['moved']} experts moved in {applied['swap_ms']:.0f} ms; {kept} tokens kept at least"

    def commands(self) -> str:
        """What people and programs ask for."""
        for command in ("status", "ps", "stats"):
            self.host.cli(command)
            self.found[command] = self.host.json(command)
        self.found["list"] = self.host.json("list")
        self.host.cli("plan", self.name, "--explain")
        examined = self.host.json("doctor", statuses=(0, 1))
        requests = sum(model["requests"] for model in self.found["stats"]["models"])
        n_answers = len(self.found.get("answers", ()))
        check(requests >= n_answers, f"{n_answers} requests to be logged", requests)
        self.found["doctor"] = examined
        self.found["residency"] = self.host.get(f"/ostinato/residency?model={self.name}")
        return f"{len(self.host.commands)} commands so far, {requests} requests logged"

    def dashboard(self) -> str:
        """Every preset in two sizes; the memory panel says what the engine's status says."""
        command = [sys.executable, str(DASHBOARD), str(self.host.http.base_url).rstrip("/"), str(self.host.raw)]
        done = subprocess.run(
            command, env=self.host.environment, cwd=self.host.folder, capture_output=True, text=True, check=False
        )
        self.host.keep("dashboard.json", done.stdout)
        check(done.returncode == 0, "the dashboard to run", done.stderr[-600:])
        told = self.found["dashboard"] = json.loads(done.stdout)
        names = [name for size in told.values() for name in size["screens"]]
        if not self.on_gpu:
            return f"{len(names)} screens"
        devices = self.host.model(self.name)["engine"]["memory"]["devices"]
        panels = {name: "\n".join(lines) for size in told.values() for name, lines in size["memory"].items()}
        compared = check_panels(panels, devices, [gpu.name for gpu in self.gpus])
        return f"{len(names)} screens; {compared} figures of GPU memory as in the engine's status"

    def survives(self) -> str:
        """An engine that is killed costs one answer, and says so."""
        before = self.host.model(self.name)
        pid = before["pid"]

        def kill_in_time(events: int) -> None:
            if events == KILL_AFTER_EVENTS:
                os.kill(pid, signal.SIGKILL)

        question: list[Message] = [{"role": "user", "content": "Count to a thousand."}]
        broken = ask(self.host.http, self.name, question, "killed", tokens=LONG_ANSWER_TOKENS, seen=kill_in_time)
        check(broken.error and broken.status == 200, "an error within the stream", broken)
        # A new engine is placed by the memory that is free when it starts, as the one before was.
        answer = self._with_little_memory(
            lambda: ask(self.host.http, self.name, question, "killed"), lambda: self._pids() - {pid}
        )
        check(answer.error is None and answer.text, "an answer of a new engine", answer.error)
        model = self.host.model(self.name)
        self.found["after_kill"] = {"broken": broken.as_json(), "answer": answer.as_json(), "model": model}
        check(model["pid"] != pid, "another process", pid)
        placed, again = before["engine"]["residency"], model["engine"]["residency"]
        check(again["hot_experts"] == placed["hot_experts"], f"the placement {placed}", again)
        return f"told: {broken.error!r}; the next answer came after {answer.total_ms:.0f} ms"

    def _with_little_memory(self, start: Callable[[], T], has_started: Callable[[], object]) -> T:
        """What `start` returns. Another program has the GPUs' memory until an engine has started.

        Experts have been placed then. The memory is given back: a pool's size is set, not measured.
        """
        with ThreadPoolExecutor(1) as beside, ExitStack() as until_started:
            if self.on_gpu:
                until_started.enter_context(ballast(self._too_little_bytes(), self.host.environment))
            working = beside.submit(start)
            eventually(lambda: working.done() or has_started())
            until_started.close()
            return working.result()

    def _pids(self) -> set[int]:
        """Of the engines that run now."""
        return {model["pid"] for model in self.host.get("/ostinato/status")["models"]} - {None}

    def ends(self) -> str:
        """Nothing is left: no process, and the GPUs' memory is free again."""
        daemon = self.host.running()
        if daemon is None:
            raise CheckFailed("expected a daemon that runs, found none")
        family = [daemon, *daemon.children(recursive=True)]
        self.host.cli("stop", "--daemon")
        assert self.host.process is not None
        self.host.process.wait()
        _, alive = psutil.wait_procs(family[1:], timeout=5)
        check(not alive, "no process to be left", alive)
        left: list[int] = []

        def is_free() -> bool:
            left[:] = [before - gpu.free_bytes for before, gpu in zip(self.host.free_before, list_gpus(), strict=True)]
            return all(size < GPU_LEFT_BYTES for size in left)

        eventually(is_free)
        self.found["gpu_bytes_left"] = left
        told = f"GPU memory against the start: {left} bytes" if left else "no GPU"
        return f"{len(family)} processes ended; {told}"

    def _too_little_bytes(self) -> list[int]:
        """Free memory of each GPU with which the dense part of the model fits, and half of its experts."""
        estimate = self.found["estimate"]
        resident = estimate["dense_weights_bytes"] + estimate["kv_cache_bytes"]
        first = RESERVE_BYTES + estimate["compute_bytes"] + resident + estimate["expert_weights_bytes"] // 2
        return [first, *([RESERVE_BYTES] * (len(self.gpus) - 1))]

    def _say(self, turns: range) -> list[Answer]:
        answers = []
        for turn in turns:
            for session, said in self.talks:
                check(turn < len(said), f"a turn {turn} in {session}", len(said))
                answer = ask(self.host.http, self.name, said[turn], session)
                check(answer.error is None and answer.text, "an answer", answer.error)
                before = self.last.get(session)
                if before is not None:
                    least = (before.prompt_tokens or 0) - AGAIN_TOKENS
                    check((answer.cached_tokens or 0) >= least, f"{least} tokens reused in turn {turn}", answer)
                self.last[session] = answer
                answers.append(answer)
                self.found.setdefault("answers", []).append({"session": session, "turn": turn, **answer.as_json()})
        return answers


def check_panels(panels: Mapping[str, str], devices: Sequence[Mapping[str, Any]], names: Sequence[str]) -> int:
    """How many figures of memory panels were compared with what the engine told of each GPU.

    Small panels leave figures out, or tell the sum of all GPUs. Raises CheckFailed where a figure differs, where no
    panel has all of them, or where none names a GPU.
    """
    for name in names:
        check(any(name in panel for panel in panels.values()), f"{name} in a memory panel", panels)
    told = {use: [device[f"{use}_bytes"] / GIB for device in devices if device[f"{use}_bytes"]] for use in USES}
    compared, is_complete = 0, False
    for where, panel in panels.items():
        shown = figures_of(panel)
        found = {use: next((shown[word] for word in words if word in shown), []) for use, words in USES.items()}
        for use, texts in found.items():
            values = [sum(told[use])] if len(texts) == 1 else told[use]
            check(not texts or len(texts) == len(values), f"{use} of {len(values)} GPUs in {where}", panel)
            for text, value in zip(texts, values, strict=False):
                half_a_digit = 0.51 * 10 ** -len(text.partition(".")[2])
                check(abs(float(text) - value) <= half_a_digit, f"{use} {value:.4f} GiB in {where}", text)
                compared += 1
        is_complete |= all(len(found[use]) == len(told[use]) for use in USES)
    check(is_complete, "a memory panel with every figure", panels)
    return compared


def figures_of(panel: str) -> dict[str, list[str]]:
    """The figures of every GPU by the panel's words: `pool 0.014` in large panels, a table in small ones."""
    found: dict[str, list[str]] = {}
    words: list[str] = []
    for row in panel.splitlines():
        for word, text in re.findall(r"\b([A-Za-z]+) (\d+\.\d+)", row):
            found.setdefault(word, []).append(text)
        cells = re.fullmatch(r"GPU \d+((?: +(?:\d+\.\d+|\W))+)", row.strip())
        if cells is None:
            words = re.findall(r"[A-Za-z]{2,}", row) or words
            continue
        for word, text in zip(words, cells[1].split(), strict=False):
            found.setdefault(word, []).extend([text] if text[-1].isdigit() else [])
    return found
