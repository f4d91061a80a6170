"""Settings: where they come from, who wins, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from ostinatod.config import DEFAULT_PORT, FOREVER_S, Settings, load_settings, parse_duration_s, parse_host
from ostinatod.errors import ConfigError


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('port = 1001\nparallel = 2\nkeep_alive_s = "10m"\n')
    settings = load_settings(file, {"OSTINATO_PORT": "1002", "OSTINATO_PARALLEL": "3"}, port=1003)
    assert (settings.port, settings.parallel, settings.keep_alive_s) == (1003, 3, 600.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5s", 1.5), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), (7, 7), ("0", 0)],
)
def test_durations_in_every_spelling(text: str | float, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["forever", "never", "-1", "-5m", -3])
def test_negative_and_forever_never_expire(text: str | float) -> None:
    assert parse_duration_s(text) == FOREVER_S


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "m5", "5m x", True])
def test_anything_else_is_no_duration(text: str | float) -> None:
    with pytest.raises(ConfigError):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("0.0.0.0", "0.0.0.0", DEFAULT_PORT),
        (":99", "127.0.0.1", 99),
        ("99", "127.0.0.1", 99),
        ("box:11434", "box", 11434),
        ("[::1]:5", "::1", 5),
        ("http://127.0.0.1:8080/", "127.0.0.1", 8080),
    ],
)
def test_host_is_accepted_as_people_write_it(text: str, host: str, port: int) -> None:
    assert parse_host(text) == (host, port)


def test_a_wildcard_bind_is_reached_over_loopback() -> None:
    assert Settings(host="0.0.0.0", port=1).base_url == "http://127.0.0.1:1"
    assert Settings(host="::", port=1).base_url == "http://[::1]:1"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("colour = 1", "colour"),
        ("port = 70000", "port"),
        ("routing_log_bytes = 50000", "expected 0 or at least 1048576 bytes"),
        ("port = true", "port"),
        ('parallel = "many"', "parallel"),
        ("engine_args = [1]", "engine_args"),
        ("host = 5", "host"),
        ("not toml", "config.toml"),
    ],
)
def test_a_bad_setting_is_refused_by_name_and_place(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=named) as caught:
        load_settings(file, {})
    assert str(file) in str(caught.value)


def test_a_bad_variable_is_refused_by_its_own_name() -> None:
    with pytest.raises(ConfigError, match="OSTINATO_KEEP_ALIVE"):
        load_settings(Path("/nonexistent"), {"OSTINATO_KEEP_ALIVE": "soon"})


def test_the_manual_names_every_setting() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    for setting in fields(Settings):
        assert f"`{setting.name}`" in manual


@pytest.mark.parametrize("value", ["1.5", "-0.1", "nan", "half", True])
def test_shares_lie_between_0_and_1(tmp_path: Path, value: object) -> None:
    with pytest.raises(ConfigError, match="hot_experts_fraction"):
        load_settings(tmp_path / "none.toml", {}, hot_experts_fraction=value)
    assert load_settings(tmp_path / "none.toml", {"OSTINATO_LEARN_MIN_GAIN": "0.5"}).learn_min_gain == 0.5
