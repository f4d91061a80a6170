"""All checks of this machine, in the order in which a fault in one explains faults in those after it."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path

import psutil

from ostinatod import __version__, locations
from ostinatod.client import DaemonClient
from ostinatod.config import Settings
from ostinatod.doctor import (
    daemon_checks,
    engine_checks,
    gpu_checks,
    hub_checks,
    machine_checks,
    nvidia,
    place_checks,
    python_checks,
    service_checks,
)
from ostinatod.doctor.findings import Finding, problem
from ostinatod.installer.build_cache import EngineBuild
from ostinatod.installer.cuda_probe import find_cuda_compiler, gpu_architectures
from ostinatod.installer.engine_build import find_engine, is_up_to_date, kernels_patch_dir
from ostinatod.installer.toolchain import find_toolchain
from ostinatod.installer.upstream import read_upstream
from ostinatod.keys import key_for
from ostinatod.listeners import listener_on
from ostinatod.service.host import find_host


def examine(load_settings: Callable[[], Settings]) -> Iterator[Finding]:
    """Every finding, each as soon as it is known. Never raises: a check that fails is a finding of its own."""
    for name, look in _Machine(load_settings).checks():
        yield _made(name, look)


def _made(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except Exception as error:
        return problem(
            name,
            f"this could not be checked: {type(error).__name__}: {error}",
            "In the checkout: python3 installer. If that does not help, report this line",
        )


class _Machine:
    """What several checks look at, each asked for once and only when it is needed."""

    def __init__(self, load_settings: Callable[[], Settings]) -> None:
        self._load_settings = load_settings
        self._environment = dict(os.environ)

    @cached_property
    def _build(self) -> EngineBuild | None:
        return engine_checks.find_build(find_engine)

    @cached_property
    def _driver(self) -> nvidia.Driver | None:
        return nvidia.ask_driver()

    @cached_property
    def _settings(self) -> tuple[Settings, Finding]:
        return daemon_checks.read_settings(self._load_settings)

    @cached_property
    def _daemon(self) -> tuple[Finding, bool]:
        base_url = self._settings[0].base_url
        with DaemonClient(base_url, api_key=key_for(base_url)) as client:
            return daemon_checks.check_daemon(client, __version__)

    def checks(self) -> tuple[tuple[str, Callable[[], Finding]], ...]:
        """Name and check, in order."""
        return (
            ("python", lambda: python_checks.check_python(sys.version_info[:3], sys.executable)),
            ("environment", lambda: python_checks.check_environment(Path(sys.prefix), Path(sys.base_prefix))),
            ("packages", python_checks.check_packages),
            ("engine", self._engine),
            ("compiler", lambda: engine_checks.check_compiler(find_toolchain, self._build)),
            ("bindings", lambda: engine_checks.check_bindings(read_upstream(kernels_patch_dir() / "UPSTREAM"))),
            ("driver", lambda: gpu_checks.check_driver(self._driver)),
            ("gpu", self._gpu),
            ("cuda", self._cuda),
            ("memory-lock", self._memory_lock),
            ("disk-cache", partial(_disk, "disk-cache", locations.engine_cache_dir, *_BUILD_ROOM)),
            ("disk-data", partial(_disk, "disk-data", locations.data_dir, *_DATA_ROOM)),
            ("disk-models", partial(_disk, "disk-models", locations.hub_cache_dir, *_MODEL_ROOM)),
            ("terminal", self._terminal),
            ("settings", lambda: self._settings[1]),
            ("runtime-dir", lambda: place_checks.check_runtime_dir(locations.runtime_dir(), os.getuid())),
            ("leftovers", _leftovers),
            ("database", partial(_database, "database", locations.database_file, *_MODELS)),
            ("routing-log", partial(_database, "routing-log", locations.routing_log_file, _SESSIONS_LOST)),
            ("learning", partial(_database, "learning", locations.learning_file, _HISTORY_LOST)),
            ("daemon", lambda: self._daemon[0]),
            ("port", self._port),
            ("service", lambda: service_checks.check_service(find_host(self._environment).state())),
            ("hub", self._hub),
        )

    def _engine(self) -> Finding:
        up_to_date = self._build is not None and is_up_to_date(self._build)
        return engine_checks.check_engine(self._build, up_to_date=up_to_date, environment=self._environment)

    def _gpu(self) -> Finding:
        backend = self._build.backend if self._build else None
        return gpu_checks.check_gpu(self._driver, nvidia.gpus_on_bus(), backend, self._environment)

    def _cuda(self) -> Finding:
        if self._driver is None or not self._driver.gpus:
            return gpu_checks.check_cuda(None, None, ())
        return gpu_checks.check_cuda(self._driver, find_cuda_compiler(), gpu_architectures())

    def _memory_lock(self) -> Finding:
        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        has_gpus = self._driver is not None and bool(self._driver.gpus)
        wanted = has_gpus or "--mlock" in self._settings[0].engine_args
        return machine_checks.check_memory_lock(soft, hard, psutil.virtual_memory().total, wanted=wanted)

    def _terminal(self) -> Finding:
        is_terminal = sys.stdout.isatty()
        return machine_checks.check_terminal(
            self._environment,
            is_terminal=is_terminal,
            encoding=sys.stdout.encoding,
            size=shutil.get_terminal_size() if is_terminal else None,
        )

    def _port(self) -> Finding:
        return daemon_checks.check_port(self._settings[0], listener_on, daemon_answers=self._daemon[1])

    def _hub(self) -> Finding:
        return hub_checks.check_hub(self._settings[0].hub_endpoint, self._environment, Path.home())


_BUILD_ROOM = (machine_checks.ENGINE_BUILD_BYTES, "an engine build", "OSTINATO_ENGINE_CACHE")
_DATA_ROOM = (machine_checks.DATA_BYTES, "the database", "OSTINATO_HOME")
_MODELS = ("models are registered again by pull", "models")
_SESSIONS_LOST = "what was learnt from sessions so far is lost"
_HISTORY_LOST = "the history of hot experts is lost"
_MODEL_ROOM = (machine_checks.DOWNLOAD_BYTES, "a model", "HF_HUB_CACHE")


def _disk(check: str, find_directory: Callable[[], Path], needed_bytes: int, purpose: str, move: str) -> Finding:
    return machine_checks.check_disk(check, find_directory(), needed_bytes, purpose, move)


def _database(check: str, find_file: Callable[[], Path], consequence: str, table: str | None = None) -> Finding:
    return place_checks.check_database(check, find_file(), consequence, table)


def _leftovers() -> Finding:
    return place_checks.check_leftovers(locations.runtime_dir(), locations.pid_file(), psutil.pid_exists)
