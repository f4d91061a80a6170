"""The pinned source: fetched by pip, checked by hash, unpacked without trusting the archive's paths.

pip does the fetching so that the user's index, proxy and certificate settings hold. It gets the hash too, and refuses
other bytes before it runs any of their code; its metadata step for source distributions cannot be turned off and costs
a few seconds.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from ostinatod.errors import EngineBuildError
from ostinatod.installer.build_progress import BuildProgress, Report
from ostinatod.installer.child_process import run_logged
from ostinatod.installer.ninja_progress import first_errors
from ostinatod.installer.upstream import Upstream

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_LLAMA_CPP = ("vendor", "llama.cpp")
_UNNEEDED = {".devops", ".github", "benches", "docs", "gguf-py", "media"}
"""Folders of llama.cpp that no build target reads: 80 MB of tables, pictures and history."""


def unpack_pinned(root: Path, upstream: Upstream, sdist: Path | None, log: Path, report: Report) -> Path:
    """The pinned llama.cpp below `root`, unpatched, fetched and unpacked unless it is there.

    sdist  the source distribution as a file, instead of fetching it into `root`/downloads
    Raises EngineBuildError.
    """
    pristine = root / f"source-{upstream.sha256[:12]}"
    if not pristine.is_dir():
        archive = sdist or fetch_sdist(upstream, root / "downloads", log, report)
        check_sdist(archive, upstream)
        report(BuildProgress("unpack", 0, 1, archive.name))
        n_files = unpack_llama_cpp(archive, pristine)
        report(BuildProgress("unpack", 1, 1, f"{n_files} files"))
    return pristine


def fetch_sdist(upstream: Upstream, directory: Path, log: Path, report: Report) -> Path:
    """The source distribution of `upstream` in `directory`, downloaded unless it is there already.

    Raises EngineBuildError when pip cannot get it or its hash is not the pinned one.
    """
    name = f"{re.sub(r'[-_.]+', '_', upstream.package)}-{upstream.version}.tar.gz"
    target = directory / name
    if target.is_file() and _sha256(target) == upstream.sha256:
        return target
    directory.mkdir(parents=True, exist_ok=True)
    report(BuildProgress("download", 0, 0, name))
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        requirements = Path(scratch, "requirements.txt")
        requirements.write_text(
            f"{upstream.package}=={upstream.version} --hash=sha256:{upstream.sha256}\n", encoding="utf-8"
        )
        fetched = Path(scratch, "fetched")
        _pip_download(upstream.package, requirements, fetched, name, log, report)
        archives = list(fetched.glob("*.tar.gz"))
        if len(archives) != 1:
            raise EngineBuildError(f"expected pip to fetch {name}, found {[file.name for file in archives]}")
        check_sdist(archives[0], upstream)
        archives[0].replace(target)
    report(BuildProgress("download", 1, 1, name))
    return target


def check_sdist(file: Path, upstream: Upstream) -> None:
    """Raises EngineBuildError unless `file` has the pinned hash."""
    found = _sha256(file)
    if found != upstream.sha256:
        raise EngineBuildError(f"{file} is not the pinned source: expected SHA-256 {upstream.sha256}, found {found}")


def _pip_download(package: str, requirements: Path, fetched: Path, name: str, log: Path, report: Report) -> None:
    lines: list[str] = []

    def follow(line: str) -> None:
        lines.append(line)
        if match := _PROGRESS.match(line):
            # The last byte is not the end of the step: pip still prepares metadata.
            report(BuildProgress("download", min(int(match[1]), int(match[2]) - 1), int(match[2]), name))

    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", package, "--require-hashes",
        "--requirement", str(requirements), "--dest", str(fetched), "--progress-bar", _progress_bar(),
    ]  # fmt: skip
    if run_logged(command, log, follow) != 0:
        text = "\n".join(first_errors(line for line in lines if not line.startswith("WARNING")))
        raise EngineBuildError(
            f"pip could not fetch the engine's source {name}:\n{text}\nThe whole output is in {log}",
            hint="check the network and pip's index settings, then run `ostinato engine build`; without a network, "
            "run `python3 installer --sdist FILE` in the checkout",
        )


def _progress_bar() -> str:
    """The machine-readable progress that pip has since 24.1, else none."""
    try:
        major, minor = importlib.metadata.version("pip").split(".")[:2]
    except importlib.metadata.PackageNotFoundError as error:
        raise EngineBuildError(
            f"pip is missing in {sys.prefix}", hint=f"run `{sys.executable} -m ensurepip`, then `ostinato engine build`"
        ) from error
    return "raw" if (int(major), int(re.sub(r"\D.*", "", minor))) >= (24, 1) else "off"


def unpack_llama_cpp(sdist: Path, target: Path) -> int:
    """Unpacks what a build needs of the llama.cpp tree in `sdist` into `target`, and returns the number of files.

    `target` appears only when complete. Raises EngineBuildError for an entry that would leave `target`, for links and
    devices among the wanted entries, and when there is no such tree.
    """
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    n_files = 0
    try:
        with tarfile.open(sdist, "r:gz") as archive:
            for member in archive:
                relative = _wanted(member, sdist)
                if relative is not None:
                    _extract(archive, member, partial / relative)
                    n_files += 1
    except (tarfile.TarError, EOFError, OSError) as error:
        raise EngineBuildError(f"cannot unpack {sdist}: {error}") from error
    if n_files == 0:
        raise EngineBuildError(f"expected {'/'.join(_LLAMA_CPP)} in {sdist}, found no such folder")
    partial.rename(target)
    return n_files


def _wanted(member: tarfile.TarInfo, sdist: Path) -> PurePosixPath | None:
    """Path below llama.cpp of a file to unpack, or None for an entry to skip."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name:
        raise EngineBuildError(f"{sdist}: refused the entry {member.name!r}, which leaves the archive's folder")
    relative = path.parts[3:]
    if path.parts[1:3] != _LLAMA_CPP or member.isdir() or not relative:
        return None
    if relative[0] in _UNNEEDED or relative[0] == ".git" or (relative[0] == "models" and path.suffix == ".gguf"):
        return None
    if not member.isreg():
        raise EngineBuildError(f"{sdist}: refused the entry {member.name!r}, which is not an ordinary file")
    return PurePosixPath(*relative)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, file: Path) -> None:
    content = archive.extractfile(member)
    if content is None:
        raise tarfile.ExtractError(f"{member.name} has no content")
    file.parent.mkdir(parents=True, exist_ok=True)
    with content, file.open("wb") as out:
        shutil.copyfileobj(content, out)
    file.chmod(0o755 if member.mode & 0o100 else 0o644)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
