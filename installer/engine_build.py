"""Building the engine from the pinned source, and finding the result.

A build is native to this machine and kept under the digest of everything that decides its bytes, so that asking for
one that exists costs nothing. Objects stay in a work directory: a failed build resumes, a changed overlay recompiles
only what depends on it.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import ostinatod.kernels_patch
from ostinatod import locations
from ostinatod.errors import EngineBuildError
from ostinatod.installer import cuda_probe
from ostinatod.installer.backend_choice import BackendChoice, BackendRequest, choose_backend
from ostinatod.installer.build_cache import BUILD_COMMAND, SERVER_NAME, BuildCache, EngineBuild
from ostinatod.installer.build_digest import digest_of, sources_digest
from ostinatod.installer.build_progress import BuildProgress, Report
from ostinatod.installer.cmake_build import compile_targets, configure
from ostinatod.installer.job_count import default_jobs
from ostinatod.installer.patch_series import read_series, update_patched_tree
from ostinatod.installer.source_fetch import unpack_pinned
from ostinatod.installer.toolchain import Toolchain, cpu_identity, find_toolchain
from ostinatod.installer.upstream import Upstream, read_upstream

__all__ = ["BuildProgress", "EngineBuild", "build_engine", "find_engine", "is_up_to_date", "kernels_patch_dir"]

TARGETS = ("ostinato-engine", "llama-server", "llama-bench")


def kernels_patch_dir() -> Path:
    """The folder with the pin, the patches and the overlay that belong to this installation."""
    return Path(ostinatod.kernels_patch.__file__).resolve().parent


def find_engine() -> EngineBuild:
    """The engine build in use. Raises EngineNotBuilt."""
    return BuildCache(locations.engine_cache_dir()).current()


def is_up_to_date(build: EngineBuild, sources: Path | None = None) -> bool:
    """Whether `build` was made from the pin, patches and overlay as they are now."""
    return build.sources_digest == sources_digest(sources or kernels_patch_dir())


def build_engine(
    backend: BackendRequest = "auto",
    jobs: int | None = None,
    report: Report | None = None,
    *,
    cuda_arch: str | None = None,
    sdist: Path | None = None,
    sources: Path | None = None,
) -> EngineBuild:
    """The engine for this machine, built unless that very build exists, and made the current one.

    backend    "auto" takes CUDA when a GPU and nvcc are present, else the CPU
    jobs       compilers at once; None lets cores and memory decide
    report     is called with every step of the work, from this thread
    cuda_arch  compute capabilities to compile for instead of those of the GPUs present, such as "89" or "86;89"
    sdist      the pinned source distribution as a file, for machines without a network
    sources    the folder with the pin, the patches and the overlay; None is the installed one
    Raises EngineBuildError; running it again then goes on from where it stopped.
    """
    tell = report or _ignore
    plan = _plan((sources or kernels_patch_dir()).resolve(), backend, cuda_arch)
    cache = BuildCache(locations.engine_cache_dir())
    with cache.locked(lambda: tell(BuildProgress("configure", 0, 0, "waiting for another build to end"))):
        build = cache.find(plan.digest)
        if build is None:
            build = _build(cache, plan, jobs or default_jobs(), sdist, tell)
        cache.make_current(build)
    return build


@dataclass(frozen=True, slots=True)
class _Plan:
    upstream: Upstream
    sources: Path
    sources_digest: str
    choice: BackendChoice
    toolchain: Toolchain
    definitions: tuple[str, ...]
    digest: str
    work_key: str
    """Names the work directory: everything but the patches and the overlay, whose changes it absorbs."""
    starts_here: bool
    """Whether this machine has what the engine needs to start."""


def _plan(sources: Path, backend: BackendRequest, cuda_arch: str | None) -> _Plan:
    upstream = read_upstream(sources / "UPSTREAM")
    compiler = cuda_probe.find_cuda_compiler() if backend != "cpu" else None
    gpus = cuda_probe.gpu_architectures() if backend != "cpu" else ()
    choice = choose_backend(backend, compiler, gpus, cuda_arch)
    toolchain = find_toolchain()
    definitions = ["CMAKE_BUILD_TYPE=Release", f"GGML_CUDA={'ON' if choice.backend == 'cuda' else 'OFF'}"]
    identity = [*toolchain.identity, *cpu_identity()]
    if choice.backend == "cuda" and compiler is not None:
        definitions.append(f"CMAKE_CUDA_ARCHITECTURES={';'.join(choice.architectures)}")
        identity.append(f"CUDA {compiler.version}")
        if not compiler.on_path:
            definitions.append(f"CMAKE_CUDA_COMPILER={compiler.path}")
            definitions.append(f"CUDAToolkit_ROOT={compiler.path.parent.parent}")
    content = sources_digest(sources)
    tools = [str(sources), str(toolchain.cmake), str(toolchain.ninja), str(toolchain.launcher)]
    return _Plan(
        upstream=upstream,
        sources=sources,
        sources_digest=content,
        choice=choice,
        toolchain=toolchain,
        definitions=tuple(definitions),
        digest=digest_of(content, *definitions, *identity),
        work_key=digest_of(upstream.sha256, *tools, *definitions, *identity)[:12],
        starts_here=choice.backend == "cpu" or bool(gpus),
    )


def _build(cache: BuildCache, plan: _Plan, jobs: int, sdist: Path | None, report: Report) -> EngineBuild:
    log = locations.log_dir() / f"engine-build-{plan.digest[:12]}.log"
    pristine = unpack_pinned(cache.root, plan.upstream, sdist, log, report)
    work = cache.root / f"work-{plan.work_key}"
    work.mkdir(parents=True, exist_ok=True)
    patched = _patched_source(plan, pristine, work, report)

    where = f"{plan.choice.backend}: {plan.choice.reason}"
    report(BuildProgress("configure", 0, 1, where))
    languages = ("C", "CXX", "CUDA") if plan.choice.backend == "cuda" else ("C", "CXX")
    launchers = plan.toolchain.launcher_definitions(*languages)
    definitions = [f"OSTINATO_LLAMA_CPP={patched}", *plan.definitions, *launchers]
    configure(plan.sources, work / "build", plan.toolchain, definitions, log)
    report(BuildProgress("configure", 1, 1, where))

    report(BuildProgress("compile", 0, 0, f"{jobs} at once"))
    compile_targets(work / "build", plan.toolchain, TARGETS, jobs, log, report)
    report(BuildProgress("compile", 1, 1, "complete"))

    report(BuildProgress("install", 0, 1, plan.digest[:12]))
    binaries = work / "build" / "bin"
    if plan.starts_here:
        _check_start(binaries / SERVER_NAME)
    note = {
        "backend": plan.choice.backend,
        "llama_cpp_commit": plan.upstream.llama_cpp_commit,
        "sources_digest": plan.sources_digest,
        "definitions": plan.definitions,
        "toolchain": plan.toolchain.identity,
        "built_at": int(time.time()),
    }
    build = cache.install(binaries, plan.digest, note)
    cache.prune(build, pristine, work)
    report(BuildProgress("install", 1, 1, str(build.directory)))
    return build


def _patched_source(plan: _Plan, pristine: Path, work: Path, report: Report) -> Path:
    diffs = read_series(plan.sources / "patches")
    report(BuildProgress("patch", 0, 1, f"{len({diff.patch for diff in diffs})} patches"))
    patched = work / "llama.cpp"
    try:
        n_written = update_patched_tree(pristine, patched, diffs)
    except EngineBuildError as error:
        raise EngineBuildError(
            f"{error.message}\nThe source is llama.cpp {plan.upstream.llama_cpp_commit} in {pristine}",
            hint=f"mend the patch in {plan.sources / 'patches'}, then run `{BUILD_COMMAND}`",
        ) from error
    report(BuildProgress("patch", 1, 1, f"{len({diff.path for diff in diffs})} files patched, {n_written} changed"))
    return patched


def _check_start(server: Path) -> None:
    """Raises EngineBuildError when the compiled engine cannot even tell its version, such as for a missing library."""
    try:
        done = subprocess.run([server, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineBuildError(f"the engine was compiled but does not start: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise EngineBuildError(f"the engine was compiled but does not start: {said}")


def _ignore(progress: BuildProgress) -> None:
    """Takes the reports of a caller that wants none."""
