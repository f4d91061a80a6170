"""What each client is told, word for word: the other side of these words is not ours to change."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ostinatod.cli.connect_clients import Connection, Target, clients

if sys.version_info >= (3, 11):
    import tomllib as toml
else:
    import tomli as toml

TARGET = Target(
    base_url="http://127.0.0.1:11435",
    model="org/repo:Q4_K_M",
    context_tokens=65536,
    home=Path("/home/u"),
    own_files=Path("/data/clients"),
)
KEYED = dataclasses.replace(TARGET, api_key="ost_secret")


def connected(name: str, target: Target = TARGET) -> Connection:
    return clients()[name].connect(target)


def test_claude_code() -> None:
    assert connected("claude") == Connection(
        environment={
            "ANTHROPIC_BASE_URL": "http://127.0.0.1:11435",
            "ANTHROPIC_AUTH_TOKEN": "ostinato",
            "ANTHROPIC_API_KEY": "",
            "ANTHROPIC_MODEL": "org/repo:Q4_K_M",
            "ANTHROPIC_DEFAULT_OPUS_MODEL": "org/repo:Q4_K_M",
            "ANTHROPIC_DEFAULT_SONNET_MODEL": "org/repo:Q4_K_M",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "org/repo:Q4_K_M",
            "CLAUDE_CODE_SUBAGENT_MODEL": "org/repo:Q4_K_M",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
            "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "600000",
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "65536",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "32000",
        }
    )
    assert connected("claude", KEYED).environment["ANTHROPIC_AUTH_TOKEN"] == "ost_secret"


def test_codex_is_told_in_toml_and_never_shows_a_key_in_its_arguments() -> None:
    plain, keyed = connected("codex"), connected("codex", KEYED)
    assert plain.arguments[:2] == ("-m", "org/repo:Q4_K_M")
    assert set(plain.arguments[2::2]) == {"-c"}
    assert toml.loads("\n".join(plain.arguments[3::2])) == {
        "model_provider": "ostinato",
        "model_context_window": 65536,
        "model_providers": {
            "ostinato": {
                "name": "Ostinato",
                "base_url": "http://127.0.0.1:11435/v1",
                "wire_api": "responses",
                "stream_idle_timeout_ms": 600000,
            }
        },
    }
    assert "ost_secret" not in " ".join(keyed.arguments)
    assert keyed.environment == {"OSTINATO_API_KEY": "ost_secret"}
    assert toml.loads("\n".join(keyed.arguments[3::2]))["model_providers"]["ostinato"]["env_key"] == "OSTINATO_API_KEY"


def test_opencode() -> None:
    environment = connected("opencode", KEYED).environment
    assert list(environment) == ["OPENCODE_CONFIG_CONTENT"]
    assert json.loads(environment["OPENCODE_CONFIG_CONTENT"]) == {
        "provider": {
            "ostinato": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Ostinato",
                "options": {"baseURL": "http://127.0.0.1:11435/v1", "apiKey": "ost_secret"},
                "models": {
                    "org/repo:Q4_K_M": {
                        "name": "org/repo:Q4_K_M",
                        "limit": {"context": 65536, "output": 32000},
                        "tool_call": True,
                    }
                },
            }
        },
        "model": "ostinato/org/repo:Q4_K_M",
        "small_model": "ostinato/org/repo:Q4_K_M",
    }


def test_pi() -> None:
    connection = connected("pi")
    assert connection.arguments == ("--provider", "ostinato", "--model", "org/repo:Q4_K_M")
    (change,) = connection.files
    assert (change.path, change.own) == (Path("/home/u/.pi/agent/models.json"), False)
    assert change.values == {
        "providers": {
            "ostinato": {
                "baseUrl": "http://127.0.0.1:11435/v1",
                "api": "openai-completions",
                "apiKey": "ostinato",
                "models": [
                    {
                        "id": "org/repo:Q4_K_M",
                        "name": "org/repo:Q4_K_M",
                        "input": ["text"],
                        "contextWindow": 65536,
                        "maxTokens": 32000,
                    }
                ],
            }
        }
    }


def test_cline() -> None:
    connection = connected("cline")
    assert connection.arguments == ("-P", "openai-compatible", "-m", "org/repo:Q4_K_M")
    (change,) = connection.files
    assert change.path == Path("/home/u/.cline/data/settings/providers.json")
    settings = {
        "provider": "openai-compatible",
        "apiKey": "ostinato",
        "model": "org/repo:Q4_K_M",
        "baseUrl": "http://127.0.0.1:11435/v1",
    }
    entry = {"settings": settings, "updatedAt": "1970-01-01T00:00:00.000Z", "tokenSource": "manual"}
    assert change.values == {"version": 1, "providers": {"openai-compatible": entry}}


def test_continue_reads_a_file_of_ours() -> None:
    connection = connected("continue")
    (change,) = connection.files
    assert change.own
    assert connection.arguments == ("--config", str(change.path))
    assert change.values["models"] == [
        {
            "name": "org/repo:Q4_K_M",
            "provider": "openai",
            "model": "org/repo:Q4_K_M",
            "apiBase": "http://127.0.0.1:11435/v1",
            "apiKey": "ostinato",
            "roles": ["chat", "edit", "apply"],
            "capabilities": ["tool_use"],
            "defaultCompletionOptions": {"contextLength": 65536, "maxTokens": 32000},
        }
    ]


def test_aider_gets_a_file_of_its_own_with_the_window() -> None:
    connection = connected("aider", KEYED)
    assert connection.environment == {
        "OPENAI_API_BASE": "http://127.0.0.1:11435/v1",
        "OPENAI_API_KEY": "ost_secret",
    }
    (change,) = connection.files
    assert change.own
    assert change.path.parent == KEYED.own_files
    assert change.values["openai/org/repo:Q4_K_M"]["max_input_tokens"] == KEYED.context_tokens
    assert connection.arguments == (
        *("--model", "openai/org/repo:Q4_K_M"),
        *("--model-metadata-file", str(change.path)),
    )


def test_llm_speaks_ollama() -> None:
    assert connected("llm") == Connection(
        environment={"OLLAMA_HOST": "http://127.0.0.1:11435"}, arguments=("-m", "ollama/org/repo:Q4_K_M")
    )


@pytest.mark.parametrize("name", ["zed", "roo", "copilot"])
def test_editors_are_told_by_hand(name: str) -> None:
    assert "http://127.0.0.1:11435" in connected(name).by_hand
    assert clients()[name].program is None


@pytest.mark.parametrize(("context_tokens", "output_tokens"), [(4096, 2048), (65536, 32000), (262144, 32000)])
def test_an_answer_never_takes_more_than_half_of_the_context(context_tokens: int, output_tokens: int) -> None:
    target = dataclasses.replace(TARGET, context_tokens=context_tokens)
    assert target.output_tokens == output_tokens
    told: Any = json.loads(connected("opencode", target).environment["OPENCODE_CONFIG_CONTENT"])
    assert told["provider"]["ostinato"]["models"][TARGET.model]["limit"]["output"] == output_tokens
