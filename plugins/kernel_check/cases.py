"""The cases of a folder's kernels for `gpu-check`, from its `gpu_cases.py`.

It has one function, `cases(sizes, random) -> Iterator[Case]`, which launches each of the kernels at least once. A case
is made when it is asked for: together they would not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import numpy as np

from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.inputs import Sizes


def cases(folder: str, sizes: Sizes) -> Iterator[Case]:
    """The cases of the kernels in a folder below `plugins`; the same in every run."""
    made: Iterator[Case] = import_module(f"intaglio.plugins.{folder.replace('/', '.')}.gpu_cases").cases(
        sizes, np.random.default_rng(0)
    )
    return made
