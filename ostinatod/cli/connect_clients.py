"""What each agent and editor must be told to work with the daemon. Pure functions: nothing is read or written here.

Variables and arguments are preferred, because they end with the process and touch no file of the user. Clients that
only read files get one of their own where they take its path, and a part of theirs where they do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

PROVIDER = "ostinato"
MAX_OUTPUT_TOKENS = 32_000
"""What coding agents ask for; the daemon clamps it to the room that is left."""
STREAM_IDLE_MS = 600_000
"""Clients give up on silent streams; a cold prompt of a large model takes minutes, though keep-alives come."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to connect to, and where a client's files may lie."""

    base_url: str
    model: str
    context_tokens: int
    home: Path
    own_files: Path
    """Directory for files that only our launches read."""
    api_key: str | None = None

    @property
    def sent_key(self) -> str:
        """Every client wants to send some key; without one in use any text is accepted."""
        return self.api_key or PROVIDER

    @property
    def output_tokens(self) -> int:
        """Longest answer to ask for, leaving at least half of the context to the conversation."""
        return min(MAX_OUTPUT_TOKENS, self.context_tokens // 2)


@dataclass(frozen=True, slots=True)
class FileChange:
    """Values to be in a JSON file. `own` files are only ours; in others every other value stays as it is."""

    path: Path
    values: Mapping[str, Any]
    own: bool = False


@dataclass(frozen=True, slots=True)
class Connection:
    """How to start a client so that it uses the daemon."""

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    files: tuple[FileChange, ...] = ()
    by_hand: str = ""
    """What the user has to enter, for clients that cannot be told otherwise."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client that can be connected. `program` is None for those that are not started from a shell."""

    name: str
    title: str
    program: str | None
    package: str
    """How to get it."""
    dialect: Literal["openai", "responses", "anthropic", "ollama"]
    connect: Callable[[Target], Connection]


def clients() -> Mapping[str, Client]:
    """Every known client by name."""
    known = (
        Client("claude", "Claude Code", "claude", "npm install -g @anthropic-ai/claude-code", "anthropic", _claude),
        Client("codex", "Codex", "codex", "npm install -g @openai/codex", "responses", _codex),
        Client("opencode", "opencode", "opencode", "npm install -g opencode-ai", "openai", _opencode),
        Client("pi", "pi", "pi", "npm install -g @mariozechner/pi-coding-agent", "openai", _pi),
        Client("cline", "Cline", "cline", "npm install -g cline", "openai", _cline),
        Client("continue", "Continue", "cn", "npm install -g @continuedev/cli", "openai", _continue),
        Client("aider", "aider", "aider", "pip install aider-chat", "openai", _aider),
        Client("llm", "llm", "llm", "pip install llm llm-ollama", "ollama", _llm),
        Client("zed", "Zed", None, "https://zed.dev", "ollama", _zed),
        Client("roo", "Roo Code", None, "the VS Code marketplace", "ollama", _by_address),
        Client("copilot", "Copilot Chat", None, "the VS Code marketplace", "ollama", _by_address),
    )
    return {client.name: client for client in known}


def _claude(target: Target) -> Connection:
    models = ("OPUS", "SONNET", "HAIKU")
    return Connection(
        environment={
            "ANTHROPIC_BASE_URL": target.base_url,
            "ANTHROPIC_AUTH_TOKEN": target.sent_key,
            # A key in the user's environment would win over the token.
            "ANTHROPIC_API_KEY": "",
            "ANTHROPIC_MODEL": target.model,
            **{f"ANTHROPIC_DEFAULT_{name}_MODEL": target.model for name in models},
            "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
            # The header changes with each request and would cost the whole prompt state.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
            "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(STREAM_IDLE_MS),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(target.context_tokens),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.output_tokens),
        }
    )


def _codex(target: Target) -> Connection:
    provider = f"model_providers.{PROVIDER}"
    values: dict[str, Any] = {
        "model_provider": PROVIDER,
        f"{provider}.name": "Ostinato",
        f"{provider}.base_url": f"{target.base_url}/v1",
        f"{provider}.wire_api": "responses",
        f"{provider}.stream_idle_timeout_ms": STREAM_IDLE_MS,
        "model_context_window": target.context_tokens,
    }
    environment = {}
    if target.api_key:
        # Named here and handed over in the environment: arguments can be read by every user of the machine.
        values[f"{provider}.env_key"] = "OSTINATO_API_KEY"
        environment["OSTINATO_API_KEY"] = target.api_key
    # JSON's texts and numbers are TOML's too.
    settings = tuple(part for name, value in values.items() for part in ("-c", f"{name}={json.dumps(value)}"))
    return Connection(environment=environment, arguments=("-m", target.model, *settings))


def _opencode(target: Target) -> Connection:
    limit = {"context": target.context_tokens, "output": target.output_tokens}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Ostinato",
        "options": {"baseURL": f"{target.base_url}/v1", "apiKey": target.sent_key},
        "models": {target.model: {"name": target.model, "limit": limit, "tool_call": True}},
    }
    chosen = f"{PROVIDER}/{target.model}"
    content = {"provider": {PROVIDER: provider}, "model": chosen, "small_model": chosen}
    return Connection(environment={"OPENCODE_CONFIG_CONTENT": json.dumps(content)})


