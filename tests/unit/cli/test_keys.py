from __future__ import annotations

import json
from pathlib import Path

from ostinatod.keys import KeyFile, KeyRing
from tests.unit.cli.conftest import Invoke


def test_a_key_is_printed_once_and_then_only_listed(invoke: Invoke, home: Path) -> None:
    added = invoke("keys", "add", "laptop")
    secret = added.stdout.strip()
    assert added.exit_code == 0
    assert KeyRing(KeyFile(home / "keys.json")).accepts(secret)
    for listed in (invoke("keys", "list"), invoke("keys", "list", "--json")):
        assert "laptop" in listed.stdout
        assert secret not in listed.output
    assert json.loads(invoke("keys", "add", "desk", "--json").stdout)["key"].startswith("ost_")


def test_removing_the_last_key_says_what_that_means(invoke: Invoke) -> None:
    invoke("keys", "add", "a")
    invoke("keys", "add", "b")
    assert "No key is left" not in invoke("keys", "rm", "a").stderr
    assert "No key is left" in invoke("keys", "rm", "b").stderr
    assert invoke("keys", "rm", "b").exit_code == 4


def test_a_mistyped_key_suggests_the_right_one(invoke: Invoke) -> None:
    invoke("keys", "add", "laptop")
    assert "Did you mean laptop?" in invoke("keys", "rm", "latop").stderr
    assert "ostinato keys list" in invoke("keys", "rm", "xyzzy").stderr


def test_a_name_that_could_be_mistaken_for_an_option_or_a_path_is_refused(invoke: Invoke) -> None:
    for name in ("", "a/b", "a b", "ü"):
        assert invoke("keys", "add", name).exit_code == 2
