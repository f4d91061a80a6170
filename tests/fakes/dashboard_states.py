"""Canned answers of the daemon's API for the dashboard: GET answers by path, per state. All times hang on NOW."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np

from tests.fakes.daemon import listing

NOW = 1_764_460_800.0
"""2025-11-30 00:00:00 UTC."""

Answers = dict[str, Any]
"""By path without its query; a path that is missing is answered with 404."""

MODEL = "qwen3-235b-a22b:Q4_K_M"
N_LAYERS, N_EXPERTS, K = 61, 256, 8
GIB = 1024**3


def status(*models: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """`/ostinato/status`. Its pid belongs to no process of this machine."""
    return {
        "pid": 2**22 + 1,
        "version": "0.1.0",
        "uptime_s": 11_532.4,
        "settings": {},
        "build": {"server": "/engine", "backend": "cuda", "digest": "0" * 64},
        "models": list(models),
        **changes,
    }


def model(name: str, **changes: Any) -> dict[str, Any]:
    """A model in `/ostinato/status`."""
    return {
        "name": name,
        "digest": "0" * 64,
        "state": "ready",
        "load": {"progress": 1.0},
        "pid": 4242,
        "rss_bytes": 3 * GIB,
        "context_tokens": 65536,
        "slots": 4,
        "in_flight": 0,
        "queued": 0,
        "expires_at": None,
        "backend": "cpu",
        "engine": None,
        **changes,
    }


def request(number: int, **changes: Any) -> dict[str, Any]:
    """A request that ended well, `number` turns before now."""
    after_tool = number % 3 != 2
    return {
        "id": f"req-{1000 - number}",
        "session": "9f31c0de" if number % 5 else "b7aa1234",
        "turn": 40 - number,
        "model": MODEL,
        "dialect": "openai",
        "kind": "after_tool" if after_tool else "after_user",
        "status": "ok",
        "started_at": NOW - 20.0 - 37.0 * number,
        "queue_ms": 1.2,
        "ttft_ms": 380.0 + 61.0 * (number * 7 % 11),
        "tpot_ms": 21.5 + 0.9 * (number * 5 % 7),
        "total_ms": 5200.0 + 90.0 * number,
        "new_tokens": 185 + 64 * (number * 3 % 8),
        "reused_tokens": 28_000 - 512 * number,
        "output_tokens": 210 + number,
        "prefix_break": None,
        "generation": 7,
        "path": "split",
        "cold_routes": 11_800 + 100 * (number % 4),
        "routes": 98_000,
        "coverage_prefill": 0.78 + 0.01 * (number % 5),
        "coverage_decode": 0.84 + 0.01 * (number % 4),
        **changes,
    }


def session(name: str, **changes: Any) -> dict[str, Any]:
    """A session."""
    return {
        "id": name,
        "model": MODEL,
        "source": "header",
        "started_at": NOW - 2400.0,
        "last_at": NOW - 20.0,
        "turns": 40,
        "new_tokens": 31_400,
        "reused_tokens": 912_000,
        "output_tokens": 8_950,
        "ttft_ms_p50": 512.0,
        "tpot_ms_p50": 23.1,
        "wait_after_tool_ms_p50": 498.0,
        **changes,
    }


@functools.cache
def routes(n_layers: int = N_LAYERS, n_experts: int = N_EXPERTS, total: int = 400_000, seed: int = 8) -> dict[str, Any]:
    """Skewed route counts, the same for the same seed."""
    random = np.random.default_rng(seed)
    ranks, skews = np.arange(1, n_experts + 1), random.uniform(0.55, 1.15, n_layers)
    prefill = np.stack([random.permutation(1.0 / ranks**skew) for skew in skews])
    prefill = prefill / prefill.sum(axis=1, keepdims=True) * total
    decode = prefill * random.uniform(0.02, 0.06, prefill.shape)
    return {
        "layers": list(range(3, 3 + n_layers)),
        "n_experts": n_experts,
        "prefill": prefill.astype(int).tolist(),
        "decode": decode.astype(int).tolist(),
    }


def residency(counts: dict[str, Any], hot_share: float = 0.44, seed: int = 5, generation: int = 7) -> dict[str, Any]:
    """A set planned from other sessions: the ranking of the counts, blurred."""
    random = np.random.default_rng(seed)
    layers = []
    for layer, row in zip(counts["layers"], counts["prefill"], strict=True):
        blurred = np.array(row) * random.lognormal(0.0, 0.5, len(row))
        hot = np.sort(np.argsort(-blurred)[: round(hot_share * len(row))])
        layers.append({"layer": layer, "experts": len(row), "k": K, "hot": hot.tolist()})
    return {"generation": generation, "layers": layers, "pool_bytes": 37 * GIB, "reason": None}


def generation(number: int, **changes: Any) -> dict[str, Any]:
    """A generation in the history of a plan."""
    return {
        "generation": number,
        "created_at": NOW - 86_400.0 * (8 - number),
        "source": "learned",
        "state": "superseded",
        "sessions": 6 * number,
        "hot_experts": 6_871,
        "moved": 900 - 100 * number,
        "coverage_held_out": 0.70 + 0.02 * number,
        "coverage_measured": 0.71 + 0.02 * number,
        "tpot_ms_measured": 31.0 - number,
        "note": "",
        **changes,
    }


def plan(**changes: Any) -> dict[str, Any]:
    """A plan with a proposal and five generations."""
    return {
        "model": MODEL,
        "sessions": 48,
        "skew": {
            "gain": 0.391,
            "useful": True,
            "sentence": "The busiest 44 % of the experts take 83 % of the routes of sessions not used for planning.",
        },
        "proposal": {
            "generation": 8,
            "hot_experts": 6_871,
            "moved": 412,
            "coverage_now": 0.824,
            "coverage_held_out": 0.861,
            "coverage_uniform": 0.440,
            "coverage_hindsight": 0.882,
            "cold_routes_per_token_now": 1.41,
            "cold_routes_per_token": 1.11,
            "tpot_ms_predicted": 21.4,
            "reasons": [
                "12 sessions since generation 7, 9 of them on new repositories",
                "the expected gain of 3.7 points is above the threshold of 2",
            ],
        },
        "history": [
            generation(7, state="active", coverage_measured=0.838, note="12 sessions on the payments service"),
            generation(6, state="rolled_back", coverage_measured=0.79, note="measured 3.1 points below generation 5"),
            generation(5),
            generation(4),
            generation(1, source="day0", sessions=0, moved=6_871, coverage_held_out=None, coverage_measured=0.449),
        ],
        **changes,
    }


PROFILE = {
    "gpus": [{"name": "NVIDIA GeForce RTX 4090"}, {"name": "NVIDIA GeForce RTX 4090"}],
    "cpus": None,
    "memory": None,
    "link": None,
}


def device(name: str, total_gib: float, free_gib: float, **used_gib: float) -> dict[str, Any]:
    """A device in the engine's account of its memory."""
    used = {f"{use}_bytes": int(size * GIB) for use, size in used_gib.items()}
    return {"name": name, "total_bytes": int(total_gib * GIB), "free_bytes": int(free_gib * GIB), **used}


