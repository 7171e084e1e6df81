"""Cases of LowRankMatMul for `gpu-check`."""

from __future__ import annotations

import numpy as np

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, floats

BATCH, ADAPTERS = 3, 4


def cases(sizes: Sizes, random: Random) -> Cases:
    """Both dtypes, float32 matrices beside float16, and ranks around the number that a block keeps."""
    for dtype, matrices in (("float16", "float16"), ("float16", "float32"), ("float32", "float32")):
        for rank in (1, 16, 65):
            first = floats(random, ADAPTERS, rank, sizes.hidden, dtype=matrices, scale=0.1)
            second = floats(random, ADAPTERS, rank, sizes.channels, dtype=matrices, scale=0.1)
            adapter = np.array([2, 0, 3], np.int32)
            factor, scale = (floats(random, *shape, dtype="float32") for shape in ((ADAPTERS,), (BATCH, 1, 1)))
            for tokens in (0, *sizes.few_rows):
                x, y = (floats(random, BATCH, tokens, each, dtype=dtype) for each in (sizes.hidden, sizes.channels))
                yield Case("LowRankMatMul", (x, first, second, factor, adapter, scale, y), {})
