"""What the engine's limits take for granted of the pinned CUDA kernels, read from their source: it needs no GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PLACEMENT = Path(__file__).parents[2] / "kernels_patch" / "overlay" / "ostinato" / "placement.h"

pytestmark = pytest.mark.engine


def vector_kernel_limits(source: str, generation: str) -> dict[str, int]:
    """The most tokens for which a generation of NVIDIA GPUs takes the vector kernels for products with experts, by type
    of weight; `default` for all others.
    """
    body = re.search(rf"get_mmvq_mmid_max_batch_{generation}\(ggml_type type\) {{\n(.*?)\n}}\n", source, re.DOTALL)
    assert body, generation
    found = {name: int(limit) for name, limit in re.findall(r"case GGML_TYPE_(\w+): +return (\d+);", body[1])}
    assert found
    assert "default:                return MMVQ_MAX_BATCH_SIZE;" in body[1]
    return found


@pytest.mark.parametrize("generation", ["pascal_older", "turing_plus"])
def test_steps_that_use_borrowed_memory_are_computed_by_vector_kernels(pinned_source: Path, generation: str) -> None:
    """Slots in borrowed memory lie beyond those that a tensor has: the tiled kernels, which sort routes by a tensor's
    experts, would leave them out. What is read in place over the link has numbers of that kind, too.
    """
    cuda = pinned_source / "ggml" / "src" / "ggml-cuda"
    limits = vector_kernel_limits((cuda / "mmvq.cu").read_text(encoding="utf-8"), generation)
    largest = re.search(r"#define MMVQ_MAX_BATCH_SIZE (\d+)", (cuda / "mmvq.cuh").read_text(encoding="utf-8"))
    asked = re.findall(r"(?:borrow|link)_tokens += (\d+);", PLACEMENT.read_text(encoding="utf-8"))
    assert largest
    assert len(asked) == 2
    assert max(map(int, asked)) <= min(int(largest[1]), *limits.values())
