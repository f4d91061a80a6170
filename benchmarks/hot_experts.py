"""Decode and prefill of one model by setting, in one process each: stock llama.cpp's placements against hot experts.

    python benchmarks/hot_experts.py --libraries BIN --model MODEL.gguf --preset prefill-table --out RESULT.json
    python benchmarks/hot_experts.py --libraries BIN --model MODEL.gguf --settings SETTINGS.json --out RESULT.json

The preset measures what `prefill_table.py` lists. SETTINGS.json is a list of settings (`ostinatod.bench.settings`),
which may further have

    hot        share of all experts that is hot, for kind "ostinato", chosen by route counts of other tokens
    lengths    in place of --lengths
    repeats    in place of --repeats; 0 times each length once, without a pass before

The first one has to be stock: its process counts the routes that choose the hot experts, reads the contexts that the
others restore, and where it has no layer on the CPU, its times are the GPU's part of the floors (`floors.py`).

With --copy-blocks 4,8,16 the first setting with hot experts is measured again with so many blocks of the kernel that
uploads (`copy_blocks`). What each row's choice of uploads has learned is in the file as `upload_costs`, by device.

Every setting times single tokens and prefills of --lengths new tokens behind each context of --depths. Its logits for
fixed tokens are compared with the first setting's. Tokens are random, or with --sessions those of recorded ones
(`agent_sessions.py`): the development part chooses the hot experts, and what is timed is text of the held-out part.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prefill_table import DEPTHS, LENGTHS, Planned, add_floors, planned_rows, tables
from row_command import common_arguments, experts_of, measured_rows, numbers

from ostinatod.bench.memory import memory_for, pool_limit
from ostinatod.bench.settings import from_json
from ostinatod.profiles.experts import ModelExperts

OWN_KEYS = ("hot", "lengths", "repeats")
"""Of SETTINGS.json, beside those of `bench.settings.Setting`."""


def read_planned(file: Path, experts: ModelExperts, pin_bytes: int) -> list[Planned]:
    """The rows of SETTINGS.json. Where no memory is named, hot experts have what they and their staging buffer need."""
    rows = []
    for item in json.loads(file.read_text(encoding="utf-8")):
        setting = from_json({name: value for name, value in item.items() if name not in OWN_KEYS})
        share = item.get("hot")
        if share is not None:
            limit = pool_limit(memory_for(share * experts.places().total_bytes))
            setting = replace(setting, pool_bytes=setting.pool_bytes or limit, pin_bytes=setting.pin_bytes or pin_bytes)
        lengths = tuple(item["lengths"]) if "lengths" in item else None
        rows.append(Planned(setting, share, lengths, item.get("repeats")))
    return rows


def with_copy_blocks(planned: Sequence[Planned], counts: Sequence[int]) -> list[Planned]:
    """The rows, and behind the first one with hot experts the same with each of these numbers of `copy_blocks`."""
    rows = list(planned)
    at = next((number for number, row in enumerate(rows) if row.setting.kind == "ostinato"), None)
    if at is not None:
        first = rows[at]
        rows[at + 1 : at + 1] = [
            replace(
                first,
                setting=replace(first.setting, name=f"{first.setting.name}, {count} copy blocks", copy_blocks=count),
            )
            for count in counts
        ]
    return rows


def main(given: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = common_arguments(__doc__)
    settings = parser.add_mutually_exclusive_group(required=True)
    settings.add_argument("--settings", type=Path)
    settings.add_argument("--preset", choices=("prefill-table",))
    parser.add_argument("--share", type=float, default=0.44, help="of the experts that are hot in the preset")
    parser.add_argument("--rows", default="", help="a pattern: only those rows of the preset, and the first one")
    parser.add_argument("--copy-blocks", type=numbers, default=(), help="to try beside the engine's own: 4,8,16")
    parser.add_argument("--depths", type=numbers, default=DEPTHS)
    parser.add_argument("--lengths", type=numbers, default=LENGTHS)
    parser.add_argument("--decode-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args(given)
    experts = experts_of(arguments.model)
    on_gpu = arguments.device == "gpu"
    if arguments.preset:
        planned = planned_rows(
            experts, arguments.share, arguments.lengths, arguments.threads, arguments.pin_bytes, on_gpu=on_gpu
        )
        planned = [planned[0], *(row for row in planned[1:] if re.search(arguments.rows, row.setting.name))]
    else:
        planned = read_planned(arguments.settings, experts, arguments.pin_bytes)
    planned = with_copy_blocks(planned, arguments.copy_blocks)

    common = {"depths": arguments.depths, "lengths": arguments.lengths, "repeats": arguments.repeats}
    with measured_rows(arguments, **common) as rows:
        for row in planned:
            rows.run(row.setting, hot=row.hot, **row.own())
            if rows.is_counted:
                shares = {item["hot"] for item in rows.results if "hot" in item}
                add_floors(rows.results, experts, rows.counted(), {share: rows.hot(share) for share in shares})
                rows.write()
    print("\n".join(tables(rows.results, experts)))
    return 1 if any("failed" in row for row in rows.results) else 0


if __name__ == "__main__":
    sys.exit(main())
