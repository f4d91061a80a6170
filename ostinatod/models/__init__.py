"""The model that ships with the package, so that everything can be tried without a network."""

from __future__ import annotations

from pathlib import Path

BUNDLED_NAME = "tiny"


def bundled_file() -> Path:
    """The bundled model: 60 M parameters, 8 layers of 64 experts. It writes plausible text and knows nothing."""
    return Path(__file__).with_name("tiny-moe-MXFP4.gguf")
