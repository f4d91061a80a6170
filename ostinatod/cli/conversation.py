"""A conversation with a model: what was said, and with which settings the next answer is asked for."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ostinatod.client import ChatRequest
from ostinatod.errors import RequestError


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting that `/set parameter` knows: its name in the request and how to read it."""

    field: str
    read: Callable[[str], float]
    minimum: float
    maximum: float


PARAMETERS = {
    "temperature": Parameter("temperature", float, 0.0, 10.0),
    "top_p": Parameter("top_p", float, 0.0, 1.0),
    "top_k": Parameter("top_k", int, 0, 1_000_000),
    "min_p": Parameter("min_p", float, 0.0, 1.0),
    "seed": Parameter("seed", int, 0, 2**32 - 1),
    "num_predict": Parameter("max_tokens", int, 1, 2**31 - 1),
}


@dataclass(slots=True)
class Conversation:
    """The turns so far. A turn is added once its answer is there, so that a failed one can be asked again."""

    model: str
    system: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, str]] = field(default_factory=list)
    session_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def request(self, prompt: str) -> ChatRequest:
        """The request that asks `prompt` after everything said so far."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = (*system, *self.turns, {"role": "user", "content": prompt})
        return ChatRequest(self.model, messages, dict(self.options), self.session_id)

    def add(self, prompt: str, answer: str) -> None:
        """Remember a prompt and its answer. Reasoning is left out, as chat templates drop it from earlier turns."""
        self.turns += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]

    def clear(self) -> None:
        """Forget what was said and begin a new session; settings stay."""
        self.turns.clear()
        self.session_id = str(uuid.uuid4())

    def set_parameter(self, name: str, text: str) -> None:
        """Set a parameter for the answers to come. Raises RequestError for an unknown one or a value out of range."""
        parameter = PARAMETERS.get(name)
        if parameter is None:
            raise RequestError(f"unknown parameter {name!r}", hint=f"Known ones: {', '.join(PARAMETERS)}")
        expected = f"expected {name} between {parameter.minimum:g} and {parameter.maximum:g}, found {text!r}"
        try:
            value = parameter.read(text)
        except ValueError as error:
            raise RequestError(expected) from error
        if not parameter.minimum <= value <= parameter.maximum:
            raise RequestError(expected)
        self.options[parameter.field] = value
