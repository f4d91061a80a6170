"""The daemon's guards on recorded sessions: how many are served below the default when the log is made to mislead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from daemon_learning import DaemonLearning
from learning_replay import Replay, wild_session

from ostinatod.learning.effect import WORSE_THAN_DEFAULT_BY
from ostinatod.models import bundled_file
from ostinatod.profiles.coverage import coverage
from ostinatod.profiles.experts import read_experts
from ostinatod.profiles.gguf_model import read_model
from ostinatod.profiles.planner import ExpertPlaces, spread_evenly
from ostinatod.profiles.route_log import SessionRoutes

KNOWN = 16
"""Real sessions that were learned before, if any."""


@dataclass(frozen=True, slots=True)
class Work:
    """Recorded sessions over the model that they were recorded with, 44 % of its experts hot."""

    replay: Replay
    file: Path
    places: ExpertPlaces

    @property
    def pool_bytes(self) -> int:
        return int(0.44 * self.places.total_bytes)

    def served(self, directory: Path, known: Sequence[SessionRoutes], script: str) -> list[float]:
        """What the daemon's set covers more than the default, of each real session ("r"; "w" is a wild one)."""
        real = self.replay.of("held-out")
        wild = wild_session([*self.replay.of("development"), *real])
        default = spread_evenly(self.places, (self.pool_bytes,))
        learning = DaemonLearning(
            self.file, self.pool_bytes, lambda _: {"moved": 0, "swap_ms": 0.0}, directory, list(known)
        )
        coming, gains = iter(real), []
        for kind in script:
            session = wild if kind == "w" else next(coming)
            if kind == "r":
                covered, least = (
                    coverage([session], hot, self.replay.forgetting).overall for hot in (learning.running, default)
                )
                gains.append(covered - least)
            learning.ended(session, time.time())
            learning.look()
        return gains


@pytest.fixture(scope="module")
def work() -> Work:
    experts = read_experts(read_model([bundled_file()]))
    assert experts is not None
    routes = Path(__file__).parents[2] / "data" / "tiny-routes.npz"
    return Work(Replay(routes), bundled_file(), experts.places())


@pytest.mark.parametrize(
    ("known", "script", "below"),
    [
        pytest.param(0, "w" * 3 + "r" * 6, 1, id="three on the first day"),
        pytest.param(0, "w" * 8 + "r" * 6, 1, id="eight on the first day"),
        pytest.param(0, "w" + "rw" * 6, 1, id="between all, from the first day on"),
        pytest.param(KNOWN, "w" * 8 + "r" * 6, 1, id="eight after learning"),
        pytest.param(KNOWN, "w" * 24 + "r" * 6, 2, id="so many that learned work is forgotten"),
        pytest.param(KNOWN, "w" * 24 + "rww" * 4, 2, id="two for each real one, after that"),
        pytest.param(KNOWN, "w" + "rw" * 6, 0, id="between all, after learning"),
        pytest.param(KNOWN, "wwr" * 4, 0, id="two for each real one, after learning"),
        pytest.param(KNOWN, "wwwr" * 3, 0, id="three for each real one, after learning"),
    ],
)
def test_few_real_sessions_are_below_the_default(
    work: Work, tmp_path: Path, known: int, script: str, below: int
) -> None:
    gains = work.served(tmp_path, work.replay.of("development")[:known], script)
    assert sum(gain <= -WORSE_THAN_DEFAULT_BY for gain in gains) <= below, gains


@pytest.mark.parametrize("known", [0, KNOWN])
def test_a_quarter_of_wild_sessions_costs_next_to_nothing(work: Work, tmp_path: Path, known: int) -> None:
    attacked, calm = (
        work.served(tmp_path / name, work.replay.of("development")[:known], script)
        for name, script in (("attacked", "rrrw" * 3), ("calm", "rrr" * 3))
    )
    assert sum(attacked) / len(attacked) > sum(calm) / len(calm) - 0.03


def test_work_that_changes_is_never_taken_for_an_attack(work: Work, tmp_path: Path) -> None:
    coding = work.replay.of("development", "swe")
    airline = [*work.replay.of("development", "airline"), *work.replay.of("held-out", "airline")]
    learning = DaemonLearning(work.file, work.pool_bytes, lambda _: {"moved": 0, "swap_ms": 0.0}, tmp_path, coding)
    for session in airline:
        learning.ended(session, time.time())
        learning.look()
    assert {item.source for item in learning.history()} == {"learned"}
    assert len(learning.history()) > 1
