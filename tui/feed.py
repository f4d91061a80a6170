"""Reads the daemon in a thread of its own: one round of requests per interval, only for the parts that are on screen.

Parts that change slowly are asked for less often. A daemon that does not answer is asked again and again; what it told
before is dropped, because old figures would pass for new ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ostinatod.client_dashboard import ABOUT_A_MODEL, DashboardClient, PartName, Wanted
from ostinatod.client_dashboard_values import NOT_ASKED, DaemonState, Part, Reading
from ostinatod.errors import OstinatoError
from ostinatod.tui.view.experts import Experts, join
from ostinatod.tui.view.state import Host, Link, LinkState

Measure = Callable[[DaemonState | None, float], Host]
"""Measures this machine, given the daemon and the wall clock."""

RETRY_S = 2.0

EVERY_S: Mapping[PartName, float] = {
    "requests": 1.0,
    "logs": 1.0,
    "sessions": 2.0,
    "routes": 3.0,
    "residency": 5.0,
    "plan": 5.0,
    "listings": 10.0,
    "profile": 60.0,
}
"""How old a part may become before it is asked for again, at the usual interval of a second."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the screen needs."""

    parts: frozenset[PartName] = frozenset()
    focus: str | None = None
    log_source: str = "daemon"


@dataclass(frozen=True, slots=True)
class Round:
    """What one round brought; `focus` is the model that the parts about one model are about."""

    link: Link
    reading: Reading | None
    experts: Part[Experts]
    host: Host
    focus: str | None


class Feed:
    """The thread. `connect` makes clients, a new one after a failure. `deliver` is called in it with every
    round, and `fail` at its end with a fault that is not the daemon's.
    """

    def __init__(
        self,
        connect: Callable[[], DashboardClient],
        deliver: Callable[[Round], object],
        fail: Callable[[Exception], object],
        *,
        interval_s: float,
        clock: Callable[[], float] = time.time,
        measure: Measure | None = None,
    ) -> None:
        self.interval_s = interval_s
        self.is_paused = False
        self._connect = connect
        self._client = connect()
        self._deliver = deliver
        self._fail = fail
        self._clock = clock
        self._measure = measure
        self._wake = threading.Condition()
        self._asked = Asked()
        self._at_once = True
        self._everything = False
        self._is_over = False
        self.link = Link(self._client.base_url, since_s=clock(), retry_s=RETRY_S)
        self._reading: Reading | None = None
        self._about: tuple[str | None, str] = (None, "daemon")
        self._read_at: dict[PartName, float] = {}
        self._joined: tuple[object, object, Part[Experts]] = (None, None, NOT_ASKED)
        # A daemon thread: leaving the dashboard never waits for an answer.
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Begin with a round at once."""
        self._thread.start()

    def close(self) -> None:
        """No further round is delivered."""
        with self._wake:
            self._is_over = True
            self._wake.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the round in progress, after `close`."""
        self._thread.join(timeout_s)

    def ask(self, asked: Asked) -> None:
        """Show other parts; what is not known yet is read at once, also while paused."""
        with self._wake:
            if asked != self._asked:
                self._asked = asked
                self._at_once = True
                self._wake.notify()

    def refresh(self) -> None:
        """Read everything on screen now, also while paused."""
        with self._wake:
            self._everything = self._at_once = True
            self._wake.notify()

    def _run(self) -> None:
        try:
            self._read_on()
        except Exception as error:
            # A fault of ours; hidden in a thread it would leave a screen that never changes.
            self._fail(error)
        finally:
            self._client.close()

    def _read_on(self) -> None:
        due_s = 0.0
        while True:
            with self._wake:
                while not self._is_over and not self._at_once:
                    left_s = due_s - time.monotonic()
                    if left_s <= 0 and not self.is_paused:
                        break
                    self._wake.wait(left_s if left_s > 0 else 1.0)
                if self._is_over:
                    return
                asked, everything = self._asked, self._everything
                self._at_once = self._everything = False
            # From the start of a round to the start of the next, so that a slow answer does not slow the pace.
            due_s = time.monotonic() + self.interval_s
            found = self._round(asked, everything)
            if found.link.state == "lost":
                due_s = time.monotonic() + max(self.interval_s, RETRY_S)
            with self._wake:
                if self._is_over:
                    return
            self._deliver(found)

    def _round(self, asked: Asked, everything: bool) -> Round:
        try:
            reading = self._read(asked, everything)
            self._linked("up")
        except OstinatoError as error:
            reading = None
            self._read_at.clear()
            # Whoever answers next may be another daemon, with another key for the clients of its machine.
            self._client.close()
            self._client = self._connect()
            self._linked("lost", error.message, error.hint or "Start it: ostinato serve")
        self._reading = reading
        host = Host()
        if self._measure is not None:
            host = self._measure(reading.daemon if reading else None, self._clock())
        return Round(self.link, reading, self._experts(reading), host, self._about[0])

    def _read(self, asked: Asked, everything: bool) -> Reading:
        known = self._reading
        about = (_focus(asked.focus, known), asked.log_source)
        if about != self._about or known is None:
            self._forget(*ABOUT_A_MODEL, "logs")
        now_s, pace = time.monotonic(), max(self.interval_s, 0.1)
        # A little early rather than a whole round late.
        due = frozenset(
            name
            for name in asked.parts
            if everything or now_s - self._read_at.get(name, float("-inf")) >= (EVERY_S[name] - 0.1) * pace
        )
        reading = self._client.read(Wanted(due, model=about[0], log_source=about[1]))
        self._read_at.update(dict.fromkeys(due, now_s))
        focus = _focus(asked.focus, reading)
        self._about = (focus, about[1])
        if about[0] is not None and focus != about[0]:
            # The model in focus has gone: the parts about it were read for a model that is not in memory.
            more = asked.parts & ABOUT_A_MODEL
            reading = _merged(reading, self._client.read(Wanted(more, model=focus)), more)
            self._read_at.update(dict.fromkeys(more, now_s))
            due |= more
        return _merged(known, reading, due) if known is not None else reading

    def _forget(self, *names: PartName) -> None:
        """Read these parts with the next round."""
        for name in names:
            self._read_at.pop(name, None)

    def _linked(self, state: LinkState, error: str = "", hint: str = "") -> None:
        since_s = self.link.since_s if state == self.link.state else self._clock()
        self.link = replace(self.link, state=state, error=error, hint=hint, since_s=since_s)

    def _experts(self, reading: Reading | None) -> Part[Experts]:
        """Counts joined with the set; the same value as long as neither has changed."""
        if reading is None:
            return NOT_ASKED
        routes, residency, _ = self._joined
        if routes is not reading.routes or residency is not reading.residency:
            self._joined = (reading.routes, reading.residency, join(reading.routes, reading.residency))
        return self._joined[2]


def _focus(wanted: str | None, reading: Reading | None) -> str | None:
    """The model wanted if it is in memory, else the first one that is."""
    names = [model.name for model in reading.daemon.models] if reading else []
    if wanted in names or not reading:
        return wanted
    return names[0] if names else wanted


def _merged(known: Reading, found: Reading, parts: frozenset[PartName]) -> Reading:
    return replace(known, at_s=found.at_s, daemon=found.daemon, **{name: getattr(found, name) for name in parts})
