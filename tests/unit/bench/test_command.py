from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ostinatod.cli.app import cli
from ostinatod.cli.bench import loaded_in_daemon
from ostinatod.cli.context import Cli
from tests.unit.bench.test_traces import session


class Server(BaseHTTPRequestHandler):
    """OpenAI's completions: as many tokens as are asked for, without telling how many."""

    def do_GET(self) -> None:
        assert self.path == "/ostinato/status"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"models": [{"name": "tiny"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chunks = [json.dumps({"choices": [{"text": "x"}]}) for _ in range(body["max_tokens"])]
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(f"data: {chunk}\n\n" for chunk in chunks).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def bench(home: Path, *arguments: str) -> Result:
    environment = {"OSTINATO_HOME": str(home), "HF_HUB_CACHE": str(home / "hub")}
    return CliRunner().invoke(cli, ["bench", "tiny", *arguments, "--out", str(home / "out")], env=environment)


def test_servers_are_timed_over_http_and_compared(tmp_path: Path, url: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(session(task)) + "\n" for task in "abc"))
    other = url.replace("127.0.0.1", "localhost")
    result = bench(tmp_path, "--url", url, "--url", other, "--sessions", str(trace), "--held-out", "2", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [item["setting"] for item in told["settings"]] == [url, other]
    assert [item["turns"] for item in told["settings"]] == [6, 6]
    assert (told["versus"][0]["turns"], told["versus"][0]["same_token"]) == (6, None)
    assert any("Lengths are fixed" in note for note in told["notes"])
    assert (tmp_path / "out" / "report.json").exists()


def test_an_interrupted_run_over_http_goes_on_with_the_sessions_that_are_left(tmp_path: Path, url: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(session(task)) + "\n" for task in "abc"))
    arguments = ("--url", url, "--sessions", str(trace), "--held-out", "2")
    assert bench(tmp_path, *arguments).exit_code == 0
    file = tmp_path / "out" / "turns.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    # What was asked for, three turns of the first session and that it is finished, and one turn of the second.
    file.write_text("".join(lines[:6]))
    result = bench(tmp_path, *arguments, "--resume")
    assert result.exit_code == 0, result.output
    assert "continuing after 3 turns" in result.stderr
    again = file.read_text().splitlines()
    assert sorted(json.loads(line).get("turn", -1) for line in again) == [-1, -1, -1, 0, 0, 1, 1, 2, 2]
    kept = [line.strip() for line in lines[1:4]]
    assert set(kept) < set(again)
    other = bench(tmp_path, *arguments, "--turns", "1", "--resume")
    assert (other.exit_code, "differs in limits" in other.stderr) == (2, True), other.output


def test_the_tables_name_the_machine_and_the_files(tmp_path: Path, url: str) -> None:
    result = bench(tmp_path, "--url", url, "--sessions", "1", "--turns", "1", "--max-output-tokens", "3")
    assert result.exit_code == 0, result.output
    assert "the first 1 at most" in result.stdout
    assert "report.json" in result.stdout
    assert "Each session: total request time, medians" in result.stdout


def test_a_server_that_is_not_there_is_told_beside_the_others(tmp_path: Path, url: str) -> None:
    result = bench(tmp_path, "--url", "http://127.0.0.1:1", "--url", url, "--sessions", "1", "--turns", "1", "--json")
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    assert [item["setting"] for item in told["settings"]] == [url]
    assert list(told["facts"]["failures"]) == ["http://127.0.0.1:1"]
    assert any(
        "http://127.0.0.1:1 could not go to its end: the server did not answer" in note for note in told["notes"]
    )


def test_servers_are_told_in_the_order_in_which_they_were_named(tmp_path: Path, url: str) -> None:
    other = url.replace("127.0.0.1", "localhost")
    arguments = ("--url", url, "--url", other, "--sessions", "1", "--turns", "1", "--json")
    assert bench(tmp_path, *arguments).exit_code == 0
    file = tmp_path / "out" / "turns.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    # As if the first server had not been there at first.
    file.write_text("".join(line for line in lines if json.loads(line).get("setting") != url))
    told = json.loads(bench(tmp_path, *arguments, "--resume").stdout)
    assert (told["base"], [item["setting"] for item in told["settings"]]) == (url, [url, other])


def test_models_that_a_daemon_holds_are_known(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_HOST", url.removeprefix("http://"))
    assert loaded_in_daemon(Cli()) == ["tiny"]
    monkeypatch.setenv("OSTINATO_HOST", "127.0.0.1:1")
    assert loaded_in_daemon(Cli()) == []


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_timed(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    arguments = ["bench", "tiny", "--url", "http://127.0.0.1:1", "--out", str(tmp_path / "out" / "new")]
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, f"can be written to, found {tmp_path / 'out'}" in result.stderr) == (2, True), (
        result.output
    )


def test_what_is_there_when_it_is_interrupted_is_told(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--url", url, "--sessions", "1", "--turns", "1")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ostinatod.bench.http_comparison.replay_over_http", interrupted)
    result = bench(tmp_path, *arguments)
    assert result.exit_code == 130
    assert "go on with the same command and --resume" in result.stderr
    monkeypatch.setattr("ostinatod.bench.http_comparison.continue_results", interrupted)
    again = bench(tmp_path, *arguments, "--resume")
    assert (again.exit_code, "go on with" in again.stderr) == (130, False)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "reason"),
    [
        (("--sessions", "log"), 2, "at least two sessions in the routing log, found 0"),
        (("--sessions", "none.jsonl"), 2, "a trace file or log, found 'none.jsonl'"),
        (("--sessions", "0"), 2, "a number of at least 1"),
        (("--uploads", "often"), 2, "found 'often'"),
        (("--url", "nonsense"), 2, "expected the address of a server, found 'nonsense'"),
        (("--url", "http://127.0.0.1:1", "--hot-share", "0.5"), 2, "--hot-share is for this machine's engine"),
        (("--url", "http://127.0.0.1:1", "--sessions", "log"), 2, "the routing log holds no session yet"),
        (("--url", "http://127.0.0.1:1", "--sessions", "1"), 1, "http://127.0.0.1:1: the server did not answer"),
        (("--url", "http://127.0.0.1:1", "--max-tokens-per-session", "2"), 2, "no turn fits into the limits"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_reason(
    tmp_path: Path, arguments: tuple[str, ...], exit_code: int, reason: str
) -> None:
    result = bench(tmp_path, *arguments)
    assert (result.exit_code, reason in result.stderr) == (exit_code, True), result.output
