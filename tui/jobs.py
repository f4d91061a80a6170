"""What the dashboard makes the daemon do: loads, downloads, unloads, plans, cancellations, each in a thread of its own.

The threads are daemon threads: leaving the dashboard never waits for them. A download ends with the dashboard and is
resumed by the next pull; everything else goes on in the daemon.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from ostinatod.client_dashboard import DashboardClient
from ostinatod.errors import OstinatoError
from ostinatod.tui.view.state import Job, JobKind

_Report = Callable[[Job], bool]
"""Takes the next state of a job; False asks it to stop."""


class Jobs:
    """Runs jobs and remembers how far each is. `connect` makes a client for each."""

    def __init__(self, connect: Callable[[], DashboardClient], changed: Callable[[Job], object]) -> None:
        self._connect = connect
        self._changed = changed
        self._lock = threading.Lock()
        self._jobs: dict[tuple[str, str], Job] = {}
        self._stopped: set[tuple[str, str]] = set()

    def snapshot(self) -> tuple[Job, ...]:
        """Loads and downloads that run or have failed, in the order they were begun."""
        with self._lock:
            return tuple(job for job in self._jobs.values() if job.kind in ("load", "pull"))

    def running_pulls(self) -> tuple[Job, ...]:
        """Downloads that leaving would stop."""
        return tuple(job for job in self.snapshot() if job.kind == "pull" and job.state == "running")

    def load(self, model: str) -> None:
        """Load a model."""

        def work(client: DashboardClient, job: Job, report: _Report) -> str:
            with closing(client.load(model)) as steps:
                for step in steps:
                    if not report(replace(job, step=step.status, share=step.progress)):
                        return f"{model} goes on loading"
            return f"{model} is ready"

        self._start(Job("load", model), work)

    def pull(self, reference: str) -> None:
        """Download a model."""

        def work(client: DashboardClient, job: Job, report: _Report) -> str:
            with closing(client.pull(reference)) as steps:
                for step in steps:
                    total = step.all_total_bytes or step.total_bytes
                    done = step.all_completed_bytes if step.all_total_bytes else step.completed_bytes
                    share = done / total if total else None
                    if not report(replace(job, step=step.status, share=share, done_bytes=done, total_bytes=total)):
                        return f"stopped pulling {reference}; another pull resumes it"
            return f"pulled {reference}"

        self._start(Job("pull", reference), work)

    def stop(self, kind: JobKind, model: str) -> None:
        """Ask a job to stop at its next step."""
        with self._lock:
            self._stopped.add((kind, model))

    def dismiss(self, kind: JobKind, model: str) -> None:
        """Forget a job that has failed."""
        with self._lock:
            if (job := self._jobs.get((kind, model))) is not None and job.state == "failed":
                del self._jobs[kind, model]

    def unload(self, model: str) -> None:
        """Unload a model once its answers in progress have ended."""

        def work(client: DashboardClient, job: Job, report: _Report) -> str:
            client.unload(model)
            return f"unloaded {model}"

        self._start(Job("unload", model), work)

    def cancel(self, request_id: str) -> None:
        """Stop a request."""

        def work(client: DashboardClient, job: Job, report: _Report) -> str:
            return "cancelled the request" if client.cancel(request_id) else "the request had already ended"

        self._start(Job("cancel", request_id), work)

    def apply_plan(self, model: str) -> None:
        """Put the proposal into use."""

        def work(client: DashboardClient, job: Job, report: _Report) -> str:
            told = client.change_plan(model, "apply")
            return f"generation {told.get('generation')} is in use, {told.get('moved')} experts moved"

        self._start(Job("apply", model), work)

    def undo_plan(self, model: str) -> None:
        """Go back to the generation before."""

        def work(client: DashboardClient, job: Job, report: _Report) -> str:
            told = client.change_plan(model, "undo")
            return f"went back: generation {told.get('generation')} is in use, {told.get('moved')} experts moved"

        self._start(Job("undo", model), work)

    def _start(self, job: Job, work: Callable[[DashboardClient, Job, _Report], str]) -> None:
        key = (job.kind, job.model)
        with self._lock:
            if (running := self._jobs.get(key)) is not None and running.state == "running":
                return
            self._jobs[key] = job
            self._stopped.discard(key)

        def report(step: Job) -> bool:
            with self._lock:
                self._jobs[key] = step
                return key not in self._stopped

        def run() -> None:
            try:
                with closing(self._connect()) as client:
                    ended = replace(job, state="done", step=work(client, job, report))
            except OstinatoError as error:
                ended = replace(job, state="failed", error=error.message, hint=error.hint or "")
            with self._lock:
                if ended.state == "done":
                    self._jobs.pop(key, None)
                else:
                    self._jobs[key] = ended
            self._changed(ended)

        threading.Thread(target=run, name=f"{job.kind} {job.model}", daemon=True).start()
