"""llama-cpp-python bound to the engine's own libraries, and Ostinato's C interface (`ostinato.h`) beside it.

Serving never comes through here: this is how Python calibrates, verifies, replays and reads models in its own process.
The only module that imports `llama_cpp`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod import bindings_abi as abi
from ostinatod.bindings_abi import ABI_VERSION, BINDINGS_VERSION, LLAMA_CPP_COMMIT, check_abi
from ostinatod.bindings_values import (
    NEVER,
    DeviceStatus,
    PlacementOptions,
    ResidencyState,
    ResidencyStatus,
    RouteCounts,
    UploadCosts,
)
from ostinatod.errors import AbiMismatch, EngineError
from ostinatod.profiles.calibration import LayerTimes
from ostinatod.profiles.residency import ExpertLayout, Residency, hot_lists

__all__ = [
    "ABI_VERSION",
    "BINDINGS_VERSION",
    "EXPERT_TENSORS",
    "LLAMA_CPP_COMMIT",
    "NEVER",
    "Bindings",
    "DeviceStatus",
    "PlacementOptions",
    "ResidencyState",
    "ResidencyStatus",
    "RouteCounts",
    "UploadCosts",
    "check_abi",
    "load_bindings",
]

_LIBRARY_PATH_VARIABLE = "LLAMA_CPP_LIB_PATH"

_NO_PLACEMENT = PlacementOptions()

_LOG_LEVEL_ERROR = 4
"""GGML_LOG_LEVEL_ERROR"""
_LOG_LEVEL_CONTINUED = 5
"""GGML_LOG_LEVEL_CONT: of the line before"""

EXPERT_TENSORS = rb"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Names of the tensors that hold a layer's experts, as llama.cpp's --cpu-moe matches them."""

_RESIDENCY_STATES: tuple[ResidencyState, ...] = ("none", "applied", "refused")


