from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.errors import ModelNameError
from ostinatod.store.names import name_from_stem, parse_name, suggest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tiny", "tiny"),
        ("tiny:latest", "tiny"),
        ("mine:fast", "mine:fast"),
        ("org/repo", "org/repo"),
        ("org/repo:latest", "org/repo"),
        ("Org/Repo-GGUF:Q4_K_M", "Org/Repo-GGUF:Q4_K_M"),
        ("hf.co/org/repo:UD-Q4_K_XL", "org/repo:UD-Q4_K_XL"),
        ("HF.co/org/repo", "org/repo"),
        ("huggingface.co/org/repo", "org/repo"),
        ("https://huggingface.co/org/repo/", "org/repo"),
        (" tiny ", "tiny"),
    ],
)
def test_name_is_normalised(text: str, expected: str) -> None:
    assert str(parse_name(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "-x",
        "org/-x",
        "org/..",
        "./model.gguf",
        "a/b/c",
        "registry.example.com/a/b",
        "https://evil.example/org/repo",
        "org/repo:",
        "org/repo:../x",
        "org/repo:a:b",
        "a b",
        "a\nb",
        "a\x00",
        "x" * 97,
        "n" * 81 + "/m",
        "\u0440\u0443",
    ],
)
def test_name_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(ModelNameError):
        parse_name(text)


def test_names_are_compared_without_case() -> None:
    assert parse_name("Org/Repo:q4_k_m").key == parse_name("org/repo:Q4_K_M").key


@given(st.text(max_size=60))
def test_every_admitted_name_is_safe_as_a_file_name(text: str) -> None:
    try:
        name = parse_name(text)
    except ModelNameError:
        return
    for part in filter(None, (name.namespace, name.model, name.tag)):
        assert part not in {".", ".."}
        assert not part.startswith(("-", "."))
        assert part.isascii()
        assert not set(part) & set("/\\:\0 \n")
    assert parse_name(str(name)) == name


@given(st.text(max_size=150))
def test_any_file_stem_yields_a_valid_name(stem: str) -> None:
    assert parse_name(name_from_stem(stem)).model


def test_suggestions_look_at_the_last_part_too() -> None:
    known = ["unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M", "tiny", "other/llama"]
    assert suggest("Qwen3-30B-A3B-GGUF:Q4_K", known) == ["unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M"]
    assert suggest("tny", known) == ["tiny"]
    assert suggest("zzzz", known) == []
