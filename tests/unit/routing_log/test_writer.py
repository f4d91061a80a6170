from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ostinatod.errors import RoutingLogUnavailable
from ostinatod.profiles.route_log import total_counts
from ostinatod.routing_log import reader
from ostinatod.routing_log.database import open_for_writing
from ostinatod.routing_log.operations import KEPT_REQUEST_COUNTS, Selection, add_request
from ostinatod.routing_log.records import LoggedRequest
from ostinatod.routing_log.writer import RoutingLog
from ostinatod.sessions.prefix_break import PrefixBreak
from ostinatod.transactions import immediate
from tests.conftest import eventually
from tests.unit.routing_log.conftest import MODEL, OpenLog, counts, request

ROOT = Path(__file__).parents[3]


def put(log: RoutingLog, *numbers: int) -> None:
    for number in numbers:
        log.put(request(number))
    log.flush()


def worker(name: str, file: Path) -> list[str]:
    return [sys.executable, "-m", f"tests.unit.routing_log.workers.{name}", str(file)]


# -- what is written --------------------------------------------------------------------------------------------------


def test_a_request_comes_back_as_it_was_put(log: RoutingLog) -> None:
    put_in = request(
        1,
        prefix_break=PrefixBreak("message", 3, 1234),
        generation=7,
        path="split",
        cold_routes=12,
        coverage_prefill=0.5,
        coverage_decode=0.75,
    )
    log.put(put_in)
    log.flush()
    (found,) = reader.latest_requests(log.file)
    names = [name for name in LoggedRequest.__dataclass_fields__ if name != "prefix_break"]
    assert {name: getattr(found, name) for name in names} == {name: getattr(put_in, name) for name in names}
    detail = "message 3 of the previous prompt changed"
    assert found.prefix_break == {"reason": "message", "detail": detail, "lost_tokens": 1234}
    assert found.routes == 2 * (20 + 10)
    kept = reader.request_routes(found.id, log.file)
    assert kept is not None
    assert kept.prefill.tolist() == counts(20, 10).prefill.tolist()


def test_the_requests_of_a_session_are_summed(log: RoutingLog) -> None:
    put(log, 1, 2, 3)
    (session,) = reader.sessions(MODEL, log.file)
    assert (session.started_at, session.last_at, session.requests) == (1.0, 4.0, 3)
    assert (session.layers, session.new_tokens, session.output_tokens, session.tokens) == ((0, 1), 30, 15, 45)
    assert (session.prefill[:, 1].tolist(), session.decode[:, 1].tolist()) == ([60, 60], [30, 30])
    (row,) = reader.latest_sessions(log.file)
    assert (row.turns, row.reused_tokens, row.source) == (3, 270, "header")
    assert reader.turns_of(MODEL, session.session, log.file) == 3


def test_a_request_without_counts_leaves_the_sums_as_they_are(log: RoutingLog) -> None:
    put(log, 1)
    log.put(request(2, counts=None))
    log.flush()
    (session,) = reader.sessions(MODEL, log.file)
    assert (session.requests, session.routes) == (2, 60)


def test_side_requests_are_logged_but_no_part_of_the_session(log: RoutingLog) -> None:
    put(log, 1)
    log.put(request(2, kind="side", turn=None))
    log.put(request(3, kind="side", turn=None, session=None, source=None))
    log.flush()
    (session,) = reader.sessions(MODEL, log.file)
    assert (session.requests, session.routes) == (1, 60)
    assert len(reader.latest_requests(log.file)) == 3


def test_a_request_put_twice_counts_once(log: RoutingLog) -> None:
    put(log, 1, 1)
    assert reader.sessions(MODEL, log.file)[0].requests == 1


def test_words_that_are_not_ours_are_not_stored(log: RoutingLog) -> None:
    log.put(request(1, status="CANARY", dialect="CANARY", path="CANARY"))
    log.flush()
    (found,) = reader.latest_requests(log.file)
    assert (found.status, found.dialect, found.path) == ("other", "other", "other")


def test_counts_of_another_shape_replace_those_of_an_older_engine(log: RoutingLog) -> None:
    put(log, 1)
    log.put(request(2, counts=counts(6, 4, layers=3)))
    log.flush()
    (session,) = reader.sessions(MODEL, log.file)
    assert session.layers == (0, 1, 2)
    assert session.routes == 30
    log.put(request(3, session="5e55104e00000002", counts=counts(6, 4, layers=1)))
    log.flush()
    # Only those shaped as the latest can be added up.
    assert [session.layers for session in reader.sessions(MODEL, log.file)] == [(0,)]


