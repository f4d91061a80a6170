"""Settings of the engine that are compared: where experts are, how the file is read, from when experts are uploaded.

Candidates are tried on development sessions, and the best of each kind is timed on held-out ones (paper 4.1).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from ostinatod.bindings import NEVER
from ostinatod.errors import RequestError
from ostinatod.profiles.experts import ModelExperts

SettingKind = Literal["stock", "ostinato"]
LoadMode = Literal["mmap", "none"]

UPLOADS_VARIABLE = "GGML_OP_OFFLOAD_MIN_BATCH"
"""llama.cpp's own: tokens of a pass from which experts in host memory are computed on the GPU."""

STOCK_MIN_BATCHES = (32, 512)
"""llama.cpp's default, and the threshold that the paper's baselines were given."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run a model. Zero and None stand for the engine's own choice.

    cpu_layers   stock: the first so many layers keep their experts in host memory
    cpu_layer_ids  stock: these layers do, in place of the first ones
    tensor_split   shares of the layers of each GPU
    load_mode    "mmap", or "none": read into page-locked memory
    min_batch    stock: tokens from which experts are uploaded
    repacked     stock: host memory in the CPU's own layouts, which are quicker to compute and cannot be uploaded
    threads      of the CPU, those of the CPU branch for ostinato on a GPU
    borrow       `borrow_percent`
    others       see `bindings.PlacementOptions`
    """

    name: str
    kind: SettingKind
    cpu_layers: int = 0
    load_mode: LoadMode = "mmap"
    min_batch: int | None = None
    repacked: bool = False
    threads: int = 0
    pool_bytes: int = 0
    pin_bytes: int = 0
    timeout_ms: int = 5000
    upload_tokens: int = 0
    upload_all_tokens: int = 0
    link_percent: int = 0
    borrow: int = 0
    prefetch_us: int = 0
    staging_experts: int = 0
    copy_blocks: int = 0
    cpu_layer_ids: Sequence[int] = ()
    tensor_split: Sequence[float] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def layers_on_cpu(self) -> tuple[int, ...]:
        """Stock: the layers whose experts are in host memory."""
        return tuple(self.cpu_layer_ids) or tuple(range(self.cpu_layers))

    def process_environment(self) -> dict[str, str]:
        """The environment of the process that runs it."""
        own = {name: value for name, value in os.environ.items() if name != "LLAMA_CPP_LIB_PATH"}
        # Kernels that are loaded at first use would be counted to the turn that uses them first.
        own["CUDA_MODULE_LOADING"] = "EAGER"
        if self.min_batch is not None:
            own[UPLOADS_VARIABLE] = str(self.min_batch)
        return {**own, **self.environment}


def as_json(setting: Setting) -> dict[str, Any]:
    """For files and other processes."""
    return asdict(setting)


def from_json(values: Mapping[str, Any]) -> Setting:
    """The setting that `as_json` wrote, or a user. Raises RequestError for keys and values that are none."""
    known = {item.name for item in fields(Setting)}
    if unknown := sorted(set(values) - known):
        raise RequestError(f"unknown in a setting: {', '.join(unknown)}", hint=f"Known are {', '.join(sorted(known))}")
    if not isinstance(values.get("name"), str) or values.get("kind") not in ("stock", "ostinato"):
        raise RequestError(f"expected a setting with a name and kind stock or ostinato, found {dict(values)!r}")
    if values.get("load_mode", "mmap") not in ("mmap", "none"):
        raise RequestError(f"expected load_mode mmap or none, found {values['load_mode']!r}")
    for key, value in values.items():
        if wanted := _unlike(key, value):
            raise RequestError(f"{key} of {values['name']}: expected {wanted}, found {value!r}")
    lists = {name: tuple(values.get(name, ())) for name in ("cpu_layer_ids", "tensor_split")}
    return Setting(**{**values, **lists})


def _unlike(key: str, value: Any) -> str:
    """What the member of a setting has to be where `value` is not that, else empty."""
    if key in ("name", "kind", "load_mode") or (key, value) == ("min_batch", None):
        return ""
    if key == "repacked":
        return "" if isinstance(value, bool) else "true or false"
    if key in ("cpu_layer_ids", "tensor_split"):
        is_list = isinstance(value, (list, tuple)) and all(isinstance(item, (int, float)) for item in value)
        return "" if is_list else "a list of numbers"
    if key == "environment":
        is_text = isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
        return "" if is_text else "names with text"
    return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number"


def cpu_layers_for(experts: ModelExperts, pool_bytes: int) -> int:
    """The smallest N of --n-cpu-moe that leaves no more than `pool_bytes` of experts on GPUs."""
    left = sum(size * count for size, count in zip(experts.expert_bytes, experts.n_experts, strict=True))
    if left <= pool_bytes:
        return 0
    for layer, size, count in zip(experts.layers, experts.expert_bytes, experts.n_experts, strict=True):
        left -= size * count
        if left <= pool_bytes:
            return layer + 1
    return experts.layers[-1] + 1


def stock_bytes(experts: ModelExperts, setting: Setting) -> int:
    """Bytes of experts that a stock setting has on GPUs."""
    layers = zip(experts.layers, experts.expert_bytes, experts.n_experts, strict=True)
    return sum(size * count for layer, size, count in layers if layer not in setting.layers_on_cpu)


def stock_candidates(cpu_layers: int, threads: int, *, on_gpu: bool) -> list[Setting]:
    """llama.cpp's whole layers, page-locked and memory-mapped, at both thresholds where there is a GPU to upload to."""
    if not on_gpu:
        return [Setting(f"stock {mode}", "stock", load_mode=mode, threads=threads) for mode in ("mmap", "none")]
    uploading = [
        Setting(f"stock {mode}, uploads from {batch}", "stock", cpu_layers, mode, batch, threads=threads)
        for mode in ("none", "mmap")
        for batch in STOCK_MIN_BATCHES
    ]
    repacked = Setting("stock none, repacked", "stock", cpu_layers, "none", repacked=True, threads=threads)
    # What most machines are fastest with comes first: there may be no time for the others.
    return [uploading[0], repacked, *uploading[1:]]


def ostinato_candidates(threads: int, uploads: Sequence[int]) -> list[Setting]:
    """Hot experts in the pool, with each of these upload thresholds: 0 for the engine's own, NEVER for none."""
    names = {0: "ostinato", NEVER: "ostinato, no uploads"}
    return [
        Setting(
            names.get(tokens, f"ostinato, uploads from {tokens}"), "ostinato", threads=threads, upload_tokens=tokens
        )
        for tokens in uploads
    ]


def upload_thresholds(text: str) -> tuple[int, ...]:
    """Thresholds from a list such as "auto,never,512". Raises RequestError for anything else."""
    words = {"auto": 0, "never": NEVER}
    found = []
    for word in text.split(","):
        tokens = words.get(word, int(word) if word.isdecimal() else 0)
        if word not in words and not tokens:
            raise RequestError(f"expected auto, never or a number of tokens, found {word!r}")
        found.append(tokens)
    return tuple(found)