def _pi(target: Target) -> Connection:
    model = {
        "id": target.model,
        "name": target.model,
        "input": ["text"],
        "contextWindow": target.context_tokens,
        "maxTokens": target.output_tokens,
    }
    provider = {
        "baseUrl": f"{target.base_url}/v1",
        "api": "openai-completions",
        "apiKey": target.sent_key,
        "models": [model],
    }
    return Connection(
        arguments=("--provider", PROVIDER, "--model", target.model),
        files=(FileChange(target.home / ".pi" / "agent" / "models.json", {"providers": {PROVIDER: provider}}),),
    )


def _cline(target: Target) -> Connection:
    provider = "openai-compatible"
    settings = {
        "provider": provider,
        "apiKey": target.sent_key,
        "model": target.model,
        "baseUrl": f"{target.base_url}/v1",
    }
    # Cline drops an entry without a time, and writes its own when it has read it.
    entry = {"settings": settings, "updatedAt": "1970-01-01T00:00:00.000Z", "tokenSource": "manual"}
    values = {"version": 1, "providers": {provider: entry}}
    return Connection(
        arguments=("-P", provider, "-m", target.model),
        files=(FileChange(target.home / ".cline" / "data" / "settings" / "providers.json", values),),
    )


def _continue(target: Target) -> Connection:
    model = {
        "name": target.model,
        "provider": "openai",
        "model": target.model,
        "apiBase": f"{target.base_url}/v1",
        "apiKey": target.sent_key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"contextLength": target.context_tokens, "maxTokens": target.output_tokens},
    }
    # JSON is YAML.
    file = target.own_files / "continue.yaml"
    values = {"name": "Ostinato", "version": "1.0.0", "schema": "v1", "models": [model]}
    return Connection(arguments=("--config", str(file)), files=(FileChange(file, values, own=True),))


def _aider(target: Target) -> Connection:
    # By itself it learns the window in Ollama's dialect only, where its library repeats what is refused for a minute.
    model = f"openai/{target.model}"
    limits = {
        "litellm_provider": "openai",
        "mode": "chat",
        "max_input_tokens": target.context_tokens,
        "max_output_tokens": target.output_tokens,
    }
    file = target.own_files / "aider.json"
    return Connection(
        environment={"OPENAI_API_BASE": f"{target.base_url}/v1", "OPENAI_API_KEY": target.sent_key},
        arguments=("--model", model, "--model-metadata-file", str(file)),
        files=(FileChange(file, {model: limits}, own=True),),
    )


def _llm(target: Target) -> Connection:
    # The plugin puts its name before every model's.
    return Connection(environment={"OLLAMA_HOST": target.base_url}, arguments=("-m", f"ollama/{target.model}"))


def _zed(target: Target) -> Connection:
    settings = {"language_models": {"ollama": {"api_url": target.base_url}}}
    return Connection(by_hand=f"Add to Zed's settings:\n{json.dumps(settings, indent=2)}")


def _by_address(target: Target) -> Connection:
    where, model = target.base_url, target.model
    return Connection(by_hand=f"In its settings choose the provider Ollama, the address {where} and the model {model}.")
