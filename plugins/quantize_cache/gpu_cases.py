"""Cases of QuantizeCache for `gpu-check`."""

from __future__ import annotations

import numpy as np

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, floats


def cases(sizes: Sizes, random: Random) -> Cases:
    """Whole groups and parts of them, groups of zeros, of large channels, and with numbers that are none.

    Slots are words, as in TensorRT's engines.
    """
    for bits in (8, 4):
        for depth in (24, 64, 80, 128):
            for tokens in (0, *sizes.few_rows):
                x = floats(random, 2, 3, tokens, depth, dtype="float32")
                x[0, 0] *= np.float32(1e-3)
                x[0, 1, :, 1] = 300
                x[1, 0] = 0
                x[1, 1, :, depth - 1] = np.inf
                yield Case("QuantizeCache", (x,), {"bits": bits, "element_bits": 32})