def test_sessions_come_in_the_order_in_which_they_ended(log: RoutingLog) -> None:
    for number, name in ((5, "b"), (1, "c"), (9, "a")):
        log.put(request(number, session=name))
    log.flush()
    found = reader.sessions(MODEL, log.file)
    assert [session.session for session in found] == ["c", "b", "a"]
    assert [session.id for session in reader.latest_sessions(log.file)] == ["a", "b", "c"]
    prefill, _ = total_counts(found)
    assert prefill[:, 1].tolist() == [60, 60]


def test_requests_are_told_latest_first_in_pages_and_by_what_they_belong_to(log: RoutingLog) -> None:
    put(log, *range(1, 6))
    log.put(request(6, fingerprint="cd" * 32, session="other"))
    log.flush()
    assert [found.started_at for found in reader.latest_requests(log.file, limit=3)] == [6, 5, 4]
    page = reader.latest_requests(log.file, before=request(4).id, limit=2)
    assert [found.started_at for found in page] == [3, 2]
    assert len(reader.latest_requests(log.file, fingerprint=MODEL)) == 5
    assert len(reader.latest_requests(log.file, session="other")) == 1
    assert reader.sessions("ef" * 32, log.file) == []


def test_only_the_latest_requests_keep_counts_of_their_own(file: Path) -> None:
    db = open_for_writing(file)
    with immediate(db):
        for number in range(KEPT_REQUEST_COUNTS + 2):
            add_request(db, request(number))
    db.close()
    assert reader.request_routes(request(1).id, file) is None
    assert reader.request_routes(request(2).id, file) is not None
    assert reader.sessions(MODEL, file)[0].routes == (KEPT_REQUEST_COUNTS + 2) * 60


def test_the_log_goes_on_where_another_run_ended(open_log: OpenLog) -> None:
    first = open_log()
    put(first, 1)
    first.close()
    second = open_log()
    put(second, 2)
    assert reader.sessions(MODEL, second.file)[0].requests == 2


def test_only_its_owner_can_read_the_file(log: RoutingLog) -> None:
    put(log, 1)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in log.file.parent.iterdir()} == {
        "routes.db": "0o600",
        "routes.db-wal": "0o600",
        "routes.db-shm": "0o600",
    }


def test_a_file_that_was_never_written_holds_nothing(file: Path) -> None:
    assert reader.latest_requests(file) == []
    assert reader.sessions(MODEL, file) == []
    assert reader.database_bytes(file) == (0, 0)


# -- what can go wrong ------------------------------------------------------------------------------------------------


def test_a_size_of_0_keeps_no_log(open_log: OpenLog, file: Path) -> None:
    log = open_log(0)
    put(log, 1)
    assert not file.exists()
    assert log.status().state == "off"
    assert "set to 0" in (log.status().reason or "")


def test_a_damaged_database_turns_the_log_off_and_is_left_as_it_is(open_log: OpenLog, file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"not a database at all, whatever its name says\n" * 300)
    before = file.read_bytes()
    log = open_log()
    put(log, 1)
    status = log.status()
    assert (status.state, status.dropped, status.written) == ("off", 1, 0)
    assert status.reason == "the routing log is off because its database is damaged"
    assert status.hint == "Begin a new log: ostinato forget --all"
    assert file.read_bytes() == before
    with pytest.raises(RoutingLogUnavailable, match="damaged"):
        reader.latest_requests(file)


def test_a_page_that_is_damaged_later_turns_the_log_off(open_log: OpenLog, file: Path) -> None:
    first = open_log()
    put(first, *range(1, 30))
    first.close()
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    file.write_bytes(content)
    log = open_log()
    put(log, 30)
    assert log.status().reason == "the routing log is off because its database is damaged"


def test_a_damaged_log_is_begun_anew_on_request(open_log: OpenLog, file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"damaged" * 1000)
    log = open_log()
    put(log, 1)
    log.begin_anew()
    put(log, 2)
    assert log.status().state == "on"
    assert [found.started_at for found in reader.latest_requests(file)] == [2]


def test_a_locked_database_turns_the_log_off_until_it_is_free(open_log: OpenLog, file: Path) -> None:
    log = open_log(retry_s=0.05, busy_s=0.05)
    put(log, 1)
    holder = sqlite3.connect(file)
    holder.execute("begin immediate")
    put(log, 2)
    assert log.status().reason == "the routing log is off because another program holds its database locked"
    holder.rollback()
    holder.close()

    def is_on_again() -> bool:
        put(log, 3)
        return log.status().state == "on"

    eventually(is_on_again, "the log is on again", every_s=0.06)
    assert log.status().dropped >= 1
    assert [found.started_at for found in reader.latest_requests(file)] == [3, 1]


