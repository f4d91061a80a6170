"""Help: what the panel with the focus shows, its keys, and the keys that work everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostinatod.tui.view.keys import Keys
from ostinatod.tui.view.lines import EMPTY, Line, line, mark


@dataclass(frozen=True, slots=True)
class PanelHelp:
    """About one panel: a paragraph, its own keys with what they do, and the same in a word each for the lowest line."""

    about: str
    keys: tuple[tuple[str, str], ...] = ()
    bar: Keys = ()


_ROWS = (("enter", "Open the row"), ("arrows", "Move; also page up, page down, home, end"))
_MOVES = (("tab", "The next panel; shift+tab the one before"), ("^p", "Search all commands and themes"))

MODELS = PanelHelp(
    "Models in memory first, then those on disk. Experts are per layer, times those selected per token; RAM is "
    "what the engine's process keeps resident. Panels about one model show the one in bold; m or enter changes "
    "it.",
    (
        ("l", "Load the model under the cursor"),
        ("u", "Unload it (asks first)"),
        ("p", "Pull another"),
        ("x", "Stop or dismiss this pull; else cancel the request in flight"),
        ("enter", "Show this model in the other panels"),
    ),
    (("l", "load"), ("u", "unload"), ("p", "pull"), ("enter", "show")),
)
MEMORY = PanelHelp(
    "What each GPU's memory is used for, as the engine accounts for it: dense weights (with the experts that "
    "llama.cpp places there itself), KV cache, expert pool (hot experts), borrowed (slots that decode leaves idle "
    "and that hold other experts for a while; lent in the table), staging (where the upload path copies cold "
    "experts to in long prefills), compute buffers, and the margin that the capacity test keeps. Uses of which "
    "there is nothing are left out. Other programs: used memory that the engine does not account for. RAM and CPU "
    "are this machine's, shown only while the daemon runs on it. GiB are 1024^3 bytes."
)
EXPERTS = PanelHelp(
    "Every expert of every MoE layer: layers down, experts across. By rank, each layer's most routed expert is at "
    "the left, so a good residency set shows as one filled area at the left. Hot experts (on a GPU) are filled, "
    "orange where there is colour; cold ones (host memory) are blue dots; stronger means more routes. A strong "
    "dot is a miss that learning can remove. At the right: the coverage of those layers, the share of their "
    "routes that go to hot experts. Where layers or ranks outnumber the cells, neighbours share one: its heat is "
    "their mean, and it is hot when at least half of its experts are. Counts are the engine's, since the model "
    "was loaded.",
    (
        ("arrows", "Move over layers and experts; with shift in steps of eight"),
        ("o", "Order by rank or by expert id"),
        ("c", "Count all routes, prefill or decode"),
        ("esc", "Take the cursor away"),
    ),
    (("arrows", "read a cell"), ("o", "order"), ("c", "phase")),
)
HITS = PanelHelp(
    "The share of routes that meet a hot expert (coverage). Prefill and decode are measured from the engine's "
    "counts since the model was loaded, with the set in use now; the curve is the coverage of the last requests, "
    "oldest at the left, from their smallest to their largest. Even: what as many hot experts would cover if all "
    "were routed to equally. Below, what planning found on sessions it had not seen (held out): for the "
    "generation in use, against what was measured since; for the proposed set; for the set as it is; and for one "
    "that knew those sessions (hindsight), which nothing can beat. Differences are in points.",
)
LATENCY = PanelHelp(
    "TTFT is the time to the first token, TPOT the time per output token. After tool is the TTFT of turns that "
    "carry a tool's output: what an agent's user waits for most. Curves run from the oldest request to the "
    "newest, from zero to their largest value; p50 and p95 are of the same requests. Only requests that ended "
    "well count. Last answer: how long it waited for others, read its prompt (to the first token) and wrote, with "
    "the largest of these explained: a prefix that broke, new tokens, output tokens, and the share of its routes "
    "that met cold experts."
)
SESSIONS = PanelHelp(
    "A session is one conversation of an agent: turns that share their beginning. New are prompt tokens that were "
    "read, reused those whose state was still there. TTFT, TPOT and the wait after a tool's output are medians. "
    "By: how the session was recognised, from a header, from a field of the body, or by its prefix.",
    (("enter", "Show only this session's requests; again: all of them"),),
    (("enter", "only its requests"),),
)
REQUESTS = PanelHelp(
    "Requests in flight, then the newest first. Kind is the turn's place: first, after a tool's output, after a "
    "user's message, or a side request such as a title. New tokens were read, reused ones were not. Where a "
    "prefix broke, the reason and what it cost are at the right. Hits is the coverage in decode.",
    (("enter", "Everything about a request"), ("x", "Cancel the one under the cursor, if in flight (asks first)")),
    (("enter", "detail"), ("x", "cancel")),
)
REQUEST = PanelHelp("Everything known about the request under the cursor of the list of requests.")
PROPOSAL = PanelHelp(
    "What has been learned from the sessions on this machine. The newest sessions are held out: a set is planned "
    "from the others and judged on them. Where experts are routed to almost evenly no set can help, and this says "
    "so.",
    (("r", "Plan again"), ("a", "Apply the proposal (asks first)"), ("z", "Undo the last generation (asks first)")),
)
HISTORY = PanelHelp(
    "Every residency set that was in use, newest first. Held out is the coverage that planning found on sessions "
    "it had not seen, measured what came of it, and effect the difference in points. A generation that makes "
    "things worse is rolled back by itself.",
    _ROWS,
    (("enter", "note"),),
)
LOGS = PanelHelp(
    "The end of the daemon's log, or of the log of the engine in focus.",
    (
        ("f", "Follow the newest line, or stay"),
        ("/", "Show only lines that hold a text"),
        ("s", "The daemon's log or the engine's"),
        ("enter", "The whole line"),
    ),
    (("f", "follow"), ("/", "filter"), ("s", "source"), ("enter", "whole line")),
)


def help_lines(panel: PanelHelp | None, everywhere: Sequence[tuple[str, str]]) -> list[Line]:
    """The page: about the panel, its keys, and those that do the same everywhere; a paragraph is one line."""
    own = panel.keys if panel else ()
    rest = [(key, does) for key, does in (*everywhere, *_MOVES) if key not in dict(own)]
    width = max(len(key) for key, _ in (*own, *rest))

    def rows(keys: Sequence[tuple[str, str]]) -> list[Line]:
        return [(mark(key.ljust(width + 2), "brand"), mark(does)) for key, does in keys]

    blocks = [
        [line(mark(panel.about, "dim"))] if panel else [],
        rows(own),
        [line(mark("Everywhere", "head")), *rows(rest)],
    ]
    return [entry for block in blocks if block for entry in (EMPTY, *block)][1:]
