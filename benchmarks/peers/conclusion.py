"""What replayed sessions say about the engines: ratios with intervals, and who is fastest in each session.

    python -m benchmarks.peers.conclusion RESULT.json --replayed TURNS.jsonl

prints the tables of a result of run.py, beside what benchmarks/replay.py timed, and writes them into RESULT.json. The
statistics are those of `ostinato bench`: over the turns that every engine came to, with 95 % intervals over sessions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.sessions import Replayed
from ostinatod.bench.report import Report, make_report, tables
from ostinatod.bench.results import TurnResult
from ostinatod.bench.statistics import median_turns

NOTHING = "no session was replayed"


def results_of_replay(file: Path) -> Iterator[TurnResult]:
    """What benchmarks/replay.py timed, from its turns.jsonl."""
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "total_ms" in row:
            yield TurnResult(**row)


def buffers_of_replay(file: Path) -> dict[str, int]:
    """GPU memory (bytes) by setting as the engine counts its own buffers, from a turns.jsonl of benchmarks/replay.py.

    What a CUDA context and its libraries need besides is not in it, as it is in what NVML says of an engine.
    """
    told = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return {
        row["setting"]: sum(row["loaded"].get(part, 0) for part in ("gpu_bytes", "pool_bytes", "staging_bytes"))
        for row in told
        if "loaded" in row
    }


def shared_turns(turns: Sequence[TurnResult]) -> list[TurnResult]:
    """Repeats as one, and of each engine only the turns that every engine has."""
    every = median_turns(turns)
    engines = len({turn.setting for turn in every})
    found = Counter((turn.session, turn.turn) for turn in every)
    return [turn for turn in every if found[turn.session, turn.turn] == engines]


def concluded(replays: Sequence[Replayed], replayed: Path | None) -> Report | None:
    """The report on all engines, compared with the first setting of `replayed`, or else the first engine.

    None where no turn was replayed by all of them.
    """
    turns = [] if replayed is None else list(results_of_replay(replayed))
    turns += [result for item in replays for result in item.results()]
    shared = shared_turns(turns)
    if not shared:
        return None
    facts = {
        "gpu_bytes": {item.engine: item.gpu_bytes for item in replays},
        "gpu_buffer_bytes": {} if replayed is None else buffers_of_replay(replayed),
    }
    return make_report(shared, None, ["turns that every engine came to"], facts)


def totals_table(report: Report) -> str:
    """Seconds of each session by engine as a Markdown table, and which is the least."""
    names = [item.setting for item in report.settings]
    rows = [["session", *names, "fastest"]]
    sessions = [item.sessions for item in report.settings]
    rows += [[session, *_seconds(names, [times[session] for times in sessions])] for session in sessions[0]]
    rows.append(["all", *_seconds(names, [item.total_ms for item in report.settings])])
    return markdown(rows)


def words_of(report: Report | None) -> str:
    """All tables as Markdown."""
    if report is None:
        return NOTHING
    shown = [f"{item.title}\n\n{markdown([item.header, *item.rows])}" for item in tables(report)]
    return "\n\n".join([totals_table(report), *shown])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head."""
    head, *others = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *others))


def _seconds(names: Sequence[str], milliseconds: Sequence[float]) -> list[str]:
    least = min(range(len(names)), key=milliseconds.__getitem__)
    return [*(f"{value / 1000:.2f}" for value in milliseconds), names[least]]


def _replays(result: Mapping[str, Any]) -> list[Replayed]:
    return [
        Replayed(engine, item["options"], item["sessions"], item["error"], item["gpu_bytes"])
        for engine, item in result["replays"].items()
    ]


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("result", type=Path, help="what run.py wrote")
    parser.add_argument("--replayed", type=Path, help="turns.jsonl of replay.py")
    arguments = parser.parse_args()
    result = json.loads(arguments.result.read_text(encoding="utf-8"))
    report = concluded(_replays(result), arguments.replayed)
    if report is not None:
        result["comparison"] = report.as_json()
        arguments.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(words_of(report))
    return 0 if report is not None else 1


if __name__ == "__main__":
    sys.exit(main())
