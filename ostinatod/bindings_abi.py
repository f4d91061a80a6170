"""Ostinato's C interface (`ostinato.h`) as ctypes sees it: structures, declarations, and the check that a library is
the one that they mirror. `bindings` has the names that callers use.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ostinatod.errors import AbiMismatch

ABI_VERSION = 9
"""OSTINATO_ABI_VERSION of the header this module was written against."""

BINDINGS_VERSION = "0.3.36"
"""The llama-cpp-python release whose sdist the engine is built from."""

LLAMA_CPP_COMMIT = "0c1e57098"
"""The llama.cpp commit inside that sdist."""

REBUILD = "Run `ostinato engine build` to build the engine and its bindings anew."
"""The hint of every mismatch."""

# ostinato_struct ids, in the order of the header, with the class that mirrors each.
_MIRRORED_STRUCTS = ("llama_model_params", "llama_context_params", "llama_batch")


class RouteShape(ctypes.Structure):
    _fields_ = (("n_layers", ctypes.c_int32), ("n_experts", ctypes.c_int32))


class Config(ctypes.Structure):
    _fields_ = (
        ("fingerprint", ctypes.c_char_p),
        ("residency_file", ctypes.c_char_p),
        ("two_branches", ctypes.c_bool),
        ("pool_bytes", ctypes.c_uint64),
        ("margin_bytes", ctypes.c_uint64),
        ("pin_bytes", ctypes.c_uint64),
        ("n_threads", ctypes.c_int32),
        ("timeout_ms", ctypes.c_uint32),
        ("upload_tokens", ctypes.c_uint32),
        ("upload_all_tokens", ctypes.c_uint32),
        ("link_percent", ctypes.c_int32),
        ("borrow_percent", ctypes.c_int32),
        ("prefetch_us", ctypes.c_int32),
        ("staging_experts", ctypes.c_int32),
        ("copy_blocks", ctypes.c_int32),
    )


class BufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override"""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class DeviceStatus(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 32),
        ("is_gpu", ctypes.c_bool),
        ("pool_capacity", ctypes.c_uint64),
        ("pool_used", ctypes.c_uint64),
        ("n_published", ctypes.c_uint64),
        ("n_cold", ctypes.c_uint64),
        ("waited_ns", ctypes.c_uint64),
        ("n_cpu", ctypes.c_uint64),
        ("cpu_busy_ns", ctypes.c_uint64),
        ("n_uploaded", ctypes.c_uint64),
        ("uploaded_bytes", ctypes.c_uint64),
        ("staging_bytes", ctypes.c_uint64),
        ("cpu_row_bytes_per_s", ctypes.c_double),
        ("cpu_rows_bytes_per_s", ctypes.c_double),
        ("link_bytes_per_s", ctypes.c_double),
        ("n_linked", ctypes.c_uint64),
        ("link_columns", ctypes.c_int32),
        ("hidden_columns", ctypes.c_int32),
        ("borrowed_bytes", ctypes.c_uint64),
        ("n_borrowed", ctypes.c_uint64),
        ("graph_captures", ctypes.c_uint64),
        ("graph_replays", ctypes.c_uint64),
        ("direct_passes", ctypes.c_uint64),
        ("n_prefetched", ctypes.c_uint64),
        ("n_foreseen", ctypes.c_uint64),
        ("decode_waited_ns", ctypes.c_uint64),
        ("decode_busy_ns", ctypes.c_uint64),
        ("pool_room", ctypes.c_uint64),
        ("in_place_bytes_per_s", ctypes.c_double),
        ("pool_unlearned", ctypes.c_uint64),
    )


TIMED_COLD_ROUTES = 16
"""OSTINATO_TIMED_COLD_ROUTES"""


class DecodeTimes(ctypes.Structure):
    _fields_ = (
        ("il", ctypes.c_int32),
        ("expert_bytes", ctypes.c_int64),
        ("steps", ctypes.c_uint64 * TIMED_COLD_ROUTES),
        ("ns", ctypes.c_uint64 * TIMED_COLD_ROUTES),
    )


class LearnedCosts(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int64),
        ("link_bytes_per_s", ctypes.c_double),
        ("hot_s", ctypes.c_double),
        ("chain_s", ctypes.c_double),
        ("cpu", ctypes.c_double),
        ("cpu_alone", ctypes.c_double),
    )


class ResidencyFacts(ctypes.Structure):
    _fields_ = (
        ("fingerprint", ctypes.c_char_p),
        ("provenance", ctypes.c_char_p),
        ("generation", ctypes.c_uint64),
        ("created_at_s", ctypes.c_uint64),
        ("n_hot", ctypes.c_uint64),
        ("n_layers", ctypes.c_int32),
        ("n_experts", ctypes.c_int32),
    )


class ResidencyStatus(ctypes.Structure):
    _fields_ = (
        ("state", ctypes.c_int),
        ("generation", ctypes.c_uint64),
        ("n_hot", ctypes.c_uint64),
        ("pool_bytes", ctypes.c_uint64),
    )


class Declaration:
    """Sets argument and result types of a function of the library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __call__(self, name: str, restype: Any, *argtypes: Any) -> Any:
        function = getattr(self._library, name)
        function.restype = restype
        function.argtypes = list(argtypes)
        return function


def check_abi(core: Any, library: Any) -> None:
    """Compares the library's ABI version, commit and structure sizes with ours and the ctypes mirrors in `core`.

    Raises AbiMismatch with what was expected and found.
    """
    try:
        found = library.ostinato_abi_version()
    except AttributeError as error:
        raise AbiMismatch("the library carries no Ostinato interface", hint=REBUILD) from error
    if found != ABI_VERSION:
        raise AbiMismatch(f"expected ABI version {ABI_VERSION}, found {found}", hint=REBUILD)
    commit_of = library.ostinato_llama_commit
    commit_of.restype = ctypes.c_char_p
    commit = commit_of().decode()
    if commit != LLAMA_CPP_COMMIT:
        raise AbiMismatch(f"expected llama.cpp {LLAMA_CPP_COMMIT}, the library is {commit}", hint=REBUILD)
    sizeof = library.ostinato_sizeof
    sizeof.restype = ctypes.c_size_t
    for number, name in enumerate(_MIRRORED_STRUCTS):
        expected, size = ctypes.sizeof(getattr(core, name)), sizeof(number)
        if size != expected:
            raise AbiMismatch(f"{name}: expected {expected} bytes, the library has {size}", hint=REBUILD)
