"""One answer: streamed to the terminal, collected, and timed."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import dataclass

import click

from ostinatod.cli.output import colour_wanted, say
from ostinatod.cli.text import strip_controls
from ostinatod.client import ChatRequest, DaemonClient
from ostinatod.client_values import ChatDelta, ChatEnd, Usage


@dataclass(frozen=True, slots=True)
class AnswerTimings:
    """How an answer went, times as a client sees them. None stands for what could not be measured."""

    total_ms: float
    """From the request to the last token."""
    load_ms: float
    """Loading the model before the request; 0 if that was done."""
    ttft_ms: float | None
    """From the request to the first token."""
    new_tokens: int
    """Prompt tokens that were read."""
    reused_tokens: int
    """Prompt tokens whose state was still there."""
    prompt_tokens_per_s: float | None
    output_tokens: int
    tpot_ms: float | None
    """Time per output token."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    text: str
    reasoning: str
    finish_reason: str
    usage: Usage
    timings: AnswerTimings


class AnswerPrinter:
    """Collects an answer and shows it as it comes: text on stdout, reasoning dimmed on stderr.

    A terminal is sent no control characters but newline and tab; a file or pipe gets the text as it is. A quiet one
    only collects.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.text = ""
        self.reasoning = ""
        self._quiet = quiet
        self._terminal = sys.stdout.isatty()

    def write(self, delta: ChatDelta) -> None:
        """Take the next piece."""
        if delta.reasoning:
            self.reasoning += delta.reasoning
            self._say(delta.reasoning)
        if delta.text:
            if self.reasoning and not self.text:
                self._say("\n\n")
            self.text += delta.text
            if not self._quiet:
                sys.stdout.write(strip_controls(delta.text) if self._terminal else delta.text)
                sys.stdout.flush()

    def end(self) -> None:
        """End the last line."""
        if self.reasoning and not self.text:
            self._say("\n")
        if self.text and not self._quiet:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _say(self, text: str) -> None:
        if not self._quiet:
            click.echo(click.style(strip_controls(text), dim=True), nl=False, err=True, color=colour_wanted())


def ask(client: DaemonClient, request: ChatRequest, printer: AnswerPrinter, load_ms: float = 0.0) -> Answer:
    """Stream the answer to `request` into `printer`. Closing it early, as Ctrl-C does, stops the generation."""
    started = time.monotonic()
    first: float | None = None
    end = ChatEnd("", Usage(), None)
    try:
        with closing(client.chat(request)) as events:
            for event in events:
                if isinstance(event, ChatEnd):
                    end = event
                else:
                    first = first or time.monotonic()
                    printer.write(event)
    finally:
        printer.end()
    finished = time.monotonic()
    timings = _timings(end, load_ms, started, first, finished)
    return Answer(printer.text, printer.reasoning, end.finish_reason, end.usage, timings)


def tell_end(answer: Answer, *, verbose: bool) -> None:
    """Say on stderr what the text does not show: an answer cut short, and the timings if they are wanted."""
    if answer.finish_reason == "length":
        say("The answer was cut at the limit on its tokens.")
    if verbose:
        say(timings_text(answer.timings))


def timings_text(timings: AnswerTimings) -> str:
    """The timings as aligned lines."""
    rate = f"{1000 / timings.tpot_ms:.1f} tokens/s" if timings.tpot_ms else "-"
    values = [
        ("total", f"{timings.total_ms / 1000:.2f} s"),
        ("load", f"{timings.load_ms / 1000:.2f} s"),
        ("prompt", f"{timings.new_tokens} new tokens, {timings.reused_tokens} reused"),
        ("prompt rate", _measured(timings.prompt_tokens_per_s, "tokens/s")),
        ("time to first token", _measured(timings.ttft_ms, "ms")),
        ("output", f"{timings.output_tokens} tokens"),
        ("time per output token", f"{_measured(timings.tpot_ms, 'ms')} ({rate})"),
    ]
    width = max(len(key) for key, _ in values)
    return "\n".join(f"{key.ljust(width)}    {value}" for key, value in values)


def _timings(end: ChatEnd, load_ms: float, started: float, first: float | None, finished: float) -> AnswerTimings:
    engine = end.timings
    output_tokens = engine.predicted_n if engine else end.usage.completion_tokens
    tpot_ms = None
    if engine and engine.predicted_n:
        tpot_ms = engine.predicted_ms / engine.predicted_n
    elif first is not None and output_tokens > 1:
        tpot_ms = (finished - first) * 1000 / (output_tokens - 1)
    return AnswerTimings(
        total_ms=(finished - started) * 1000,
        load_ms=load_ms,
        ttft_ms=None if first is None else (first - started) * 1000,
        new_tokens=engine.prompt_n if engine else end.usage.prompt_tokens - end.usage.cached_tokens,
        reused_tokens=engine.cache_n if engine else end.usage.cached_tokens,
        prompt_tokens_per_s=engine.prompt_n * 1000 / engine.prompt_ms if engine and engine.prompt_ms else None,
        output_tokens=output_tokens,
        tpot_ms=tpot_ms,
    )


def _measured(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.1f} {unit}"
