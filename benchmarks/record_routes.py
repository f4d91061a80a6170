"""Records which experts a model's routers select while recorded agent sessions are replayed in this process.

Every session is rendered with the model's own chat template and read as a server with one slot and prompt reuse reads
it: before each assistant turn only the new tokens are a prefill (passes of up to 512 tokens), and what a session shares
with the one played before it, such as tools and system prompt, is not read again. The recorded answer is decoded, so
that the model sees the recorded conversation whatever it would have said. The first decode steps of a session are
recorded one by one as well (which experts, in which layer, in which turn), for what needs steps rather than sums.

A conversation that is longer than the model's context is read through a window: when the context is full, the older
half of it is forgotten, all but its first tokens, and the rest moves up, as llama.cpp's own context shift does. Every
token is read, and counted, once.

One session per task is taken, and the tasks are divided into a development and a held-out part before anything is
recorded, so that no task stands on both sides. Only counts are kept: no text and no token.

    python benchmarks/record_routes.py --traces TRACES --out routes.npz

TRACES is a folder with `*.jsonl.gz`, one session per line: `id`, `task_domain`, `tools`, `messages` (OpenAI chat
messages) and `meta`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.bindings import load_bindings
from ostinatod.installer.engine_build import find_engine
from ostinatod.models import bundled_file
from ostinatod.profiles.gguf_model import read_model

PASS_TOKENS = 512
SEED = 7
DOMAINS = ("swe", "airline", "retail", "telecom")
ANCHOR_TOKENS = 4
"""Never forgotten: attention that has nowhere else to go rests on the first tokens."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What one session did: counts (L, E) by phase, tokens by phase, and its first decode steps (N, L, k), each with
    the number of its turn (N,)."""

    prefill: NDArray[np.uint64]
    decode: NDArray[np.uint64]
    prefill_tokens: int
    decode_tokens: int
    turns: int
    steps: NDArray[np.uint16]
    step_turns: NDArray[np.uint16]


class Player:
    """A model in this process that is shown sessions."""

    def __init__(self, model_file: Path, context_tokens: int, threads: int, libraries: Path | None = None) -> None:
        self._bindings = load_bindings(libraries or find_engine().library_directory)
        self._core: Any = self._bindings.llama_cpp.llama_cpp
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        header = read_model([model_file])
        template = header.parts[0].text("tokenizer.chat_template")
        self._format = Jinja2ChatFormatter(template, eos_token="", bos_token="")
        self._k = header.expert_used_count
        self._core.llama_backend_init()
        self._bindings.count_routes(True)
        self._model = self._core.llama_model_load_from_file(
            str(model_file).encode(), self._core.llama_model_default_params()
        )
        params = self._core.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context_tokens, PASS_TOKENS, PASS_TOKENS
        params.n_threads, params.n_threads_batch = threads, threads
        self._context = self._core.llama_init_from_model(self._model, params)
        self._vocab = self._core.llama_model_get_vocab(self._model)
        self._batch = self._core.llama_batch_init(PASS_TOKENS, 0, 1)
        self._context_tokens = context_tokens
        self._read: list[int] = []
        self._forgotten = 0
        self._forgotten_at = 0
        self.layers = self._bindings.route_counts(self._model).layers

    @property
    def n_experts(self) -> int:
        """Experts per layer."""
        return int(self._bindings.route_counts(self._model).prefill.shape[1])

    @property
    def k(self) -> int:
        """Experts that a token selects per layer."""
        return self._k

    def play(self, session: dict[str, Any], max_tokens: int, max_steps: int) -> Recording:
        """Show a session: its first turn, then turns of up to `max_tokens` together.

        The first `max_steps` decode steps go one by one.
        """
        before = self._bindings.route_counts(self._model)
        steps: list[NDArray[np.uint16]] = []
        step_turns: list[int] = []
        prefill_tokens = decode_tokens = turns = later_tokens = 0
        for new, answer in self.turns(session):
            turn_tokens = len(new) + len(answer)
            if turns:
                later_tokens += turn_tokens
            if later_tokens > max_tokens:
                break
            if not turns:
                new = new[self._forget_beyond_common(new) :]
            for start in range(0, len(new), PASS_TOKENS):
                self._pass(new[start : start + PASS_TOKENS], all_logits=False)
            prefill_tokens += len(new)
            single = max(0, min(len(answer), max_steps - len(steps)))
            for token in answer[:single]:
                counts = self._bindings.route_counts(self._model).decode
                self._pass([token], all_logits=True)
                steps.append(self._selected(self._bindings.route_counts(self._model).decode - counts))
                step_turns.append(turns)
            for start in range(single, len(answer), PASS_TOKENS):
                # Passes that want every token's logits count as decode; routing does not depend on the size of a pass.
                self._pass(answer[start : start + PASS_TOKENS], all_logits=True)
            decode_tokens += len(answer)
            turns += 1
        after = self._bindings.route_counts(self._model)
        empty = np.zeros((0, len(self.layers), self._k), np.uint16)
        return Recording(
            prefill=after.prefill - before.prefill,
            decode=after.decode - before.decode,
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_tokens,
            turns=turns,
            steps=np.stack(steps) if steps else empty,
            step_turns=np.array(step_turns, np.uint16),
        )

    def _forget_beyond_common(self, tokens: list[int]) -> int:
        """Keep what the slot has read already of `tokens`, all but the last; how many tokens that is.

        Where something was forgotten after the common part was read, the slot is not as it was then and begins anew.
        """
        common = 0
        while common < min(len(tokens) - 1, len(self._read)) and tokens[common] == self._read[common]:
            common += 1
        if common < self._forgotten_at:
            common = self._forgotten = self._forgotten_at = 0
        self._core.llama_memory_seq_rm(self._core.llama_get_memory(self._context), 0, common - self._forgotten, -1)
        del self._read[common:]
        return common

    def _make_room(self, count: int) -> None:
        """Forget the older half of a context that `count` more tokens do not fit into."""
        held = len(self._read) - self._forgotten
        if held + count <= self._context_tokens:
            return
        discarded = (held - ANCHOR_TOKENS) // 2
        memory = self._core.llama_get_memory(self._context)
        self._core.llama_memory_seq_rm(memory, 0, ANCHOR_TOKENS, ANCHOR_TOKENS + discarded)
        self._core.llama_memory_seq_add(memory, 0, ANCHOR_TOKENS + discarded, held, -discarded)
        self._forgotten += discarded
        self._forgotten_at = len(self._read)

    def _selected(self, counts: NDArray[np.uint64]) -> NDArray[np.uint16]:
        """The experts (L, k) of one decode step, from its counts (L, E)."""
        return np.nonzero(counts)[1].reshape(len(self.layers), self._k).astype(np.uint16)

    def turns(self, session: dict[str, Any]) -> Iterator[tuple[list[int], list[int]]]:
        """The tokens that each assistant turn has to read, and those of its recorded answer."""
        messages, known = session["messages"], ""
        for i, message in enumerate(messages):
            if message["role"] != "assistant" or not any(m["role"] == "user" for m in messages[:i]):
                continue
            prompt = self._render(session, messages[:i], generate=True)
            whole = self._render(session, messages[: i + 1], generate=False)
            if not prompt.startswith(known) or not whole.startswith(prompt):
                return
            yield self._tokens(prompt[len(known) :]), self._tokens(whole[len(prompt) :])
            known = whole

    def _render(self, session: dict[str, Any], messages: list[dict[str, Any]], *, generate: bool) -> str:
        self._format.add_generation_prompt = generate
        shown: Any = [{**message, "content": message.get("content") or ""} for message in messages]
        return str(self._format(messages=shown, tools=session["tools"]).prompt)

    def _tokens(self, text: str) -> list[int]:
        raw = text.encode()
        room = len(raw) + 8
        tokens = (self._core.llama_token * room)()
        count = self._core.llama_tokenize(self._vocab, raw, len(raw), tokens, room, False, True)
        if count < 0:
            raise RuntimeError(f"the tokenizer needs room for {-count} tokens, {room} were given")
        return list(tokens[:count])

    def _pass(self, tokens: list[int], *, all_logits: bool) -> None:
        self._make_room(len(tokens))
        batch, position = self._batch, len(self._read) - self._forgotten
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i == len(tokens) - 1
        status = self._core.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode ended with status {status}")
        self._read += tokens


def sessions_of(traces: Path) -> Iterator[dict[str, Any]]:
    """Every recorded session below a folder."""
    for path in sorted(traces.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def choose(
    sessions: Iterator[dict[str, Any]], development: int, held_out: int
) -> list[tuple[str, str, dict[str, Any]]]:
    """(domain, part, session): one session per task, `development` and `held_out` tasks of each domain.

    All sessions of a domain have the same tools and system prompt, those that most of its recordings have.
    """
    by_scaffold: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for session in sessions:
        first = session["messages"][0]
        scaffold = json.dumps([session["tools"], first["content"] if first["role"] == "system" else ""])
        by_scaffold[session["task_domain"]][scaffold].append(session)
    draw = random.Random(SEED)
    chosen = []
    for domain in DOMAINS:
        by_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for session in max(by_scaffold[domain].values(), key=len):
            meta = session["meta"]
            by_task[str(meta.get("task_id") or meta.get("instance_id") or session["id"])].append(session)
        tasks = sorted(by_task)
        draw.shuffle(tasks)
        for number, task in enumerate(tasks[: development + held_out]):
            session = draw.choice(sorted(by_task[task], key=lambda item: str(item["id"])))
            chosen.append((domain, "development" if number < development else "held-out", session))
    return chosen


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=bundled_file())
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--development", type=int, default=9, help="tasks of each domain")
    parser.add_argument("--held-out", type=int, default=4, help="tasks of each domain")
    parser.add_argument("--max-tokens", type=int, default=1024, help="of a session after its first turn")
    parser.add_argument("--max-steps", type=int, default=192, help="decode steps recorded one by one, per session")
    parser.add_argument("--context", type=int, default=8192, help="in tokens; longer conversations go through a window")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    player = Player(arguments.model, arguments.context, arguments.threads)
    rows, started = [], time.monotonic()
    chosen = choose(sessions_of(arguments.traces), arguments.development, arguments.held_out)
    # Sessions of one scaffold share their tools and system prompt; played in a row, these are read once.
    for domain, part, session in sorted(chosen, key=lambda item: (item[0], str(item[2]["id"]))):
        played = player.play(session, arguments.max_tokens, arguments.max_steps)
        if played.decode_tokens:
            rows.append((domain, part, session["id"], played))
        print(
            f"{time.monotonic() - started:6.0f} s  {domain:<8} {part:<12} turns {played.turns:>3}"
            f"  prefill {played.prefill_tokens:>5}  decode {played.decode_tokens:>5}",
            flush=True,
        )
    np.savez_compressed(
        arguments.out,
        domain=np.array([row[0] for row in rows]),
        part=np.array([row[1] for row in rows]),
        session=np.array([row[2] for row in rows]),
        layers=player.layers,
        k=np.array(player.k),
        prefill=np.stack([row[3].prefill for row in rows]).astype(np.uint32),
        decode=np.stack([row[3].decode for row in rows]).astype(np.uint32),
        prefill_tokens=np.array([row[3].prefill_tokens for row in rows]),
        decode_tokens=np.array([row[3].decode_tokens for row in rows]),
        turns=np.array([row[3].turns for row in rows]),
        step_count=np.array([len(row[3].steps) for row in rows]),
        steps=np.concatenate([row[3].steps for row in rows]).astype(np.uint8 if player.n_experts <= 256 else np.uint16),
        step_turns=np.concatenate([row[3].step_turns for row in rows]),
    )
    print(f"{len(rows)} sessions, {arguments.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
