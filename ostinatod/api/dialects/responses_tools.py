"""Tools of the Responses API: what they are called for the engine, and what for the client. Pure.

A *namespace* holds functions whose names are unique only within it; a *custom* tool takes free text instead of
arguments. For the engine both are functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ostinatod.api.dialects.tools import function_tool
from ostinatod.errors import RequestError

_FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_SHELL = {
    "type": "object",
    "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
    "required": ["command"],
}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the client knows it."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


@dataclass(slots=True)
class ToolNames:
    """The engine's names of tools, and the client's."""

    tools: dict[str, Tool] = field(default_factory=dict)

    def outer(self, name: str) -> Tool:
        """The client's tool that the engine calls `name`."""
        return self.tools.get(name, Tool("function", name))

    def inner(self, name: str, namespace: Any) -> str:
        """The engine's name of a tool."""
        return _inner(name, namespace if isinstance(namespace, str) and namespace else None)

    def choice(self, choice: Any) -> Any:
        """`choice` with the engine's name in it."""
        if isinstance(choice, Mapping) and isinstance(choice.get("name"), str):
            return {**choice, "name": self.inner(choice["name"], choice.get("namespace"))}
        return choice


def response_tools(tools: Any) -> tuple[list[dict[str, Any]], ToolNames]:
    """The functions for the engine. Tools that a provider runs do not exist here and are left out.

    Raises RequestError for a list that cannot be understood.
    """
    if tools is None:
        return [], ToolNames()
    if not isinstance(tools, list):
        raise RequestError(f"tools: expected a list, found {type(tools).__name__}")
    names, functions = ToolNames(), []
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise RequestError(f"tools[{number}]: expected an object, found {type(tool).__name__}")
        for outer, function in _functions(tool, None, number):
            inner = _inner(outer.name, outer.namespace)
            if inner not in names.tools:
                names.tools[inner] = outer
                functions.append(function)
    return functions, names


def _functions(tool: Mapping[str, Any], namespace: str | None, number: int) -> Iterator[tuple[Tool, dict[str, Any]]]:
    kind = tool.get("type")
    if kind == "local_shell":
        yield Tool("function", kind), function_tool(kind, "Run a command.", _SHELL)
    if kind not in ("function", "custom", "namespace"):
        return
    nested = tool.get("function")
    told: Mapping[str, Any] = nested if isinstance(nested, dict) else tool
    name = told.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"tools[{number}]: expected a {kind} with a name")
    if kind == "namespace":
        children = tool.get("tools")
        for child in children if isinstance(children, list) else ():
            if isinstance(child, dict):
                yield from _functions(child, name, number)
        return
    parameters = _FREE_TEXT if kind == "custom" else told.get("parameters")
    outer = Tool("custom" if kind == "custom" else "function", name, namespace)
    yield outer, function_tool(_inner(name, namespace), told.get("description"), parameters)


def _inner(name: str, namespace: str | None) -> str:
    if namespace is None or name.startswith(namespace):
        return name
    return f"{namespace}{name}" if namespace.endswith("_") else f"{namespace}__{name}"
