"""Cases of IntGelu for `gpu-check`."""

from __future__ import annotations

from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, factors, int32s


def cases(sizes: Sizes, random: Random) -> Cases:
    """One output scale, and one for each channel with a zero point; channels that fill vectors and that do not."""
    attributes = {"scale": 5e-5, "out_scale": 0.03}  # x from -3.3 to 3.3
    for channels in (sizes.inner, sizes.inner - 1):
        for rows in sizes.rows:
            yield Case("IntGelu", (int32s(random, 1, rows, channels),), attributes)
        for rows in sizes.few_rows:
            x = int32s(random, rows, channels)
            yield Case("IntGelu", (x, *factors(random, channels, 36)), {**attributes, "out_zero_point": -112})