class Bindings:
    """The bindings, checked against the libraries they were bound to. Make one with `load_bindings`."""

    def __init__(self, llama_cpp: ModuleType, library: ctypes.CDLL) -> None:
        self.llama_cpp: Any = llama_cpp
        self._library = library
        declare = abi.Declaration(library)
        self._set_count_routes = declare("ostinato_set_count_routes", None, ctypes.c_bool)
        self._last_error = declare("ostinato_last_error", ctypes.c_char_p)
        self._route_shape = declare(
            "ostinato_get_route_shape", ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(abi.RouteShape)
        )
        self._route_layers = declare(
            "ostinato_get_route_layers", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
        )
        self._set_borrowed = declare(
            "ostinato_set_borrowed",
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_size_t),
        )
        self._borrowed = declare(
            "ostinato_get_borrowed", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
        )
        self._set_residency = declare(
            "ostinato_set_residency", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
        )
        self._route_counts = declare(
            "ostinato_get_route_counts",
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_size_t,
        )
        self._configure = declare("ostinato_configure", ctypes.c_int, ctypes.POINTER(abi.Config))
        self._load_residency = declare("ostinato_load_residency", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
        self._parse_residency = declare(
            "ostinato_parse_residency",
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_void_p),
        )
        self._free_residency = declare("ostinato_free_residency", None, ctypes.c_void_p)
        self._describe_residency = declare("ostinato_describe_residency", abi.ResidencyFacts, ctypes.c_void_p)
        self._residency_layers = declare(
            "ostinato_get_residency_layers", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
        )
        self._residency_hot = declare(
            "ostinato_get_residency_hot", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
        )
        self._residency_status = declare(
            "ostinato_get_residency_status", ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(abi.ResidencyStatus)
        )

        listing = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t))
        self._device_status = declare("ostinato_get_device_status", ctypes.c_int, *listing)
        self._decode_times = declare("ostinato_get_decode_times", ctypes.c_int, *listing)
        self._upload_costs = declare(
            "ostinato_get_upload_costs",
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_size_t),
        )

    def start(self, takes: Callable[[str], bool] = lambda _: False) -> None:
        """Start llama.cpp's backends in this process. Of its log only errors go to stderr, but for pieces of text that
        `takes` is shown first and takes."""
        core = self.llama_cpp.llama_cpp
        line_level = 0

        def on_log(level: int, piece: bytes, _: object) -> None:
            nonlocal line_level
            if level != _LOG_LEVEL_CONTINUED:
                line_level = level
            text = piece.decode(errors="replace")
            if not takes(text) and line_level == _LOG_LEVEL_ERROR:
                sys.stderr.write(text)

        self._log_callback = core.llama_log_callback(on_log)  # lives as long as llama.cpp may call it
        core.llama_log_set(self._log_callback, None)
        core.llama_backend_init()

    def keep_in_host_memory(self, params: Any, patterns: Sequence[bytes] = (EXPERT_TENSORS,)) -> object:
        """Let a model that is loaded with `params` keep the tensors whose names match in plain host memory.

        Experts of layers on GPUs must be there to be placed. The result must live until the model is loaded.
        """
        ggml_cpu = ctypes.CDLL(str(next(Path(self._library._name).parent.glob("libggml-cpu.so*"))))
        ggml_cpu.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
        buffer_type = ggml_cpu.ggml_backend_cpu_buffer_type()
        overrides = [abi.BufferOverride(pattern, buffer_type) for pattern in patterns]
        array = (abi.BufferOverride * (len(overrides) + 1))(*overrides)  # the last one, empty, ends the list
        params.tensor_buft_overrides = ctypes.cast(array, ctypes.c_void_p)
        return array

    def count_routes(self, enabled: bool) -> None:
        """Count the routes of models that are loaded from now on."""
        self._set_count_routes(enabled)

    def route_counts(self, model: int) -> RouteCounts:
        """The counts of a loaded model, given its `llama_model *`.

        Raises EngineError with the library's reason when its routes are not counted.
        """
        shape = self._shape(model)
        layers = np.zeros(shape.n_layers, np.int32)
        self._check(self._route_layers(model, layers.ctypes.data, layers.size))
        phases = []
        for phase in (0, 1):
            counts = np.zeros((shape.n_layers, shape.n_experts), np.uint64)
            self._check(self._route_counts(model, phase, counts.ctypes.data, counts.size))
            phases.append(counts)
        return RouteCounts(layers, *phases)

    def _shape(self, model: int) -> abi.RouteShape:
        shape = abi.RouteShape()
        self._check(self._route_shape(model, ctypes.byref(shape)))
        return shape

    def set_residency(self, model: int, hot: NDArray[np.bool_]) -> None:
        """Make exactly the experts of `hot` (L, E) hot, between two passes.

        A model whose experts are not divided yet must not have a context. With layers on GPUs the set waits for the
        first context. Raises EngineError with the library's reason when the model cannot be placed that way.
        """
        flags = np.ascontiguousarray(hot, np.uint8)
        self._check(self._set_residency(model, flags.ctypes.data, flags.size))

    def set_borrowed(self, model: int, borrowing: NDArray[np.bool_]) -> int:
        """Lend staging memory to exactly the experts of `borrowing` (L, E) that are cold, between two passes and until
        a pass stages uploads; the engine lends none by itself from then on. Returns how many there was memory for.
        """
        flags, n_lent = np.ascontiguousarray(borrowing, np.uint8), ctypes.c_size_t()
        self._check(self._set_borrowed(model, flags.ctypes.data, flags.size, ctypes.byref(n_lent)))
        return n_lent.value

    def borrowed(self, model: int) -> NDArray[np.bool_]:
        """(L, E) the cold experts that the last pass found in borrowed memory. Call it between two passes."""
        shape = self._shape(model)
        flags = np.zeros((shape.n_layers, shape.n_experts), np.uint8)
        self._check(self._borrowed(model, flags.ctypes.data, flags.size))
        return flags.astype(np.bool_)

    def configure(
        self,
        *,
        fingerprint: str = "",
        residency_file: Path | None = None,
        placement: PlacementOptions = _NO_PLACEMENT,
    ) -> None:
        """Set what models loaded from now on are given: their fingerprint, and a residency file for the first it fits.

        A file that is refused leaves the model on the stock paths; `residency_status` has the reason. Raises
        EngineError for a fingerprint that is not 64 lowercase hex digits, or a file without one to compare it with.
        """
        file = None if residency_file is None else os.fsencode(residency_file)
        self._check(
            self._configure(ctypes.byref(abi.Config(fingerprint.encode(), file, *dataclasses.astuple(placement))))
        )

    def load_residency(self, model: int, path: Path) -> None:
        """Make exactly the experts of a residency file hot, as `set_residency` does.

        The model's fingerprint is the one configured when it was loaded. Raises EngineError with the library's reason
        where the file is not valid, or another model's, or the model cannot be placed that way. Nothing changes then.
        """
        self._check(self._load_residency(model, os.fsencode(path)))

    def parse_residency(self, data: bytes) -> Residency:
        """The residency set in the bytes of a file, as the engine reads it. Raises EngineError with its reason."""
        handle = ctypes.c_void_p()
        self._check(self._parse_residency(data, len(data), ctypes.byref(handle)))
        try:
            facts = self._describe_residency(handle)
            layers = np.zeros(facts.n_layers, np.int32)
            self._check(self._residency_layers(handle, layers.ctypes.data, layers.size))
            hot = np.zeros((facts.n_layers, facts.n_experts), np.bool_)
            self._check(self._residency_hot(handle, hot.ctypes.data, hot.size))
            return Residency(
                layout=ExpertLayout(facts.fingerprint.decode(), tuple(layers.tolist()), facts.n_experts),
                generation=facts.generation,
                created_at_s=facts.created_at_s,
                provenance=json.loads(facts.provenance),
                hot=hot_lists(hot),
            )
        finally:
            self._free_residency(handle)

    def residency_status(self, model: int) -> ResidencyStatus:
        """What the model of this `llama_model *` does with its experts."""
        status = abi.ResidencyStatus()
        self._check(self._residency_status(model, ctypes.byref(status)))
        reason = self._last_error().decode(errors="replace")
        return ResidencyStatus(
            _RESIDENCY_STATES[status.state], reason, status.generation, status.n_hot, status.pool_bytes
        )

    def device_status(self, model: int) -> list[DeviceStatus]:
        """The devices of a model whose experts are divided between two branches; none where they are not."""
        return [
            DeviceStatus(d.name.decode(), *(getattr(d, name) for name, _ in abi.DeviceStatus._fields_[1:]))
            for d in self._listed(self._device_status, model, abi.DeviceStatus)
        ]

    def decode_times(self, model: int) -> list[LayerTimes]:
        """What the CPU branch has taken for decode steps of one token, of each layer on a GPU."""
        return [
            LayerTimes(times.il, times.expert_bytes, tuple(times.steps), tuple(ns / 1e6 for ns in times.ns))
            for times in self._listed(self._decode_times, model, abi.DecodeTimes)
        ]

    def upload_costs(self, model: int, device: int) -> list[UploadCosts]:
        """What the choice of uploads of one device of `device_status` counts with by now, by ascending size of passes.

        Raises EngineError where there is no such device.
        """
        return [
            UploadCosts(*(getattr(costs, name) for name, _ in abi.LearnedCosts._fields_))
            for costs in self._listed(self._upload_costs, model, abi.LearnedCosts, device)
        ]

    def _listed(self, function: Any, model: int, structure: Any, *of: int) -> Any:
        """An array of all structures that a function of the library has for a model, or `of` a part of it.

        The library tells their number first.
        """
        found = ctypes.c_size_t()
        self._check(function(model, *of, None, 0, ctypes.byref(found)))
        items = (structure * found.value)()
        self._check(function(model, *of, items, found.value, ctypes.byref(found)))
        return items

    def _check(self, status: int) -> None:
        if status != 0:
            raise EngineError(self._last_error().decode(errors="replace"))


