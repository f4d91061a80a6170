"""The pin: which llama.cpp the engine is built from, and the package that carries it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ostinatod.errors import EngineBuildError

_LLAMA_CPP = re.compile(r"llama\.cpp ([0-9a-f]{7,40})")
_PACKAGE = re.compile(r"([A-Za-z0-9._-]+) ([0-9][A-Za-z0-9.+!]*) sha256=([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Upstream:
    """Contents of the file UPSTREAM."""

    llama_cpp_commit: str
    package: str
    """Name of the package whose source distribution contains llama.cpp."""
    version: str
    sha256: str
    """Hex digest of that source distribution."""


def read_upstream(file: Path) -> Upstream:
    """The pin in `file`: a line with the commit, a line with the package. Raises EngineBuildError when malformed."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise EngineBuildError(f"cannot read the upstream pin: {error}") from error
    stated = [line.strip() for line in lines if line.strip()]
    if len(stated) == 2 and (commit := _LLAMA_CPP.fullmatch(stated[0])) and (package := _PACKAGE.fullmatch(stated[1])):
        return Upstream(commit[1], package[1], package[2], package[3])
    raise EngineBuildError(
        f"{file}: expected the two lines 'llama.cpp COMMIT' and 'PACKAGE VERSION sha256=HEX', found {stated}"
    )
