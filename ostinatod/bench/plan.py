"""From what a user asks for to a comparison: which sessions, how much memory, which settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ostinatod.bench.comparison import Comparison
from ostinatod.bench.memory import memory_for
from ostinatod.bench.options import Options
from ostinatod.bench.sessions import Part
from ostinatod.bench.settings import Setting, from_json
from ostinatod.bench.traces import SAMPLE, choose, read_traces
from ostinatod.errors import RequestError
from ostinatod.profiles.experts import read_experts
from ostinatod.profiles.gguf_model import read_model

DEFAULT_HOT_SHARE = 0.44
"""Of the experts, where no memory is named: what the paper's pools hold."""
UNKNOWN_CONTEXT_TOKENS = 1 << 17
"""Where a model does not say what it was trained for."""
DEFAULT_HELD_OUT = 3
DEFAULT_DEVELOPMENT = 6


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. None leaves a choice to the plan.

    trace        a trace file, the bundled sessions otherwise; its text fills the shapes of `options`, if there are any
    held_out     sessions that are timed
    development  sessions to learn and choose from
    hot_share    of all experts that are hot, in place of memory
    """

    trace: Path | None = None
    held_out: int | None = None
    development: int | None = None
    hot_share: float | None = None
    options: Options = field(default_factory=Options)


def planned(wanted: Wanted, libraries: Path, parts: Sequence[Path], *, on_gpu: bool) -> Comparison:
    """The comparison. Raises RequestError for a model without experts and sessions that do not suffice.

    libraries  of the engine
    parts      the model's files, in order
    """
    model = read_model(list(parts))
    experts = read_experts(model)
    if experts is None:
        raise RequestError(f"{parts[0].name} has no experts to place", hint="Models with experts: ostinato list")
    recorded = choose(
        read_traces(wanted.trace or SAMPLE),
        wanted.development or DEFAULT_DEVELOPMENT,
        wanted.held_out or DEFAULT_HELD_OUT,
    )
    pool_bytes = None
    if wanted.hot_share is not None or wanted.options.gpu_bytes is None or not on_gpu:
        share = DEFAULT_HOT_SHARE if wanted.hot_share is None else wanted.hot_share
        hot_bytes = share * experts.places().total_bytes
        pool_bytes = memory_for(hot_bytes) if on_gpu else round(hot_bytes)
    return Comparison(
        libraries=libraries,
        model=parts[0],
        experts=experts,
        context_tokens=model.context_length or UNKNOWN_CONTEXT_TOKENS,
        recorded=recorded,
        on_gpu=on_gpu,
        pool_bytes=pool_bytes,
        options=wanted.options,
    )


def divided(shapes: Sequence[Mapping[str, Any]], development: int, held_out: int) -> list[Mapping[str, Any]]:
    """Lengths of logged sessions with their part: the newest are held out, those before them are for development.

    shapes  id and turns of each session, the newest first
    Raises RequestError where there are fewer than two.
    """
    if len(shapes) < 2:
        raise RequestError(
            f"expected at least two sessions in the routing log, found {len(shapes)}",
            hint="Work with an agent first, or replay the bundled sessions",
        )
    timed = min(held_out, len(shapes) - 1)
    held_out_part: list[Part] = ["held-out"]
    development_part: list[Part] = ["development"]
    parts = held_out_part * timed + development_part * development
    return [{**shape, "part": part} for shape, part in zip(shapes, parts, strict=False)]


def read_settings(file: Path) -> list[Setting]:
    """A list of settings from a JSON file. Raises RequestError where it holds none."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(values, list) or not values or not all(isinstance(item, dict) for item in values):
            raise ValueError("expected a list of objects")
    except (OSError, ValueError) as error:
        raise RequestError(f"{file} holds no settings: {error}", hint="docs/benchmark.md has an example") from error
    settings = [from_json(item) for item in values]
    names = [setting.name for setting in settings]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(f"{file}: two settings are called {twice!r}", hint="Turns are kept by the setting's name")
    return settings
