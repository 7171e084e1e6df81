"""Cases of Requantize for `gpu-check`."""

from __future__ import annotations

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, factors, int32s


def cases(sizes: Sizes, random: Random) -> Cases:
    """Both output widths, channels that fill vectors and that do not, a batch axis of 1, and one factor for all."""
    for bits in (8, 16):
        for channels in (sizes.inner, sizes.inner - 1):
            for rows in sizes.rows:
                x = int32s(random, 1, rows, channels, bits=20)
                yield Case("Requantize", (x, *factors(random, channels, 50 - bits)), {"bits": bits})
        x = int32s(random, sizes.rows[-1], sizes.width, bits=20)
        yield Case("Requantize", (x, *factors(random, 1, 50 - bits)), {"bits": bits})
