"""Cases of CsrMatMul for `gpu-check`."""

from __future__ import annotations

import numpy as np

from intaglio.plugins.kernel_check.case import Array, Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, floats

DENSITY = 0.0045  # of the sparse part of a dense-and-sparse weight (SqueezeLLM, section 3.3)


def cases(sizes: Sizes, random: Random) -> Cases:
    """Both dtypes, float32 values beside float16, a full row and empty ones, and the channels of a vocabulary."""
    for dtype, values in (("float16", "float16"), ("float16", "float32"), ("float32", "float32")):
        matrix = sparse_rows(random, sizes.channels, sizes.depth, values)
        for rows in sizes.rows if values == "float16" else sizes.few_rows:
            x, y = (floats(random, 1, rows, length, dtype=dtype) for length in (sizes.depth, sizes.channels))
            yield Case("CsrMatMul", (x, *matrix, y), {})
    x, y = floats(random, 8, sizes.hidden), floats(random, 8, sizes.vocabulary)
    yield Case("CsrMatMul", (x, *sparse_rows(random, sizes.vocabulary, sizes.hidden, "float16"), y), {})


def sparse_rows(random: Random, channels: int, depth: int, dtype: str) -> tuple[Array, Array, Array]:
    """values, columns and row offsets of a matrix [channels, depth] whose second row is full."""
    counts = random.binomial(depth, DENSITY, channels)
    counts[1] = depth
    columns = [np.sort(random.choice(depth, count, replace=False)) for count in counts]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return floats(random, int(offsets[-1]), dtype=dtype, scale=0.1), np.concatenate(columns).astype(np.int32), offsets
