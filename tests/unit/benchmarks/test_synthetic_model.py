"""What `synthetic_model.py` writes without having it in memory."""

from __future__ import annotations

import io

import numpy as np
import pytest
from synthetic_model import Repeated


@pytest.mark.parametrize("start", [0, 7, 99])
@pytest.mark.parametrize("shape", [(2, 10), (1, 100), (7, 50)])
def test_repeated_bytes_are_written_as_the_array_that_they_stand_for(start: int, shape: tuple[int, ...]) -> None:
    source = np.arange(100, dtype=np.uint8)
    repeated = Repeated(source, start, shape)
    whole = np.resize(np.roll(source, -start), shape)
    file = io.BytesIO()
    repeated.tofile(file)
    assert file.getvalue() == whole.tobytes()
    assert (repeated.nbytes, repeated.dtype, repeated.shape) == (whole.nbytes, whole.dtype, whole.shape)
