"""Plans and runs a comparison: learn from development sessions, find each side's best setting on them, time the others.

Every setting runs in a process of its own. What cannot run is told with its reason, and the others go on (paper 4.1).
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ostinatod.bench.budget import Pace, affordable
from ostinatod.bench.jobs import OnEvent, run_job
from ostinatod.bench.learning import Chosen, Learned, chosen_from_json, learn, session_routes
from ostinatod.bench.memory import hot_bytes_within, pool_limit, pool_limit_with_staging
from ostinatod.bench.options import Options
from ostinatod.bench.results import ResultFile, TurnResult, continue_results
from ostinatod.bench.sessions import Limits, Part, Session, of_part, read_sessions
from ostinatod.bench.settings import (
    Setting,
    as_json,
    cpu_layers_for,
    ostinato_candidates,
    stock_candidates,
)
from ostinatod.bench.trials import Trials
from ostinatod.errors import EngineError, RequestError
from ostinatod.profiles.experts import ModelExperts
from ostinatod.profiles.route_log import SessionRoutes

RESULTS_FILE = "turns.jsonl"
CONTEXT_STEP = 256
"""Contexts are made in multiples of so many tokens."""
SEARCH_SHARE = 0.45
"""Of the time there is: no candidate is begun after it."""
END_S = 4.0
"""A process is asked to end so long before it is ended."""


class Progress(Protocol):
    """Shows how far things have come."""

    def update(self, name: str, completed: int, total: int) -> None:
        """`completed` of `total` turns or sessions of the step called `name`."""

    def note(self, text: str) -> None:
        """Something worth saying in between."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared.

    libraries       of the engine
    model           the first file of the model
    experts         its MoE layers
    context_tokens  the most that the model was trained for
    recorded        (part, recorded session) to be tokenised, or whose text fills the shapes of `options`
    on_gpu          whether layers go to GPUs
    pool_bytes      memory for experts; None where it is what the memory of GPUs in `options` leaves
    """

    libraries: Path
    model: Path
    experts: ModelExperts
    context_tokens: int
    recorded: Sequence[tuple[Part, Mapping[str, Any]]]
    on_gpu: bool
    pool_bytes: int | None
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out.

    loaded    what each timed setting told when it was ready
    failures  why timed settings could not go to their end
    skipped   sessions whose first turn does not fit into the limits
    """

    chosen: Chosen
    turns: Sequence[TurnResult]
    sessions: Sequence[Session]
    loaded: Mapping[str, Mapping[str, Any]]
    failures: Mapping[str, str]
    skipped: Sequence[str]


def compare(plan: Comparison, out: Path, progress: Progress, *, resume: bool) -> Outcome:
    """Run a comparison; turns are kept in `out` as they come.

    Raises RequestError where nothing can be compared, EngineError where learning or every setting fails.
    """
    # Tokens are what sessions say; they are not kept.
    with tempfile.TemporaryDirectory(prefix="ostinato-bench-") as directory:
        run = Steps(plan, progress, Path(directory))
        run.tokenize()
        request = run.request()
        file = continue_results(out / RESULTS_FILE, request) if resume else None
        if file is None:
            chosen = run.shortened(run.choose(run.learn()))
            file = ResultFile(out / RESULTS_FILE, request, chosen.as_json())
        else:
            progress.note(f"continuing after {len(file.turns)} turns")
            chosen = chosen_from_json(file.chosen)
        with file:
            run.keep_timed(chosen.timed)
            run.keep_hot(chosen.learned)
            failures = run.time(chosen.settings, file)
    if not file.turns:
        tried = [str(item["reason"]) for item in chosen.search if item["reason"]]
        raise EngineError(f"nothing could be timed: {'; '.join([*failures.values(), *tried])}")
    return Outcome(chosen, file.turns, run.sessions, file.loaded, failures, run.skipped)


