"""Which candidate wins, and what is not tried to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostinatod.bench.jobs import OnEvent
from ostinatod.bench.settings import Setting
from ostinatod.bench.trials import Trials
from ostinatod.errors import EngineError, EngineLoadError

TURNS = 4


class Engine:
    """Takes so many milliseconds for a turn, by name; `fits` says from how many layers on the CPU it can be loaded."""

    def __init__(self, times: Mapping[str, float], fits: int = 0, turns: int = TURNS) -> None:
        self.times, self.fits, self.turns = times, fits, turns
        self.told: dict[str, int] = {}

    def replay(self, setting: Setting, on_event: OnEvent) -> None:
        if setting.cpu_layers < self.fits:
            raise EngineLoadError("out of memory")
        if setting.name not in self.times:
            raise EngineError("crashed")
        on_event({"event": "loaded"})
        for turn in range(self.turns):
            self.told[setting.name] = turn + 1
            ms = self.times[setting.name]
            on_event({"event": "turn", "turn": turn, "new": 1, "output": 2, "ttft_ms": ms / 2, "total_ms": ms})


def trials(engine: Engine, may_begin: Sequence[bool] = (True,) * 9) -> Trials:
    answers = iter(may_begin)
    return Trials(engine.replay, TURNS, 6, lambda: next(answers), lambda *_: None, lambda _: None)


def reasons(tried: Trials) -> list[tuple[str, Any]]:
    return [(item["setting"]["name"], item["reason"] or item["total_ms"]) for item in tried.search]


def named(*names: str) -> list[Setting]:
    return [Setting(name, "stock", cpu_layers=2) for name in names]


def test_the_quickest_wins_and_slow_ones_are_given_up() -> None:
    engine = Engine({"a": 10, "b": 20, "c": 8})
    tried = trials(engine)
    best = tried.quickest(named("a", "b", "c"))
    assert best is not None
    assert best.name == "c"
    # 40 ms are the best then, and 1.15 times that is more than two turns of 20 ms.
    assert engine.told == {"a": 4, "b": 3, "c": 4}
    assert reasons(tried) == [("a", 40), ("b", "slower than another one, given up after 3 of 4 turns"), ("c", 32)]
    assert set(tried.paces) == {"a", "c"}


def test_a_candidate_that_crashes_does_not_win() -> None:
    tried = trials(Engine({"a": 10}))
    best = tried.quickest(named("crashes", "a"))
    assert best is not None
    assert best.name == "a"
    assert reasons(tried)[0] == ("crashes", "crashed")
    assert trials(Engine({})).quickest(named("crashes")) is None


def test_layers_go_to_the_cpu_as_far_as_there_are_any() -> None:
    best = trials(Engine({"a": 10}, fits=4)).quickest(named("a"))
    assert best is not None
    assert best.cpu_layers == 4
    nowhere = trials(Engine({"a": 10}, fits=9))
    assert nowhere.quickest(named("a")) is None
    assert [item["setting"]["cpu_layers"] for item in nowhere.search] == [2, 3, 4, 5, 6]


def test_hot_experts_are_not_tried_with_layers_on_the_cpu() -> None:
    tried = trials(Engine({"a": 10}, fits=1))
    assert tried.quickest([Setting("a", "ostinato")]) is None
    assert len(tried.search) == 1


def test_nothing_is_begun_when_time_is_short_and_a_cut_trial_does_not_count() -> None:
    tried = trials(Engine({"a": 10, "b": 1}), [True, False])
    best = tried.quickest(named("a", "b"))
    assert best is not None
    assert best.name == "a"
    assert reasons(tried)[1] == ("b", "not tried for want of time")
    cut = trials(Engine({"a": 10}, turns=2))
    assert cut.quickest(named("a")) is None
    assert reasons(cut) == [("a", "the time was over after 2 of 4 turns")]


def test_where_there_is_no_time_to_try_any_the_first_one_is_taken() -> None:
    tried = trials(Engine({"b": 1}), [False, False])
    best = tried.quickest(named("a", "b"))
    assert best is not None
    assert best.name == "a"
    assert [reason for _, reason in reasons(tried)] == ["not tried for want of time"] * 2
    crashed = trials(Engine({"c": 1}), [True, False])
    after = crashed.quickest(named("crashes", "c"))
    assert after is not None
    assert after.name == "c"