def listings() -> dict[str, Any]:
    """`/api/tags`: five models."""
    return {
        "models": [
            listing(MODEL, size=142_000_000_000, n_experts=256, k=8, context_tokens=65536),
            listing("gpt-oss-120b:MXFP4", size=63_400_000_000, n_experts=128, k=4, context_tokens=131072),
            listing("qwen3-coder-30b:Q4_K_M", size=18_600_000_000, n_experts=128, k=8),
            listing("glm-4.5-air:Q4_K_M", size=72_800_000_000, n_experts=128, k=8, context_tokens=131072),
            listing("tiny", size=38_000_000, n_experts=16, k=4, context_tokens=65536, source="bundled"),
        ]
    }


def idle() -> Answers:
    """A daemon without models in memory or requests."""
    return {
        "/ostinato/status": status(),
        "/api/tags": listings(),
        "/ostinato/requests": {"in_flight": [], "requests": []},
        "/ostinato/sessions": {"sessions": []},
        "/ostinato/profile": PROFILE,
        "/ostinato/logs": {"lines": ["2025-11-29 20:47:47,113 INFO ostinatod.serve daemon_started pid=4242"]},
    }


def loading() -> Answers:
    """A large model on its way into memory."""
    big = model(MODEL, state="loading", load={"progress": 0.37}, backend="cuda")
    return {**idle(), "/ostinato/status": status(big)}


