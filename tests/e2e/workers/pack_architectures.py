"""pack_architectures.py TINY_MODELS OUT.tar.xz: the recipes of tiny models of every architecture with experts.

TINY_MODELS is the program ostinato-tiny-models. Run as a module.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.test_architectures import VARIANTS
from tests.e2e.workers.tiny_recipes import read_recipe, write_pack

COMMON = ("expert_count=32", "expert_used_count=4", "expert_feed_forward_length=256", "feed_forward_length=256")
"""More experts than in the tests on the CPU: with uploads, some have to fit the staging buffer and others not."""


def main(program: str, out: str) -> None:
    """Makes every variant once, and keeps its recipe."""
    recipes = []
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as directory:
            command = [program, variant.architecture, directory, *COMMON, *variant.changes]
            subprocess.run(command, check=True, timeout=300)
            path = Path(directory, "f32.gguf")
            recipes.append(read_recipe(path, variant.name, variant.architecture, variant.output, variant.stock_layers))
        print(variant.name, flush=True)
    write_pack(recipes, Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