@dataclass(slots=True)
class Steps:
    """The steps of one comparison; `work` is a folder for what its processes share."""

    plan: Comparison
    progress: Progress
    work: Path
    sessions: list[Session] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    n_ctx: int = 0
    paces: dict[str, Pace] = field(default_factory=dict)
    """Of candidates that were tried to their end, by name."""
    started: float = field(default_factory=time.monotonic)

    @property
    def options(self) -> Options:
        """Of the comparison."""
        return self.plan.options

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        seconds = self.options.seconds
        return float("inf") if seconds is None else seconds - (time.monotonic() - self.started)

    def tokenize(self) -> None:
        """Turn the sessions into tokens. Raises RequestError where none of a part is left."""
        plan = self.plan
        most = min(self.options.limits.tokens or plan.context_tokens, plan.context_tokens)
        limits = replace(self.options.limits, tokens=most)
        done = 0

        def on_event(event: Mapping[str, Any]) -> None:
            nonlocal done
            done += event["event"] == "tokenized"
            self.progress.update("sessions in tokens", done, len(plan.recorded))

        job = {
            **self._job("tokenize"),
            "recorded": [{"part": part, "session": session} for part, session in plan.recorded],
            "shapes": list(self.options.shapes),
            "limits": asdict(limits),
            "out": str(self._sessions_file),
        }
        self.run(job, Setting("reading sessions", "stock"), on_event)
        found = read_sessions(self._sessions_file)
        self.sessions = [session for session in found if session.turns]
        self.skipped = [session.id for session in found if not session.turns]
        for part in ("development", "held-out"):
            if not any(session.part == part for session in self.sessions):
                raise RequestError(
                    f"the first turn of every {part} session needs more than {most:,} tokens of context",
                    hint="Allow more with --max-tokens-per-session, or shorten turns with --scale",
                )
        longest = max(session.tokens for session in self.sessions)
        self.n_ctx = -(-(longest + 1) // CONTEXT_STEP) * CONTEXT_STEP

    def request(self) -> dict[str, Any]:
        """What a file of results must agree in to be continued."""
        plan, options = self.plan, self.options
        return {
            "model": plan.model.name,
            "model_bytes": plan.model.stat().st_size,
            "sessions": [[session.part, session.id, len(session.turns), session.tokens] for session in self.sessions],
            "limits": asdict(options.limits),
            "on_gpu": plan.on_gpu,
            "gpu_bytes": options.gpu_bytes,
            "pool_bytes": plan.pool_bytes,
            "threads": options.threads,
            "uploads": list(options.uploads),
            "candidates": None if options.candidates is None else [as_json(item) for item in options.candidates],
            "kinds": list(options.kinds),
            "times_all": options.times_all,
            "repeats": options.repeats,
            "trial_turns": options.trial_turns,
            "staging_experts": options.staging_experts,
        }

    def learn(self) -> Learned:
        """Count the routes of the development sessions, and choose the hot experts from them."""
        counted, dense_bytes = self.count()
        pool_bytes = self.plan.pool_bytes
        if pool_bytes is None:
            pool_bytes = max(0, (self.options.gpu_bytes or 0) - dense_bytes)
            self.progress.note(
                f"{dense_bytes / 1e9:.2f} GB for everything but experts leave {pool_bytes / 1e9:.2f} GB for experts"
            )
        return self.learned(counted, pool_bytes)

    def learned(self, counted: Sequence[SessionRoutes], pool_bytes: int) -> Learned:
        """The hot experts where so many bytes may be taken by experts, on a GPU with the staging buffer."""
        experts = self.plan.experts
        hot_bytes = hot_bytes_within(pool_bytes, experts.places().total_bytes) if self.plan.on_gpu else pool_bytes
        return learn(counted, experts, pool_bytes, hot_bytes)

    def count(self) -> tuple[list[SessionRoutes], int]:
        """The routes of the development sessions, and the GPU memory of everything but experts."""
        plan = self.plan
        sessions = list(of_part(self.sessions, "development"))
        counted: list[SessionRoutes] = []
        dense_bytes = 0

        def on_event(event: Mapping[str, Any]) -> None:
            nonlocal dense_bytes
            if event["event"] == "loaded":
                dense_bytes = event["gpu_bytes"]
            elif event["event"] == "counted":
                counted.append(session_routes(event, len(counted)))
            self.progress.update("learning from sessions", len(counted), len(sessions))

        # All experts in host memory: what is then on GPUs is what every setting has there.
        every_layer = plan.experts.layers[-1] + 1
        tries = {every_layer}
        if plan.pool_bytes is not None and plan.on_gpu:
            # Nobody asks then, and layers on GPUs are read faster: all of them, or those that stock may have there.
            tries |= {0, cpu_layers_for(plan.experts, plan.pool_bytes)}
        for tried in sorted(tries):
            learning = Setting("learning", "stock", cpu_layers=tried, load_mode="none", threads=self.options.threads)
            try:
                self.run(self.model_job("count", sessions, learning), learning, on_event)
                break
            except EngineError:
                # Memory may also be short in a pass, after loading.
                if tried == every_layer:
                    raise
                counted.clear()
        return counted, dense_bytes

    def choose(self, learned: Learned) -> Chosen:
        """The best setting of each kind on the development sessions; a single candidate needs no trial."""
        plan = self.plan
        self.keep_hot(learned)
        candidates = self.options.candidates
        if candidates is None:
            cpu_layers = cpu_layers_for(plan.experts, learned.pool_bytes) if plan.on_gpu else 0
            stock = stock_candidates(cpu_layers, self.options.threads, on_gpu=plan.on_gpu)
            candidates = [*ostinato_candidates(self.options.threads, self.options.uploads), *stock]
        candidates = [self.limited(setting, learned.pool_bytes) for setting in candidates]
        if self.options.times_all:
            return Chosen(learned, tuple(setting for setting in candidates if setting.kind in self.options.kinds), ())
        sessions = list(of_part(self.sessions, "development"))

        def replay(setting: Setting, on_event: OnEvent) -> None:
            job = {**self.model_job("replay", sessions, setting), "turns": self.options.trial_turns, "done": {}}
            self.run(job, setting, on_event)

        trials = Trials(
            replay,
            turns=sum(len(session.turns[: self.options.trial_turns]) for session in sessions),
            layers=plan.experts.layers[-1] + 1 if plan.on_gpu else 0,
            is_time=lambda: self.options.seconds is None or self.left_s >= (1 - SEARCH_SHARE) * self.options.seconds,
            show=self.progress.update,
            note=self.progress.note,
        )
        settings: list[Setting] = []
        for kind in self.options.kinds:
            of_kind = [setting for setting in candidates if setting.kind == kind]
            only = of_kind[0] if len(of_kind) == 1 else None
            # What must fit into a time is also tried for its pace, unless no turn may be spent on that.
            is_tried = only is None or (self.options.seconds is not None and self.options.trial_turns != 0)
            best = trials.quickest(of_kind) if is_tried else only
            settings += [found for found in (best or only,) if found]
        self.paces = trials.paces
        return Chosen(learned, tuple(settings), tuple(trials.search))

    def limited(self, setting: Setting, gpu_bytes: int) -> Setting:
        """With no more memory of the GPU than stock may have for experts; an engine would take all there is."""
        if setting.kind != "ostinato" or not self.plan.on_gpu:
            return setting
        staging = setting.staging_experts or self.options.staging_experts
        limit = pool_limit_with_staging(gpu_bytes, self.plan.experts, staging) if staging else pool_limit(gpu_bytes)
        return replace(
            setting,
            pool_bytes=setting.pool_bytes or limit,
            pin_bytes=setting.pin_bytes or self.options.pin_bytes,
            staging_experts=staging,
        )

    def shortened(self, chosen: Chosen) -> Chosen:
        """With as much of the held-out sessions as the time suffices for, by what the trials took."""
        if self.options.seconds is None or not self.paces:
            return chosen
        sessions = list(of_part(self.sessions, "held-out"))
        paces = [self._pace(setting) for setting in chosen.settings] * self.options.repeats
        timed = affordable(paces, sessions, self.left_s - END_S)
        expected = sum(pace.seconds(timed) for pace in paces)
        self.progress.note(
            f"what fits into the {self.left_s:.0f} s that are left: held-out sessions {len(timed)}, "
            f"turns {sum(len(session.turns) for session in timed)}; expected {expected:.0f} s"
        )
        return replace(chosen, timed={session.id: len(session.turns) for session in timed})

    def _pace(self, setting: Setting) -> Pace:
        """Of the setting's trial; of the slowest one where it had none, and nothing where no setting had."""
        known = self.paces.values()
        return self.paces.get(setting.name) or max(
            known, key=lambda pace: pace.step_ms, default=Pace(0.0, 0.0, 0.0, 0.0)
        )

    def keep_timed(self, timed: Mapping[str, int] | None) -> None:
        """Replay so many turns of these held-out sessions only; None for all."""
        if timed is not None:
            self.sessions = [
                session if session.part == "development" else Limits(turns=timed[session.id]).apply(session)
                for session in self.sessions
                if session.part == "development" or session.id in timed
            ]

    def keep_hot(self, learned: Learned) -> None:
        """Write the hot experts for the processes."""
        np.save(self._hot_file, learned.hot)

    def time(self, settings: Sequence[Setting], file: ResultFile) -> dict[str, str]:
        """Replay the held-out sessions under each setting and keep every turn; why settings failed, by name."""
        sessions = list(of_part(self.sessions, "held-out"))
        total = sum(len(session.turns) for session in sessions) * self.options.repeats
        failures: dict[str, str] = {}
        longest = max(len(session.turns) for session in sessions)
        # Repeat after repeat, not setting after setting: what else the machine does then falls on all of them.
        runs = list(itertools.product(range(self.options.repeats), settings))
        for number, (repeat, setting) in enumerate(runs):
            done = file.done(setting.name, repeat)
            is_complete = all(done.get(session.id, 0) == len(session.turns) for session in sessions)
            if is_complete or setting.name in failures:
                continue

            def on_event(event: Mapping[str, Any], name: str = setting.name, repeat: int = repeat) -> None:
                told = {key: value for key, value in event.items() if key != "event"}
                if event["event"] == "loaded":
                    file.append_loaded(name, told)
                elif event["event"] == "turn":
                    file.append(TurnResult(setting=name, repeat=repeat, **told))
                self.progress.update(name, sum(turn.setting == name for turn in file.turns), total)

            try:
                job = {**self.model_job("replay", sessions, setting), "turns": longest, "done": done}
                # Who comes first must not use up what the others need.
                others = runs[number + 1 :]
                paced_s = sum(self._pace(other).seconds(sessions) for _, other in others)
                # Settings that were not tried have no pace: to each its part of what is left.
                is_shared = self.options.seconds is not None and not self.paces
                others_s = self.left_s * len(others) / (len(others) + 1) if is_shared else paced_s
                self.run(job, setting, on_event, leaving_s=others_s)
                done = file.done(setting.name, repeat)
                if any(done.get(session.id, 0) < len(session.turns) for session in sessions):
                    failures[setting.name] = f"the time was over after {sum(done.values())} turns"
            except EngineError as error:
                failures[setting.name] = error.message
                self.progress.note(f"could not go on: {error.message}")
        return failures

    def run(self, job: Mapping[str, Any], setting: Setting, on_event: OnEvent, *, leaving_s: float = 0.0) -> None:
        """A job, which ends by itself when all but so much of the time is over, and is ended soon after.

        Raises as `run_job` does.
        """
        limit_s = max(0.0, self.left_s - leaving_s)
        run_job({**job, "until": time.time() + limit_s - END_S}, setting, on_event, limit_s=limit_s)

    @property
    def _sessions_file(self) -> Path:
        return self.work / "sessions.json"

    @property
    def _hot_file(self) -> Path:
        return self.work / "hot.npy"

    def _job(self, do: str) -> dict[str, Any]:
        return {"do": do, "libraries": str(self.plan.libraries), "model": str(self.plan.model)}

    def model_job(self, do: str, sessions: Sequence[Session], setting: Setting) -> dict[str, Any]:
        """A job that loads the model under a setting."""
        return {
            **self._job(do),
            "sessions": str(self._sessions_file),
            "only": [session.id for session in sessions],
            "n_ctx": self.n_ctx,
            "on_gpu": self.plan.on_gpu,
            "hot": str(self._hot_file) if setting.kind == "ostinato" else None,
        }