def busy_cpu() -> Answers:
    """The bundled model on a machine without a GPU, answering two requests."""
    counts = routes(4, 16, total=90_000, seed=3)
    running = request(0, model="tiny", status="running", ttft_ms=410.0, tpot_ms=None, total_ms=None, started_at=NOW - 3)
    queued = request(1, model="tiny", status="queued", ttft_ms=None, tpot_ms=None, total_ms=None, new_tokens=None)
    mib = 1024**2
    engine = {
        "residency": {"state": "none", "reason": "", "generation": 0, "hot_experts": 0, "pool_bytes": 0},
        "memory": {
            "devices": [],
            "host": {"weights_bytes": 36 * mib, "kv_bytes": 34 * mib, "compute_bytes": 21 * mib},
        },
    }
    tiny = model("tiny", in_flight=1, queued=1, rss_bytes=158 * 1024**2, engine=engine)
    return {
        **idle(),
        "/ostinato/status": status(tiny, build={"server": "/engine", "backend": "cpu", "digest": "0" * 64}),
        "/ostinato/routes": counts,
        "/ostinato/residency": {"generation": None, "layers": [], "pool_bytes": None, "reason": "no residency file"},
        "/ostinato/requests": {
            "in_flight": [running, queued],
            "requests": [
                request(n, model="tiny", generation=None, coverage_decode=None, coverage_prefill=None, cold_routes=None)
                for n in range(2, 14)
            ],
        },
        "/ostinato/sessions": {"sessions": [session("9f31c0de", model="tiny"), session("b7aa1234", model="tiny")]},
        "/ostinato/plan": plan(
            model="tiny",
            sessions=2,
            skew={"gain": 0.012, "useful": False, "sentence": "Experts are routed to almost evenly; no set can help."},
            proposal=None,
            history=[],
        ),
        "/ostinato/profile": {"gpus": [], "cpus": None, "memory": None, "link": None},
    }


def gpu(n_layers: int = N_LAYERS, n_experts: int = N_EXPERTS) -> Answers:
    """Two GPUs, a learned residency set, a history, and requests whose prefixes broke."""
    counts = routes(n_layers, n_experts)
    devices = [
        device("CUDA0", 24, 1.1, dense=2.6, kv=1.9, pool=15.6, borrowed=0.6, staging=0.6, compute=0.8, margin=0.4),
        device("CUDA1", 24, 1.8, dense=1.9, kv=1.9, pool=15.9, borrowed=0.3, staging=0.6, compute=0.8, margin=0.4),
    ]
    pools = [
        {"name": "CUDA0", "gpu": True, "pool_capacity": int(15.6 * GIB), "pool_used": int(15.4 * GIB)},
        {"name": "CUDA1", "gpu": True, "pool_capacity": int(15.9 * GIB), "pool_used": int(15.9 * GIB)},
    ]
    engine = {
        "residency": {"state": "applied", "reason": "", "generation": 7, "hot_experts": 6_871, "pool_bytes": 37 * GIB},
        "devices": pools,
        "memory": {
            "devices": devices,
            "host": {"weights_bytes": 76 * GIB, "kv_bytes": 0, "compute_bytes": int(0.2 * GIB)},
        },
    }
    big = model(MODEL, backend="cuda", in_flight=1, rss_bytes=78 * GIB, engine=engine)
    requests = [request(n) for n in range(1, 40)]
    requests[3]["prefix_break"] = {
        "reason": "tools",
        "detail": "the description of the tool read_file changed between turn 35 and turn 36",
        "lost_tokens": 26_400,
    }
    requests[3] |= {"new_tokens": 26_600, "reused_tokens": 0, "ttft_ms": 9_800.0, "total_ms": 15_600.0}
    requests[9] |= {"status": "engine_died", "tpot_ms": None}
    requests[11] |= {"status": "cancelled"}
    broke = {"reason": "evicted", "detail": "three other sessions were newer", "lost_tokens": 9_200}
    requests[20]["prefix_break"] = broke
    running = request(0, status="running", tpot_ms=None, total_ms=None, output_tokens=41, started_at=NOW - 4)
    told = f"INFO ostinatod.relay request model={MODEL} status=ok"
    lines = [f"2025-11-29 23:59:{at:02d},104 {told} ms={900 + at}" for at in range(40)]
    lines[7] = "2025-11-29 23:59:07,104 WARNING ostinatod.relay stream_broke_off reason='the client left'"
    lines[21] = "2025-11-29 23:59:21,104 ERROR ostinatod.engine engine_died signal=9"
    return {
        **idle(),
        "/ostinato/status": status(big, model("tiny", rss_bytes=158 * 1024**2)),
        "/ostinato/routes": counts,
        "/ostinato/residency": residency(counts),
        "/ostinato/requests": {"in_flight": [running], "requests": requests},
        "/ostinato/sessions": {
            "sessions": [
                session("9f31c0de"),
                session("b7aa1234", turns=12, last_at=NOW - 700, reused_tokens=88_000, source="prefix"),
                session("c0ffee00", turns=3, last_at=NOW - 90_000, wait_after_tool_ms_p50=None, source="body"),
            ]
        },
        "/ostinato/plan": plan(),
        "/ostinato/logs": {"lines": lines},
    }


