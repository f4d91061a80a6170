from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.fakes.daemon import FakeDaemon, listing, running
from tests.unit.cli.conftest import Invoke

LISTING_KEYS = [
    "name",
    "digest",
    "size_bytes",
    "modified_at",
    "source",
    "family",
    "parameter_size",
    "quantization",
    "n_experts",
    "k",
    "context_tokens",
]
RUNNING_KEYS = [
    "name",
    "digest",
    "size_bytes",
    "state",
    "progress",
    "context_tokens",
    "expires_at",
    "placement",
    "backend",
    "gpu_experts",
]
DETAILS_KEYS = [
    "name",
    "source",
    "family",
    "parameter_size",
    "quantization",
    "format",
    "n_experts",
    "k",
    "context_tokens",
    "capabilities",
    "parameters",
    "template",
    "parts",
    "model_info",
]


@pytest.mark.parametrize("name", ["list", "ls"])
def test_list_prints_a_table_on_stdout_and_nothing_else(invoke: Invoke, daemon: FakeDaemon, name: str) -> None:
    now = datetime.now(timezone.utc)
    daemon.models = {
        "tiny": listing("tiny", size=12_400_000, modified_at=(now - timedelta(days=3)).isoformat()),
        "hf.co/a/b:Q4": listing("hf.co/a/b:Q4", modified_at=None, digest="sha256:" + "f" * 64),
    }
    result = invoke(name)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "NAME            ID              SIZE      MODIFIED",
        "tiny            0123456789ab    12 MB     3 days ago",
        "hf.co/a/b:Q4    ffffffffffff    9.6 GB    -",
    ]


