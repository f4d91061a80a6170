"""The GPU memory knob of engines that place whole layers: --n-cpu-moe."""

from __future__ import annotations

from benchmarks.peers.protocol import ModelShape, Options


def least_layers(shape: ModelShape) -> Options:
    """The experts of every layer in host memory."""
    return {"n-cpu-moe": shape.layers}


def fitted_layers(shape: ModelShape, options: Options, used: int, allowed: int) -> Options:
    """As many layers' experts on the GPU as the memory left by `options` holds; fewer where it used too much."""
    more_on_gpu = (allowed - used) // shape.layer_expert_bytes
    return {**options, "n-cpu-moe": min(shape.layers, max(0, options["n-cpu-moe"] - more_on_gpu))}
