"""residency_file.py LIBRARIES MODEL OUT.npz: residency files through the engine's C interface, in one process.

Writes how many of N_MUTANTS mutants of a file the engine's reader accepted and refused, how many of these verdicts or
reasons Python's reader does not share; what became of a loaded model that was given one bad file, a good one, and
another bad one; and of one that was loaded with a file configured.
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

N_MUTANTS = 20_000
OPAQUE = "provenance: expected a JSON object"
"""What only Python refuses: the engine does not look into the provenance."""


def mutant(original: bytes, rng: random.Random) -> bytes:
    """The bytes with one to four changes; every second time with a size and checksum that are right again."""
    data = bytearray(original)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(len(data), 120) if rng.random() < 0.5 else len(data)) if data else 0
        kind = rng.randrange(5)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at] = rng.randrange(256)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        else:
            data[at : at + 4] = b"\xff" * len(data[at : at + 4])
    if rng.random() < 0.5 and len(data) > 32:
        struct.pack_into("<Q", data, 16, len(data))
        struct.pack_into("<I", data, len(data) - 4, zlib.crc32(data[:-4]))
    return bytes(data)


def main(libraries: str, model_path: str, out: str) -> None:
    """Compares the readers, then loads the model."""
    import numpy as np

    from ostinatod.bindings import load_bindings
    from ostinatod.errors import EngineError
    from ostinatod.profiles.errors import ResidencyError
    from ostinatod.profiles.gguf_model import fingerprint, read_model
    from ostinatod.profiles.residency import (
        ExpertLayout,
        Residency,
        decode_residency,
        encode_residency,
        hot_lists,
        write_residency,
    )

    bindings = load_bindings(Path(libraries))
    header = read_model([Path(model_path)])
    layout = ExpertLayout(fingerprint(header), tuple(range(header.block_count)), header.expert_count)
    hot = np.random.default_rng(3).random((len(layout.layers), layout.n_experts)) < 0.4
    residency = Residency(layout, 5, 1_750_000_000, {"sessions": ["é"], "coverage": 0.84}, hot_lists(hot))

    def verdict(read: Any, data: bytes) -> Residency | str:
        try:
            return read(data)  # type: ignore[no-any-return]
        except (EngineError, ResidencyError, ValueError) as error:
            return str(error)

    rng = random.Random(11)
    original = encode_residency(residency)
    if bindings.parse_residency(original) != residency:
        raise RuntimeError("the engine reads another set than was written")
    n_accepted = n_differing = 0
    for _ in range(N_MUTANTS):
        data = mutant(original, rng)
        ours, engine = verdict(decode_residency, data), verdict(bindings.parse_residency, data)
        n_accepted += isinstance(engine, Residency)
        if ours != engine and not str(ours).startswith(OPAQUE):
            n_differing += 1
            print(f"Python: {ours}\nengine: {engine}", file=sys.stderr)

    core: Any = bindings.llama_cpp.llama_cpp
    core.llama_backend_init()
    good, bad, foreign = (Path(f"{out}.{name}") for name in ("good", "bad", "foreign"))
    write_residency(good, residency)
    bad.write_bytes(original[:-1])
    write_residency(
        foreign, Residency(ExpertLayout("00" * 32, layout.layers, layout.n_experts), 1, 0, {}, residency.hot)
    )

    bindings.configure(fingerprint=layout.fingerprint)
    bindings.count_routes(True)
    params = core.llama_model_default_params()
    params.use_extra_bufts, params.n_gpu_layers = False, 0
    model = core.llama_model_load_from_file(model_path.encode(), params)
    states, reasons = [], []
    for path in (None, bad, good, foreign):
        said = ""
        try:
            if path is not None:
                bindings.load_residency(model, path)
        except EngineError as error:
            said = str(error)
        status = bindings.residency_status(model)
        states.append((status.state, status.generation, status.n_hot, int(status.pool_bytes > 0)))
        reasons.append((said, status.reason))
    core.llama_model_free(model)

    bindings.count_routes(False)
    bindings.configure(fingerprint=layout.fingerprint, residency_file=good)
    model = core.llama_model_load_from_file(model_path.encode(), params)
    status = bindings.residency_status(model)
    states.append((status.state, status.generation, status.n_hot, int(status.pool_bytes > 0)))
    counted = bindings.route_counts(model).layers
    core.llama_model_free(model)
    np.savez(
        out,
        counted=counted,
        n_accepted=n_accepted,
        n_differing=n_differing,
        n_hot=residency.n_hot,
        states=states,
        reasons=reasons,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
