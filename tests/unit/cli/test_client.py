from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ostinatod import errors
from ostinatod.client import ChatRequest, DaemonClient, error_of
from ostinatod.client_values import ChatDelta, ChatEnd, EngineTimings, Usage, moment
from tests.conftest import PATIENCE_S
from tests.fakes.daemon import BREAK, END, WAIT, FakeDaemon, finish, reasoning, running, text

QUESTION = ChatRequest("tiny", ({"role": "user", "content": "hi"},), {"temperature": 0.5}, "session-1")
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[DaemonClient]:
    with DaemonClient(daemon.url) as opened:
        yield opened


def every_error() -> list[type[errors.OstinatoError]]:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in classes if issubclass(value, errors.OstinatoError)]


@pytest.mark.parametrize("error_class", every_error())
def test_every_error_comes_back_as_its_class_in_both_dialects(error_class: type[errors.OstinatoError]) -> None:
    native = error_of({"error": "what", "kind": error_class.kind, "hint": "next"}, error_class.status)
    openai = error_of(
        {"error": {"message": "what", "type": "x", "code": error_class.kind, "hint": "next"}}, error_class.status
    )
    assert type(native) is type(openai) is error_class
    assert (native.message, native.hint, openai.message, openai.hint) == ("what", "next", "what", "next")


def test_an_error_of_an_unknown_kind_is_classed_by_its_status() -> None:
    assert type(error_of({"error": "bad"}, 422)) is errors.RequestError
    assert type(error_of({"error": {"message": "bad", "code": 500, "type": "weird"}}, 500)) is errors.OstinatoError
    assert error_of(None, 502).message == "the daemon answered with HTTP status 502"


def test_a_busy_engine_tells_when_to_try_again(client: DaemonClient, daemon: FakeDaemon) -> None:
    daemon.errors["/api/ps"] = (503, {"error": "queue full", "kind": "engine_busy"})
    with pytest.raises(errors.EngineBusy, match="queue full") as caught:
        client.running()
    assert caught.value.retry_after_s == 7


def test_an_answer_is_streamed_and_ends_with_usage_and_timings(client: DaemonClient, daemon: FakeDaemon) -> None:
    daemon.answer = (reasoning("hm"), text("a\u2028b"), *finish("length"))
    assert list(client.chat(QUESTION)) == [
        ChatDelta(reasoning="hm"),
        ChatDelta(text="a\u2028b"),
        ChatEnd("length", Usage(100, 20, 60), EngineTimings(40, 200.0, 20, 160.0, 60)),
    ]
    assert daemon.asked("/v1/chat/completions") == [
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    assert daemon.headers[-1]["x-session-id"] == "session-1"


def test_an_error_inside_a_stream_is_raised_after_what_came_before(client: DaemonClient, daemon: FakeDaemon) -> None:
    daemon.answer = (text("a"), {"error": {"message": "gone", "type": "server_error", "code": "engine_died"}})
    events = client.chat(QUESTION)
    assert next(events) == ChatDelta(text="a")
    with pytest.raises(errors.EngineDied, match="gone"):
        next(events)


def test_an_answer_without_an_end_is_no_answer(client: DaemonClient, daemon: FakeDaemon) -> None:
    daemon.answer = (text("a"), END)
    with pytest.raises(errors.EngineDied, match="broke off"):
        list(client.chat(QUESTION))
    daemon.answer = (text("a"), BREAK)
    with pytest.raises(errors.DaemonUnreachable, match="closed the connection"):
        list(client.chat(QUESTION))


def test_closing_an_answer_tells_the_daemon(client: DaemonClient, daemon: FakeDaemon) -> None:
    daemon.answer = (text("a"), WAIT)
    with closing(client.chat(QUESTION)) as events:
        next(events)
    assert daemon.abandoned.wait(PATIENCE_S)


def test_closing_a_pull_tells_the_daemon(client: DaemonClient, daemon: FakeDaemon) -> None:
    daemon.pull_steps = [{"status": "resolving"}, WAIT]
    with closing(client.pull("org/repo")) as steps:
        next(steps)
    assert daemon.abandoned.wait(PATIENCE_S)


def test_a_pull_and_a_load_fail_unless_they_end_well(client: DaemonClient, daemon: FakeDaemon) -> None:
    daemon.pull_steps = [{"status": "downloading"}]
    with pytest.raises(errors.PullError, match="while downloading"):
        list(client.pull("org/repo"))
    daemon.pull_steps = [{"error": "full", "kind": "disk_full", "hint": "free some"}]
    with pytest.raises(errors.DiskFull, match="full"):
        list(client.pull("org/repo"))
    daemon.load_steps = [{"status": "loading", "progress": 0.5}]
    with pytest.raises(errors.EngineDied, match="before it was ready"):
        list(client.load("tiny"))


def test_nobody_at_the_address_is_unreachable_and_not_up() -> None:
    with DaemonClient(NOBODY) as client:
        assert not client.is_up()
        with pytest.raises(errors.DaemonUnreachable, match="no daemon answers") as caught:
            client.models()
    assert caught.value.hint == "Start it: ostinato serve"


def test_another_server_at_the_address_is_told_from_a_daemon() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with (
            DaemonClient(f"http://127.0.0.1:{server.server_port}") as client,
            pytest.raises(errors.DaemonUnreachable, match="not Ostinato"),
        ):
            client.is_up()
        thread.join()


def test_an_address_that_is_none_is_a_setting_error() -> None:
    with pytest.raises(errors.ConfigError, match="expected an address"):
        DaemonClient("http://a\x00b:1")


def test_proxy_variables_do_not_divert_requests(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", NOBODY)
    monkeypatch.setenv("ALL_PROXY", NOBODY)
    with DaemonClient(daemon.url) as client:
        assert client.is_up()


def test_an_answer_of_the_wrong_shape_says_what_was_expected(client: DaemonClient, daemon: FakeDaemon) -> None:
    daemon.errors["/api/tags"] = (200, {"models": "many"})
    with pytest.raises(errors.OstinatoError, match="expected a list, found 'many'"):
        client.models()
    daemon.running = [running("tiny", state="dancing")]
    with pytest.raises(errors.OstinatoError, match="loading, ready or stopping, found 'dancing'"):
        client.running()
    daemon.running = [running("tiny", size="big")]
    with pytest.raises(errors.OstinatoError, match="a number as size, found 'big'"):
        client.running()


@pytest.mark.parametrize(
    ("written", "microsecond", "hours"),
    [
        ("2026-01-31T12:00:00Z", 0, 0),
        ("2026-01-31T12:00:00.5Z", 500_000, 0),
        ("2026-01-31T12:00:00.123456789+02:00", 123_456, 2),
        ("2026-01-31T12:00:00", 0, 0),
    ],
)
def test_times_are_read_with_any_fraction_and_zone(written: str, microsecond: int, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    assert moment(written) == datetime(2026, 1, 31, 12, 0, 0, microsecond, tzinfo=zone)


def test_no_time_is_none_and_nonsense_is_an_error() -> None:
    assert moment(None) is None
    with pytest.raises(errors.OstinatoError, match="expected a time"):
        moment("yesterday")
