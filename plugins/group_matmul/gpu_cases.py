"""Cases of GroupMatMul for `gpu-check`."""

from __future__ import annotations

import numpy as np

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, codes, floats

GROUP = 64


def cases(sizes: Sizes, random: Random) -> Cases:
    """Every number of bits, with and without zero points, float32, many rows and channels, a vocabulary, levels."""
    variants = [(bits, "float16") for bits in (4, 8, 6, 5, 3, 2)]
    for bits, dtype in (*variants, (4, "float32")):
        attributes = {"bits": bits, "K": sizes.depth, "group_size": GROUP}
        packed = codes(random, sizes.channels, sizes.depth, bits)
        scales = floats(random, sizes.channels, sizes.depth // GROUP, dtype=dtype, scale=2.0 ** -(bits + 4))
        zero_points = random.integers(0, 2**bits, scales.shape).astype(np.uint8)
        for rows in sizes.rows if (bits, dtype) == (4, "float16") else sizes.few_rows:
            x = floats(random, 1, rows, sizes.depth, dtype=dtype)
            yield Case("GroupMatMul", (x, packed, scales), attributes)
            yield Case("GroupMatMul", (x, packed, scales, zero_points), attributes)
    for bits, _ in variants:
        attributes = {"bits": bits, "K": sizes.hidden, "group_size": GROUP}
        packed, x = codes(random, sizes.wide, sizes.hidden, bits), floats(random, 65, sizes.hidden)
        scales = floats(random, sizes.wide, sizes.hidden // GROUP, scale=2.0 ** -(bits + 4))
        yield Case("GroupMatMul", (x, packed, scales), attributes)
        zero_points = random.integers(0, 2**bits, scales.shape).astype(np.uint8)
        yield Case("GroupMatMul", (x, packed, scales, zero_points), attributes)
        depth = sizes.hidden + 32  # which ends within a stage, and a step
        packed, x = codes(random, sizes.channels, depth, bits), floats(random, 17, depth)
        scales = floats(random, sizes.channels, depth // 32, scale=2.0 ** -(bits + 4))
        zero_points = random.integers(0, 2**bits, scales.shape).astype(np.uint8)
        yield Case("GroupMatMul", (x, packed, scales, zero_points), {"bits": bits, "K": depth, "group_size": 32})
    x, packed = floats(random, 8, sizes.hidden), codes(random, sizes.vocabulary, sizes.hidden, 4)
    scales = floats(random, sizes.vocabulary, sizes.hidden // GROUP, scale=2.0**-8)
    yield Case("GroupMatMul", (x, packed, scales), {"bits": 4, "K": sizes.hidden, "group_size": GROUP})
    for bits, dtype in ((4, "float16"), (8, "float16"), (4, "float32")):
        levels = np.sort(random.uniform(-1, 1, 2**bits)).astype(np.float32)
        shapes = [(rows, sizes.depth, sizes.channels) for rows in sizes.few_rows]
        shapes += [(65, sizes.hidden, sizes.wide)] if dtype == "float16" else []  # float32 has one shape of blocks
        for rows, depth, channels in shapes:
            attributes = {"bits": bits, "K": depth, "group_size": GROUP}
            packed, x = codes(random, channels, depth, bits), floats(random, rows, depth, dtype=dtype)
            scales = floats(random, channels, depth // GROUP, dtype=dtype, scale=2.0**-4)
            yield Case("GroupMatMul", (x, packed, scales, None, levels), attributes)
