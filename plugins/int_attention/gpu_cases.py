"""Cases of IntAttention for `gpu-check`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, factors, int8s, int32s


def cases(sizes: Sizes, random: Random) -> Cases:
    """Heads of every kernel and one in between; keys of another number than queries; packed; masks; a bias."""
    for depth in (64, 32, 128, 80):
        heads = max(sizes.width // depth, 1)
        width = heads * depth
        attributes = {"num_heads": heads, "scale": 3e-5 * 64 / depth}
        for queries in sizes.rows if depth == 64 else sizes.few_rows:
            for keys in (queries, sizes.rows[-2]):
                query, key, value = (int8s(random, 2, length, width) for length in (queries, keys, keys))
                mask = _mask(random, keys)
                for chosen in (None, mask):
                    yield Case("IntAttention", (query, key, value, *factors(random, width, 37), chosen), attributes)
            bias = int32s(random, 1, heads, queries, queries)
            given = (*(int8s(random, 2, queries, width) for _ in range(3)), *factors(random, width, 37))
            yield Case("IntAttention", (*given, _mask(random, queries), bias), attributes)
            packed = int8s(random, 1, queries, 3 * width)
            inputs = (packed, packed, packed, *factors(random, width, 37))
            yield Case("IntAttention", inputs, {**attributes, "packed": 1})


def _mask(random: Random, keys: int) -> npt.NDArray[np.bool_]:
    """Two of three keys, the first one among them: without any key the outputs are all the same."""
    mask: npt.NDArray[np.bool_] = random.random((2, 1, 1, keys)) < 0.7
    mask[..., :1] = True
    return mask
