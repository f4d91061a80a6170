from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ostinatod.cli.app import cli
from tests.unit.bench.test_traces import session


class Server(BaseHTTPRequestHandler):
    """OpenAI's completions: as many tokens as are asked for, without telling how many."""

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
    assert "Total request time of each session" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "exit_code", "reason"),
    [
        (("--sessions", "log"), 2, "at least two sessions in the routing log, found 0"),
        (("--sessions", "none.jsonl"), 2, "a trace file or log, found 'none.jsonl'"),
        (("--uploads", "often"), 2, "found 'often'"),
        (("--url", "http://127.0.0.1:1", "--sessions", "log"), 2, "have no text to send"),
        (("--url", "http://127.0.0.1:1", "--sessions", "1"), 1, "the server did not answer"),
        (("--url", "http://127.0.0.1:1", "--max-tokens-per-session", "2"), 2, "no turn fits into the limits"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_reason(
    tmp_path: Path, arguments: tuple[str, ...], exit_code: int, reason: str
) -> None:
    result = bench(tmp_path, *arguments)
    assert (result.exit_code, reason in result.stderr) == (exit_code, True), result.output
