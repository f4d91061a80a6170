from __future__ import annotations

import errno
from typing import NoReturn

import click
import pytest
from click.testing import CliRunner, Result

from ostinatod import errors
from ostinatod.cli.app import CommandGroup
from tests.fakes.daemon import FakeDaemon
from tests.unit.cli.conftest import Invoke


def ending_in(error: BaseException, *, debug: bool = False) -> Result:
    """What a command line does whose only command raises `error`."""

    @click.group(cls=CommandGroup)
    @click.option("--debug", is_flag=True)
    def group(debug: bool) -> None:
        return

    @group.command()
    def fail() -> NoReturn:
        raise error

    return CliRunner().invoke(group, ["--debug", "fail"] if debug else ["fail"])


@pytest.mark.parametrize(
    ("error_class", "code"),
    [
        (errors.OstinatoError, 1),
        (errors.ConfigError, 2),
        (errors.ModelError, 1),
        (errors.ModelNotFound, 4),
        (errors.ModelNameError, 2),
        (errors.ModelFormatError, 1),
        (errors.PullError, 1),
        (errors.DiskFull, 5),
        (errors.EngineNotBuilt, 1),
        (errors.EngineBuildError, 1),
        (errors.EngineBusy, 1),
        (errors.EngineLoadError, 1),
        (errors.EngineDied, 1),
        (errors.ContextOverflow, 1),
        (errors.AbiMismatch, 1),
        (errors.RequestError, 2),
        (errors.DaemonUnreachable, 3),
    ],
)
def test_an_error_of_the_daemon_ends_in_its_exit_code(
    invoke: Invoke, daemon: FakeDaemon, error_class: type[errors.OstinatoError], code: int
) -> None:
    daemon.errors["/api/show"] = (error_class.status, {"error": "what and why", "kind": error_class.kind, "hint": "do"})
    result = invoke("show", "tiny")
    assert result.exit_code == code
    assert (result.stdout, result.stderr) == ("", "Error: what and why\ndo\n")


def test_no_daemon_ends_in_three_and_says_how_to_start_one(invoke: Invoke) -> None:
    result = invoke("list", OSTINATO_HOST="127.0.0.1:1")
    assert result.exit_code == 3
    assert result.stderr == (
        "Error: no daemon answers at http://127.0.0.1:1: Connection refused\nStart it: ostinato serve\n"
    )


def test_a_wrong_setting_ends_in_two_and_names_the_variable(invoke: Invoke) -> None:
    result = invoke("list", OSTINATO_PARALLEL="many")
    assert result.exit_code == 2
    assert "OSTINATO_PARALLEL" in result.stderr


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("list", "--nonsense"), ("show",), ("run", "m", "p", "--seed", "x"), ("rm",)]
)
def test_wrong_usage_ends_in_two_without_asking_the_daemon(
    invoke: Invoke, daemon: FakeDaemon, arguments: tuple[str, ...]
) -> None:
    assert invoke(*arguments).exit_code == 2
    assert daemon.requests == []


def test_a_mistyped_command_is_answered_with_the_close_ones(invoke: Invoke) -> None:
    assert "Did you mean: pull?" in invoke("pul").stderr
    assert "Did you mean" not in invoke("xyzzy").stderr


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_ends_in_130(error: BaseException) -> None:
    result = ending_in(error)
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_an_unexpected_error_is_a_message_and_a_traceback_only_on_request() -> None:
    result = ending_in(ZeroDivisionError("by zero"))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == "Error: internal error: ZeroDivisionError: by zero"
    assert "Traceback" not in result.output
    assert "Traceback" in ending_in(ZeroDivisionError(), debug=True).stderr


def test_a_reader_that_goes_away_is_no_internal_error() -> None:
    result = ending_in(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert result.exit_code == 1
    assert "internal error" not in result.output


def test_no_command_prints_the_help(invoke: Invoke) -> None:
    result = invoke()
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ostinato")
