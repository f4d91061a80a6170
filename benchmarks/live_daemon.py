"""The whole product on this machine's GPUs, in two minutes: does what the daemon, the command line and the dashboard
promise hold on the real thing?

    python benchmarks/live_daemon.py --out FOLDER [--libraries LIB] [--model tiny|FILE.gguf] [--seconds 120]

Starts a daemon of its own with a folder of its own. By `gpu_experts = "auto"` it has the model whole on the GPUs first;
then, while another program takes their memory, in an expert pool with less than half of the experts. Measures the
machine, verifies the placement, holds conversations, learns from them, changes the set in mid-conversation, draws the
dashboard, kills the engine in mid-answer, ends, and looks for what is left. Each step has a time limit and hinders no
other. FOLDER gets `live.json` and `live.tar.gz`, with every command's output, the logs, and the dashboard's screens.

Ends with status 1 if anything was not as it has to be. Without a GPU the same runs over the CPU build, where what needs
one is left out and said to be.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import live_checks
from live_host import Host, engine_cache, host
from live_steps import Steps
from this_machine import machine, write_json

RESERVE_S = 20.0
"""Of the whole time, for the end of the daemon and for what is written."""
HOT_SHARE = 0.44


def planned(live: live_checks.Live) -> list[tuple[str, float, Callable[[], str]]]:
    """Every step but the last: its name, its time limit in seconds, and what it does."""
    return [
        ("the daemon starts", 20, live.starts),
        ("auto: whole on the GPU", 30, live.whole_by_itself),
        ("profile", 40, live.profile),
        ("verify", 45, live.verify),
        ("auto: expert pool", 30, live.pool_by_itself),
        ("conversations", 40, live.conversations),
        ("plan, changed in mid-conversation", 25, live.learns),
        ("every command", 40, live.commands),
        ("dashboard", 40, live.dashboard),
        ("engine killed in mid-answer", 25, live.survives),
    ]


def tried(found: Host, arguments: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    """Run every step; what they told."""
    found.set(OSTINATO_THREADS=str(arguments.threads))
    live = live_checks.Live(found, arguments.model, arguments.hot_share)
    for name, limit_s, work in planned(live):
        if not steps.run(name, limit_s, work) and work == live.pool_by_itself:
            steps.run("expert pool, asked for", limit_s, live.pool_when_asked_for)
    steps.run("the daemon ends", RESERVE_S, live.ends, cleans_up=True)
    found.keep_logs()
    return {"left_out": live.left_out, "found": live.found, "commands": found.commands}


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--libraries", type=Path, help="the engine's binaries; the installed engine otherwise")
    parser.add_argument("--model", default="tiny", help="a registered model's name, or a file")
    parser.add_argument("--hot-share", type=float, default=HOT_SHARE, help="of the experts that the pool has room for")
    parser.add_argument("--threads", type=int, default=0, help="of the engine; 0 leaves it to the engine")
    parser.add_argument("--seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    steps = Steps(arguments.seconds, RESERVE_S)
    with tempfile.TemporaryDirectory(prefix="ost-") as name:
        folder = Path(name)
        (folder / "engine").mkdir()
        with host(folder, engine_cache(arguments.libraries, folder / "engine")) as found:
            result = tried(found, arguments, steps)
        with tarfile.open(arguments.out / "live.tar.gz", "w:gz") as packed:
            packed.add(found.raw, arcname="live")
    result = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "seconds": round(time.monotonic() - steps.begun, 1),
        "ok": steps.all_ok(),
        "steps": [asdict(outcome) for outcome in steps.outcomes],
        **result,
    }
    write_json(arguments.out / "live.json", json.loads(json.dumps(result, default=str)))
    print(f"\n{steps.table()}")
    for reason in result["left_out"]:
        print(f"left out: {reason}")
    print(f"{result['seconds']:.0f} s; {arguments.out / 'live.json'}, {arguments.out / 'live.tar.gz'}")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