def load_bindings(library_directory: Path) -> Bindings:
    """The bindings over the libraries in `library_directory`; a process can bind to one directory only.

    Raises AbiMismatch when the package's version, the pinned commit's ABI or the size of a mirrored structure differs.
    """
    bound_to = os.environ.get(_LIBRARY_PATH_VARIABLE)
    if "llama_cpp" in sys.modules and bound_to != str(library_directory):
        raise AbiMismatch(f"llama_cpp is already bound to {bound_to}, expected {library_directory}")
    try:
        version = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError as error:
        raise AbiMismatch("the llama-cpp-python bindings are not installed", hint=abi.REBUILD) from error
    if version != BINDINGS_VERSION:
        raise AbiMismatch(f"expected llama-cpp-python {BINDINGS_VERSION}, found {version}", hint=abi.REBUILD)
    os.environ[_LIBRARY_PATH_VARIABLE] = str(library_directory)
    # A kernel that is loaded while another one waits for the CPU branch would wait for that one.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    try:
        llama_cpp = importlib.import_module("llama_cpp")
    except (OSError, RuntimeError, FileNotFoundError) as error:
        raise AbiMismatch(f"cannot load the libraries in {library_directory}: {error}", hint=abi.REBUILD) from error
    core: Any = importlib.import_module("llama_cpp.llama_cpp")
    library: ctypes.CDLL = core._lib
    check_abi(core, library)
    return Bindings(llama_cpp, library)
