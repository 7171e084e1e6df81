"""Cases of IntMatMul for `gpu-check`."""

from __future__ import annotations

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, factors, int8s


def cases(sizes: Sizes, random: Random) -> Cases:
    """Every epilogue; the heads of an attention, batch axes of 1 that broadcast, and one matrix for all."""
    heads, depth = 12, 64
    for bits in (8, 16, 32):
        for rows in sizes.rows if bits == 8 else sizes.few_rows:
            final = () if bits == 32 else factors(random, rows, 48 - bits)
            x = int8s(random, 1, heads, rows, depth)
            yield Case("IntMatMul", (x, int8s(random, 1, heads, depth, rows), *final), {"bits": bits})
            yield Case("IntMatMul", (x, int8s(random, 2, 1, depth, rows), *final), {"bits": bits})
            yield Case("IntMatMul", (x[0, 0], int8s(random, depth, rows), *final), {"bits": bits})
        odd = () if bits == 32 else factors(random, sizes.width - 1, 48 - bits)
        a, b = int8s(random, 17, sizes.width - 1), int8s(random, sizes.width - 1, sizes.width - 1)
        yield Case("IntMatMul", (a, b, *odd), {"bits": bits})
