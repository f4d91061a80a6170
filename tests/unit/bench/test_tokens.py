from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from ostinatod.bench.sessions import Turn
from ostinatod.bench.tokens import hashed_tokens, shaped_session, tokenized_session
from ostinatod.bench.traces import TextTurn

SESSION = {"id": "s", "task_domain": "swe"}


def characters(text: str) -> list[int]:
    return [ord(character) for character in text]


def turns(*texts: tuple[str, str]) -> Iterator[TextTurn]:
    return (TextTurn("after_tool", prompt, answer) for prompt, answer in texts)


def test_a_prompt_that_continues_reads_what_is_new_and_the_last_token_emitted() -> None:
    found = tokenized_session(SESSION, "held-out", turns(("ab", "cd"), ("abcdef", "g")), characters, None, None)
    # "abc" is in the context: "d" was emitted and not read.
    assert found.turns == (
        Turn("after_tool", 0, (97, 98), (99, 100)),
        Turn("after_tool", 3, (100, 101, 102), (103,)),
    )


def test_a_rewritten_past_is_read_again_from_where_it_differs() -> None:
    found = tokenized_session(SESSION, "held-out", turns(("abcd", "e"), ("abXY", "z")), characters, None, None)
    assert found.turns[1] == Turn("after_tool", 2, (88, 89), (122,))


def test_at_least_one_token_is_read() -> None:
    found = tokenized_session(SESSION, "held-out", turns(("ab", "cd"), ("a", "z")), characters, None, None)
    assert found.turns[1] == Turn("after_tool", 0, (97,), (122,))


def test_turns_and_tokens_can_be_limited_and_silent_turns_are_left_out() -> None:
    texts = [("a", "b"), ("abc", ""), ("abc", "d"), ("abcde", "f")]
    assert len(tokenized_session(SESSION, "held-out", turns(*texts), characters, None, None).turns) == 3
    assert len(tokenized_session(SESSION, "held-out", turns(*texts), characters, None, 2).turns) == 2
    assert len(tokenized_session(SESSION, "held-out", turns(*texts), characters, 3, None).turns) == 2


@given(st.text(max_size=60), st.integers(1, 50_000))
def test_hashed_tokens_cover_all_text_within_the_vocabulary(text: str, n_vocab: int) -> None:
    tokens = hashed_tokens(text, n_vocab)
    assert all(0 <= token < n_vocab for token in tokens)
    assert bool(tokens) == bool(text)
    assert tokens == hashed_tokens(text, n_vocab)


def test_equal_words_are_equal_tokens_and_pieces_are_as_long_as_a_tokenizers() -> None:
    words = "the file was not found, so the test was skipped in the end; 12345 lines were read again by the reader"
    tokens = hashed_tokens(words, 1 << 31)
    assert tokens.count(hashed_tokens(" the", 1 << 31)[0]) == 3
    assert 3 < len(words) / len(tokens) < 5


def test_logged_lengths_are_filled_and_never_reuse_what_is_not_there() -> None:
    shape = [("first", 4, 3, 2), ("after_tool", 100, 5, 1)]
    session = shaped_session("s", "held-out", shape, itertools.count())  # type: ignore[arg-type]
    assert session.prefix == (0, 1, 2, 3)
    assert session.turns[0] == Turn("first", 4, (4, 5, 6), (7, 8))
    # 4 + 3 + 2 - 1 tokens are in the context, whatever the log says of another server's.
    assert session.turns[1].reused == 8
