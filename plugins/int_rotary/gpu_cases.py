"""Cases of IntRotary for `gpu-check`."""

from __future__ import annotations

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, factors, int32s


def cases(sizes: Sizes, random: Random) -> Cases:
    """Halves that fill vectors and that do not."""
    for half in (32, 10):
        heads = max(sizes.width // half // 2, 1)
        for length in sizes.rows:
            x = int32s(random, 2, length, 2 * heads * half, bits=15)
            tables = (int32s(random, length, half, bits=14) for _ in range(2))
            yield Case("IntRotary", (x, *tables, *factors(random, 1, 51)), {"num_heads": heads})