def test_list_filters_by_the_beginning_of_the_name(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.models = {name: listing(name) for name in ("qwen:a", "qwen:b", "tiny")}
    assert [model["name"] for model in json.loads(invoke("list", "QWEN", "--json").stdout)] == ["qwen:a", "qwen:b"]


def test_an_empty_list_says_how_to_get_a_model(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.models = {}
    result = invoke("list")
    assert result.stdout == "NAME    ID    SIZE    MODIFIED\n"
    assert "ostinato pull ORG/REPO" in result.stderr
    assert json.loads(invoke("list", "--json").stdout) == []


def test_json_keys_are_stable(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.running = [running("tiny")]
    assert list(json.loads(invoke("list", "--json").stdout)[0]) == LISTING_KEYS
    assert list(json.loads(invoke("ps", "--json").stdout)[0]) == RUNNING_KEYS
    assert list(json.loads(invoke("show", "tiny", "--json").stdout)) == DETAILS_KEYS
    assert json.loads(invoke("version", "--json").stdout) == {"client": "0.1.0", "daemon": "0.1.0", "api": "0.12.0"}
    assert json.loads(invoke("status", "--json").stdout) == daemon.status


def test_list_as_json_keeps_exact_values(invoke: Invoke) -> None:
    model = json.loads(invoke("list", "--json").stdout)[0]
    assert (model["size_bytes"], model["modified_at"]) == (9_600_000_000, "2026-01-31T12:00:00.123456+00:00")
    assert (model["n_experts"], model["k"], model["context_tokens"]) == (128, 8, 262144)


def test_ps_shows_loading_stopping_and_staying_models(invoke: Invoke, daemon: FakeDaemon) -> None:
    later = (datetime.now(timezone.utc) + timedelta(minutes=4, seconds=30)).isoformat()
    daemon.running = [
        running("a", state="loading", progress=0.42, context_length=0),
        running("b", expires_at=later, backend="cuda", placement="GPU 44% bytes, 84% routes"),
        running("c", state="stopping"),
        running("d"),
    ]
    lines = [line.split("    ") for line in invoke("ps").stdout.splitlines()]
    assert [[cell.strip() for cell in line if cell.strip()] for line in lines] == [
        ["NAME", "ID", "SIZE", "PLACEMENT", "CONTEXT", "UNTIL"],
        ["a", "0123456789ab", "9.6 GB", "CPU", "-", "loading 42 %"],
        ["b", "0123456789ab", "9.6 GB", "GPU 44% bytes, 84% routes", "65536", "4 minutes from now"],
        ["c", "0123456789ab", "9.6 GB", "CPU", "65536", "stopping"],
        ["d", "0123456789ab", "9.6 GB", "CPU", "65536", "Forever"],
    ]


def test_ps_says_which_model_was_refused_its_expert_pool_and_what_to_do(invoke: Invoke, daemon: FakeDaemon) -> None:
    pool = {"chosen": "pool", "reason": "it does not fit", "refused": None, "hint": None}
    daemon.running = [
        running("a", gpu_experts=pool),
        running("b", gpu_experts={**pool, "refused": "no row kernel", "hint": 'set gpu_experts = "stock"'}),
    ]
    said = invoke("ps").stderr.splitlines()
    assert said == ["b has no expert pool: no row kernel", 'set gpu_experts = "stock"']
    listed = json.loads(invoke("ps", "--json").stdout)
    assert listed[0]["gpu_experts"] == pool
    assert listed[1]["gpu_experts"]["refused"] == "no row kernel"


def test_show_prints_sections_of_keys_and_values(invoke: Invoke) -> None:
    assert invoke("show", "tiny").stdout.splitlines() == [
        "  Model",
        "    name            tiny",
        "    architecture    qwen3moe",
        "    parameters      30B",
        "    quantization    Q4_K_M",
        "    experts         128 in each layer, 8 selected per token",
        "    context         65536 tokens, trained for 262144",
        "    source          hub",
        "",
        "  Capabilities",
        "    completion",
        "    tools",
        "",
        "  Parameters",
        "    temperature    0.7",
        "    top_p          0.8",
        "",
        "  Files",
        "    /models/a-00001-of-00002.gguf",
        "    /models/a-00002-of-00002.gguf",
    ]


def test_show_can_print_the_template_alone(invoke: Invoke) -> None:
    assert invoke("show", "tiny", "--template").stdout == "{{ messages }}\n"


def test_a_hostile_name_cannot_reach_the_terminal(invoke: Invoke, daemon: FakeDaemon) -> None:
    evil = "a\x1b]0;owned\x07\nb\x9b2J"
    daemon.models = {evil: listing(evil)}
    daemon.running = [running(evil, placement="\x1b[31m")]
    for arguments in (("list",), ("ps",), ("show", evil), ("list", "--json"), ("ps", "--json")):
        shown = invoke(*arguments).output
        assert not {"\x1b", "\x07", "\x9b"} & set(shown), arguments
    daemon.errors["/api/tags"] = (500, {"error": "bad \x1b[2J thing", "hint": "try \x9b1m"})
    assert invoke("list").stderr == "Error: bad [2J thing\ntry 1m\n"


def test_load_reports_progress_on_stderr_by_tenths(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.load_steps = [{"status": "loading", "progress": share / 100} for share in (0, 4, 9, 10, 55, 58)]
    daemon.load_steps.append({"status": "ready"})
    result = invoke("load", "tiny", "--keepalive", "1h30m")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines() == [
        "loading tiny: 0 %",
        "loading tiny: 10 %",
        "loading tiny: 55 %",
        "loading tiny: 100 %",
        "tiny is ready",
    ]
    assert daemon.asked("/ostinato/load") == [{"model": "tiny", "keep_alive": 5400.0}]


def test_a_model_that_is_loaded_already_shows_no_progress(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.load_steps = [{"status": "loading", "progress": 1.0}, {"status": "ready", "progress": 1.0}]
    assert invoke("load", "tiny").stderr == "tiny is ready\n"


def test_stop_unloads_each_model_or_ends_the_daemon(invoke: Invoke, daemon: FakeDaemon) -> None:
    assert invoke("stop", "a", "b").exit_code == 0
    assert invoke("stop", "c", "--force").exit_code == 0
    assert daemon.asked("/ostinato/unload") == [
        {"model": "a", "force": False},
        {"model": "b", "force": False},
        {"model": "c", "force": True},
    ]
    assert invoke("stop").exit_code == 2
    assert invoke("stop", "a", "--daemon").exit_code == 2
    assert invoke("stop", "--daemon").exit_code == 0
    assert len(daemon.asked("/ostinato/shutdown")) == 1


def test_rm_removes_what_there_is_and_reports_what_is_missing(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.models = {"a": listing("a"), "b": listing("b", size=0)}
    result = invoke("rm", "a", "missing", "b")
    assert result.exit_code == 4
    assert result.stderr.splitlines() == [
        "removed a, 9.6 GB freed",
        "Error: model 'missing' not found",
        "Get it: ostinato pull missing",
        "removed b, 0 B freed",
    ]
    assert daemon.models == {}


def test_cp_gives_a_further_name(invoke: Invoke, daemon: FakeDaemon) -> None:
    assert invoke("cp", "tiny", "gpt-4o").exit_code == 0
    assert set(daemon.models) == {"tiny", "gpt-4o"}


def test_pull_prints_totals_first_and_a_line_for_every_tenth(invoke: Invoke, daemon: FakeDaemon) -> None:
    size = 1_000_000_000
    step = {"status": "downloading", "file": "a.gguf", "total": size, "all_total": size}
    daemon.pull_steps = [
        {"status": "resolving"},
        {
            "status": "resolving",
            "all_total": size,
            "all_completed": 300_000_000,
            "detail": {"needed_bytes": 700_000_000, "free_bytes": 80_000_000_000, "directory": "/hub"},
        },
        {**step, "completed": 300_000_000},
        *({**step, "completed": 300_000_000 + n * 10_000_000} for n in range(1, 70)),
        {**step, "completed": size},
        {**step, "status": "verifying", "completed": size, "detail": {"verified_bytes": size // 2}},
        {**step, "status": "verifying", "completed": size, "detail": {"verified_bytes": size}},
        {"status": "registering", "all_total": size, "all_completed": size},
        {"status": "success"},
    ]
    result = invoke("pull", "org/repo")
    assert (result.exit_code, result.stdout) == (0, "")
    lines = result.stderr.splitlines()
    assert lines[:3] == [
        "resolving",
        "pulling org/repo: 1.0 GB, 700 MB still to fetch, 80 GB free",
        "a.gguf: 30 % (300 MB of 1.0 GB)",
    ]
    assert lines[3:10] == [f"a.gguf: {n}0 % ({n}00 MB of 1.0 GB)" for n in range(4, 10)] + [
        "a.gguf: 100 % (1.0 GB of 1.0 GB)"
    ]
    assert lines[10:] == [
        "verifying a.gguf: 50 % (500 MB of 1.0 GB)",
        "verifying a.gguf: 100 % (1.0 GB of 1.0 GB)",
        "registering",
        "success",
    ]


def test_pull_of_a_path_registers_it_where_it_is(
    invoke: Invoke, daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.gguf").touch()
    Path("link.gguf").symlink_to("m.gguf")
    for typed in ("./m.gguf", "m.gguf", str(tmp_path), "link.gguf"):
        assert invoke("pull", typed, "--name", "mine").exit_code == 0
    assert daemon.asked("/ostinato/add") == [
        {"path": str(tmp_path / "m.gguf"), "name": "mine"},
        {"path": str(tmp_path / "m.gguf"), "name": "mine"},
        {"path": str(tmp_path), "name": "mine"},
        {"path": str(tmp_path / "link.gguf"), "name": "mine"},
    ]
    assert daemon.asked("/api/pull") == []


def test_pull_of_a_missing_path_is_not_taken_for_a_reference(invoke: Invoke, daemon: FakeDaemon) -> None:
    result = invoke("pull", "./missing.gguf")
    assert result.exit_code == 4
    assert "there is no file or directory" in result.stderr
    assert daemon.asked("/api/pull") == []


def test_a_reference_that_ends_like_a_file_is_pulled(invoke: Invoke, daemon: FakeDaemon) -> None:
    assert invoke("pull", "org/repo/model.gguf").exit_code == 0
    assert daemon.asked("/api/pull") == [{"model": "org/repo/model.gguf", "stream": True}]
    assert invoke("pull", "org/repo", "--name", "mine").exit_code == 2


def test_status_tells_people_of_the_daemon_and_programs_everything(invoke: Invoke, daemon: FakeDaemon) -> None:
    said = invoke("status").stdout
    assert f"address    {daemon.url}" in said
    assert said.endswith("No model is in memory.\n")


def test_version_warns_when_client_and_daemon_differ(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.errors["/api/version"] = (200, {"version": "0.12.0", "ostinato": "9.9"})
    result = invoke("version")
    assert result.stdout == "ostinato 0.1.0\ndaemon   9.9 (speaks API 0.12.0)\n"
    assert "Restart the daemon" in result.stderr


def test_version_works_without_a_daemon(invoke: Invoke) -> None:
    result = invoke("--host", "127.0.0.1:1", "version")
    assert (result.exit_code, result.stdout) == (0, "ostinato 0.1.0\n")


def test_host_on_the_command_line_wins_over_the_environment(invoke: Invoke, daemon: FakeDaemon) -> None:
    assert invoke("--host", f"127.0.0.1:{daemon.port}", "list", OSTINATO_HOST="127.0.0.1:1").exit_code == 0


def test_engine_commands_say_how_to_get_an_engine(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("engine", "status", OSTINATO_ENGINE_CACHE=str(tmp_path / "none"))
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) >= 2
    result = invoke("engine", "build", OSTINATO_ENGINE_CACHE=str(tmp_path / "none"), PATH=str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert invoke("engine", "build", "--backend", "abacus").exit_code == 2


def test_completion_offers_names_that_begin_as_typed(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.models = {name: listing(name) for name in ("qwen", "quartz", "tiny")}
    words = {"COMP_WORDS": "ostinato show q", "COMP_CWORD": "2", "_OSTINATO_COMPLETE": "bash_complete"}
    assert invoke(**words).stdout.split() == ["plain,qwen", "plain,quartz"]


def test_completion_is_silent_without_a_daemon(invoke: Invoke) -> None:
    words = {"COMP_WORDS": "ostinato stop ", "COMP_CWORD": "2", "_OSTINATO_COMPLETE": "bash_complete"}
    result = invoke(**words, OSTINATO_HOST="127.0.0.1:1")
    assert (result.stdout.strip(), result.stderr) == ("", "")
