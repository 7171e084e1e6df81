"""Cases of IntAdd for `gpu-check`."""

from __future__ import annotations

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, factors, int8s, int32s


def cases(sizes: Sizes, random: Random) -> Cases:
    """Both output widths; int32 and int8; one row, and one batch, that is added to all."""
    for bits in (8, 16):
        for channels in (sizes.width, sizes.width - 1):
            for rows in sizes.rows:
                x = int32s(random, 2, rows, channels)
                for y in (int32s(random, 2, rows, channels), int8s(random, 1, rows, channels), int8s(random, channels)):
                    x_multiplier, shift = factors(random, channels, 46 - bits)
                    y_multiplier, _ = factors(random, channels, 0)
                    yield Case("IntAdd", (x, y, x_multiplier, y_multiplier, shift), {"bits": bits})