def test_a_writer_that_cannot_keep_up_drops_records_and_counts_them(open_log: OpenLog, file: Path) -> None:
    log = open_log(busy_s=0.5, queue_records=2)
    put(log, 1)
    holder = sqlite3.connect(file)
    holder.execute("begin immediate")
    for number in range(2, 12):
        log.put(request(number))
    assert log.status().dropped >= 5
    holder.rollback()
    holder.close()
    log.flush()
    status = log.status()
    assert status.written + status.dropped == 11


def test_a_file_deleted_under_the_log_is_made_again(log: RoutingLog) -> None:
    put(log, 1)
    for path in log.file.parent.iterdir():
        path.unlink()
    put(log, 2)
    assert [found.started_at for found in reader.latest_requests(log.file)] == [2]


def test_a_full_disk_turns_the_log_off_and_room_turns_it_on(file: Path) -> None:
    # A limit on file sizes stands in for the disk: SQLite's writes fail the same way.
    done = subprocess.run(worker("full_disk", file), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    full, freed = done.stdout.splitlines()
    assert full.startswith("off the routing log is off because the disk")
    assert freed.startswith("on ")
    assert len(reader.latest_requests(file)) >= 2


def test_a_killed_process_loses_at_most_the_last_request(file: Path) -> None:
    with subprocess.Popen(worker("endless", file), cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(20)]
        process.kill()
        lines += process.stdout.readlines()
    written = max(int(line) for line in lines if line.endswith(b"\n"))
    found = [round(entry.started_at) for entry in reader.latest_requests(file, limit=10_000)]
    # The worker prints a number once the one before it was written.
    assert found[0] >= written - 1
    assert found == list(range(found[0], 0, -1))
    assert reader.sessions(MODEL, file)[0].requests == len(found)
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


# -- forgetting -------------------------------------------------------------------------------------------------------


def fill(log: RoutingLog) -> None:
    """Two sessions of one model, one of another, a side request."""
    log.put(request(1, session="a"))
    log.put(request(2, session="a"))
    log.put(request(10, session="b"))
    log.put(request(11, session=None, kind="side"))
    log.put(request(12, session="a", fingerprint="cd" * 32))
    log.flush()


@pytest.mark.parametrize(
    ("selection", "forgotten", "left"),
    [
        (Selection(), (3, 5), []),
        (Selection(fingerprint=MODEL), (2, 4), [12]),
        (Selection(sessions=frozenset({"a"})), (2, 3), [11, 10]),
        (Selection(fingerprint=MODEL, sessions=frozenset({"a"})), (1, 2), [12, 11, 10]),
        (Selection(before=5.0), (1, 2), [12, 11, 10]),
        (Selection(before=11.5), (2, 4), [12]),
        (Selection(fingerprint="cd" * 32, before=5.0), (0, 0), [12, 11, 10, 2, 1]),
        (Selection(sessions=frozenset({"nothing"})), (0, 0), [12, 11, 10, 2, 1]),
    ],
)
def test_what_is_selected_is_forgotten_and_nothing_else(
    log: RoutingLog, selection: Selection, forgotten: tuple[int, int], left: list[int]
) -> None:
    fill(log)
    told = log.forget(selection)
    assert (told.sessions, told.requests) == forgotten
    assert [found.started_at for found in reader.latest_requests(log.file)] == left
    for number in (1, 2, 10, 11, 12):
        assert (reader.request_routes(request(number).id, log.file) is not None) == (number in left)
    with closing(sqlite3.connect(log.file)) as connection:
        assert connection.execute("select count(*) from request_counts").fetchone() == (len(left),)


def test_what_is_forgotten_leaves_no_trace_in_the_files(log: RoutingLog) -> None:
    log.put(request(1, session="5e55104e0000dead"))
    log.put(request(2, session="5e55104e0000beef"))
    log.flush()
    log.forget(Selection(sessions=frozenset({"5e55104e0000dead"})))
    content = b"".join(path.read_bytes() for path in log.file.parent.iterdir())
    assert b"5e55104e0000dead" not in content
    assert b"5e55104e0000beef" in content


def test_a_log_that_no_daemon_runs_for_can_be_forgotten(open_log: OpenLog, file: Path) -> None:
    first = open_log()
    fill(first)
    first.close()
    assert RoutingLog(file, 0).forget(Selection()).requests == 5
    assert reader.latest_requests(file) == []
