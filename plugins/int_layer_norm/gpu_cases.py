"""Cases of IntLayerNorm for `gpu-check`."""

from __future__ import annotations

import numpy as np

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, factors, int8s, int32s


def cases(sizes: Sizes, random: Random) -> Cases:
    """With and without a residual of either dtype, one output scale, and one for each channel."""
    attributes = {"scale": 1e-4, "weight_scale": 2.0**-14, "bias_scale": 2.0**-16, "out_scale": 0.03, "epsilon": 1e-12}
    for channels in (sizes.width, sizes.width - 1):
        weight = random.integers(2**13, 2**15, channels).astype(np.int32)
        bias = int32s(random, channels)
        for rows in sizes.rows:
            x = int32s(random, 1, rows, channels)
            residuals = (None, int32s(random, 1, rows, channels), int8s(random, 1, rows, channels))
            for residual in residuals if rows in sizes.few_rows else residuals[:1]:
                multiplier, shift = factors(random, 1, 29)
                added = (residual, multiplier, multiplier, shift) if residual is not None else ()
                for final in ((None, None), factors(random, channels, 40)):
                    yield Case("IntLayerNorm", (x, weight, bias, *final, *added), attributes, 2)