HOSTILE = "\x1b[31mred\x1b]0;title\x07 [bold red]x[/] \u202egnp.exe 你好🎉e\u0301\x00\r\n[@click=app.exit]z[/]"
"""Escape sequences, markup, a change of direction, wide and combining letters, line ends."""


def hostile() -> Answers:
    """The GPU state with every string turned against the terminal."""
    answers = gpu()
    bad = HOSTILE
    engine = {
        "residency": {"state": "refused", "reason": bad, "generation": 7, "hot_experts": 1, "pool_bytes": GIB},
        "memory": {"devices": [device(bad, 24, 2, dense=2, pool=18)]},
    }
    answers["/ostinato/status"] = status(model(bad, backend=bad, engine=engine), version=bad, build={"backend": bad})
    answers["/api/tags"] = {"models": [listing(bad), listing("[red]markup[/red]")]}
    answers["/ostinato/requests"] = {
        "in_flight": [],
        "requests": [
            request(n, id=f"{n}{bad}", session=bad, model=bad, kind=bad, status=bad if n == 2 else "ok", path=bad,
                    prefix_break={"reason": bad, "detail": bad * 3, "lost_tokens": 5})
            for n in range(1, 6)
        ],
    }  # fmt: skip
    answers["/ostinato/sessions"] = {"sessions": [session(bad, model=bad, source=bad)]}
    answers["/ostinato/plan"] = plan(
        model=bad,
        skew={"gain": 0.1, "useful": True, "sentence": bad},
        history=[generation(7, state=bad, source=bad, note=bad), generation(6, note=bad)],
        proposal={**plan()["proposal"], "reasons": [bad, bad]},
    )
    answers["/ostinato/logs"] = {"lines": [bad, "\x9b2J" + "A" * 5000, "[link=file:///etc/passwd]here[/link]"]}
    return answers


def older() -> Answers:
    """A daemon that knows only what it had before the dashboard."""
    answers = busy_cpu()
    return {path: answers[path] for path in ("/ostinato/status", "/api/tags", "/ostinato/routes")}


def live() -> Answers:
    """The GPU state in motion: with every second counts grow, a request moves on, and the log gets a line."""
    started, answers = time.time(), gpu()
    counts = np.array(answers["/ostinato/routes"]["prefill"])
    order = np.random.default_rng(1).permutation(counts.shape[1])

    def second() -> int:
        return int(time.time() - started)

    def routes_now(query: dict[str, str]) -> dict[str, Any]:
        grown = counts + second() * counts[:, order] // 50
        return {**answers["/ostinato/routes"], "prefill": grown.tolist()}

    def requests_now(query: dict[str, str]) -> dict[str, Any]:
        now, done = time.time(), second() // 3
        ended = [
            request(n, id=f"req-{2000 + done - n}", turn=100 + done - n, started_at=now - 3 * n - second() % 3)
            for n in range(1, 40)
        ]
        running = request(0, status="running", tpot_ms=None, total_ms=None, started_at=now - second() % 3)
        return {"in_flight": [{**running, "output_tokens": second() % 3 * 40}], "requests": ended}

    def status_now(query: dict[str, str]) -> dict[str, Any]:
        return {**answers["/ostinato/status"], "uptime_s": time.time() - started}

    def logs_now(query: dict[str, str]) -> dict[str, Any]:
        told = f"INFO ostinatod.relay request model={MODEL} status=ok"
        return {
            "lines": [f"2025-11-30 00:{at // 60 % 60:02d}:{at % 60:02d},104 {told}" for at in range(second() + 200)][
                -200:
            ]
        }

    return {
        **answers,
        "/ostinato/status": status_now,
        "/ostinato/routes": routes_now,
        "/ostinato/requests": requests_now,
        "/ostinato/logs": logs_now,
    }
