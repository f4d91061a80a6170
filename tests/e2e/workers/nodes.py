"""What an evaluation callback can read of a graph's nodes, and of the mailbox between a GPU and the CPU branch."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPERATOR_TAG = 0x54534F4F
"""OSTINATO_OP_TAG; the next constants are indices into op_params, and operators, of overlay/ostinato/ops.h."""
TAG, OPERATOR, MAILBOX = 8, 9, 14
PUBLISH, JOIN = 1, 2

_SEQUENCE, _ANSWER = 0, 64
"""Bytes into ostinato_request."""


class Tensor(ctypes.Structure):
    """A ggml_tensor up to its parameters."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
    )

    @property
    def operator(self) -> int:
        """Which of our operators it is, 0 for any other node."""
        return int(self.op_params[OPERATOR]) if self.op_params[TAG] == OPERATOR_TAG else 0

    @property
    def request(self) -> int | None:
        """The address of the mailbox's request; None for an operator without a mailbox, on a CPU."""
        mailbox = ctypes.c_uint64.from_buffer(self.op_params, 4 * MAILBOX).value
        return ctypes.c_uint64.from_address(mailbox).value if mailbox else None


class Graph:
    """Names and contents of the nodes that a callback is shown."""

    def __init__(self, libraries: Path) -> None:
        base = ctypes.CDLL(str(next(libraries.glob("libggml-base.*"))))
        self._name = base.ggml_get_name
        self._name.restype = ctypes.c_char_p
        self._name.argtypes = [ctypes.c_void_p]
        self._get = base.ggml_backend_tensor_get
        self._get.restype = None
        self._get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

    def name(self, node: int) -> str:
        """The node's name."""
        return bytes(self._name(node)).decode()

    def ids(self, node: int) -> NDArray[np.int32]:
        """(n_tokens, k) of an i32 node, which may be strided."""
        head = Tensor.from_address(node)
        ids = np.zeros((head.ne[1], head.ne[0]), np.int32)
        for token in range(head.ne[1]):
            row = ids[token]
            self._get(node, row.ctypes.data, token * head.nb[1], row.nbytes)
        return ids


def synchronous(on_wait: Callable[[], None], limit_s: float = 30.0) -> Callable[[int, bool, object], bool]:
    """An evaluation callback that lets nothing overlap.

    The scheduler computes up to PUBLISH and waits for the device; the callback waits for the CPU branch's answer, if
    one was asked for; only then does the rest of the layer start. `on_wait` is called for every answer.
    """

    def on_node(node: int, ask: bool, _: object) -> bool:
        head: Any = Tensor.from_address(node)
        if ask:
            return head.operator in (PUBLISH, JOIN)
        if head.operator != PUBLISH or not (request := head.request):
            return True
        sequence = ctypes.c_uint32.from_address(request + _SEQUENCE)
        answer = ctypes.c_uint32.from_address(request + _ANSWER)
        ends_at = time.monotonic() + limit_s
        while answer.value != sequence.value:
            if time.monotonic() > ends_at:
                return False
        on_wait()
        return True

    return on_node
