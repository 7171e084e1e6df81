"""Cases of IntSoftmax for `gpu-check`."""

from __future__ import annotations

from intaglio.plugins.integer_math import MAX_ROW
from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, int32s


def cases(sizes: Sizes, random: Random) -> Cases:
    """Rows of keys, with and without a mask for all heads and queries; the longest row."""
    attributes = {"scale": 3e-4, "out_scale": 1 / 2048}  # x from -20 to 20: the largest of 768 is some 0.05
    for keys in (sizes.width, sizes.width - 1):
        for queries in sizes.rows:
            x = int32s(random, 1, 2, queries, keys)
            yield Case("IntSoftmax", (x,), attributes)
            yield Case("IntSoftmax", (x, random.random((1, 1, 1, keys)) < 0.5), attributes)
    yield Case("IntSoftmax", (int32s(random, 1, min(sizes.vocabulary, MAX_ROW)),), {**attributes, "scale": 1e-2})
