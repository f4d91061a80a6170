"""What the commands that measure rows have in common: their options, the model's experts, and the runner."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measured_row import Job
from row_runner import NO_LIMIT, Rows, facts_of

from ostinatod.profiles.experts import ModelExperts, read_experts
from ostinatod.profiles.gguf_model import read_model


def numbers(text: str) -> tuple[int, ...]:
    """A list such as 1,2,4."""
    return tuple(int(item) for item in text.split(",") if item)


def common_arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every such command takes."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n\n")[0])
    parser.add_argument("--libraries", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sessions", type=Path, help="recorded sessions as tokens, in place of random ones")
    parser.add_argument("--profile-tokens", type=int, default=32768, help="of text that says which experts are hot")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0 for all that suit a setting")
    parser.add_argument("--pin-bytes", type=int, default=0, help="to page-lock at most; else what the system can spare")
    parser.add_argument("--seconds", type=float, default=NO_LIMIT, help="after which nothing is measured any more")
    return parser


def experts_of(model: Path) -> ModelExperts:
    """Of a model's file. Raises SystemExit where it has none."""
    experts = read_experts(read_model([model]))
    if experts is None:
        raise SystemExit(f"{model} has no experts to place")
    return experts


@contextmanager
def measured_rows(arguments: argparse.Namespace, **own: Any) -> Iterator[Rows]:
    """The runner of a command; `own` is what its rows have in common beside the options."""
    with tempfile.TemporaryDirectory(prefix="ostinato-rows-") as directory:
        job = Job(
            libraries=str(arguments.libraries),
            model=str(arguments.model),
            setting={},
            out="",
            contexts=directory,
            sessions=str(arguments.sessions) if arguments.sessions else None,
            on_gpu=arguments.device == "gpu",
            profile_tokens=arguments.profile_tokens,
            decode_tokens=arguments.decode_tokens,
            **own,
        )
        yield Rows(job, arguments.out, facts_of(arguments.model, sys.argv), arguments.seconds, Path(directory))
