"""What counting routes costs: decode time of one engine with it off and on, in turn, and the counts of both devices.

    python benchmarks/route_counting.py --engine BIN/ostinato-engine --model MODEL.gguf [--gpu-layers 99] [--rounds 3]

Starts the engine anew for every round. Prints milliseconds per token of each answer after the first, their medians, and
whether every token was counted k times in every layer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

N_OUTPUT = 512
N_ANSWERS = 4
"""Per round; the first one warms up."""


def measure(engine: Path, model: Path, gpu_layers: int, is_counting: bool) -> tuple[list[float], dict[str, Any]]:
    """Milliseconds per output token of the answers after the first, and the engine's route counts."""
    with tempfile.TemporaryDirectory() as directory:
        socket = f"{directory}/engine.sock"
        command = [str(engine), "-m", str(model), "--host", socket, "-c", "4096", "-np", "1", "--no-ui"]
        command += ["-ngl", str(gpu_layers), *(["--ostinato-count-routes"] if is_counting else [])]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=socket), base_url="http://engine", timeout=600
            ) as client:
                wait_until_ready(client, process)
                prompt = {"prompt": "def add(a, b):", "n_predict": N_OUTPUT, "ignore_eos": True, "temperature": 0}
                answers = [
                    client.post("/completion", json={**prompt, "cache_prompt": False}).json() for _ in range(N_ANSWERS)
                ]
                counts = client.get("/ostinato/routes").json() if is_counting else {}
        finally:
            process.terminate()
            process.wait()
    return [answer["timings"]["predicted_per_token_ms"] for answer in answers[1:]], counts


def wait_until_ready(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Raises RuntimeError when the engine ends instead."""
    while process.poll() is None:
        try:
            if client.get("/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the engine ended with status {process.returncode}")


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--gpu-layers", type=int, default=99)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    times: dict[bool, list[float]] = {False: [], True: []}
    decode_routes: list[int] = []
    for _ in range(arguments.rounds):
        for is_counting in (False, True):
            answers, counts = measure(arguments.engine, arguments.model, arguments.gpu_layers, is_counting)
            times[is_counting] += answers
            print(f"counting {'on ' if is_counting else 'off'} {[round(ms, 4) for ms in answers]} ms/token", flush=True)
            decode_routes = [sum(row) for row in counts.get("decode", [])] or decode_routes
    off, on = statistics.median(times[False]), statistics.median(times[True])
    n_layers = len(decode_routes)
    result = {
        "off_ms": off,
        "on_ms": on,
        "per_layer_us": (on - off) * 1000 / n_layers,
        "decode_routes_per_layer": decode_routes,
        "all_ms": {"off": times[False], "on": times[True]},
    }
    print(f"median {off:.4f} -> {on:.4f} ms/token, {result['per_layer_us']:.2f} us per MoE layer")
    print(f"decode routes per layer: {decode_routes}")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    # Every step of an answer but its first token is a decode step, and routes k experts in each layer.
    return 0 if len(set(decode_routes)) == 1 and decode_routes[0] % (N_ANSWERS * (N_OUTPUT - 1)) == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
