"""Cases of ScaledClamp for `gpu-check`."""

from __future__ import annotations

from collections.abc import Iterator

from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.inputs import Random, Sizes, floats


def cases(sizes: Sizes, random: Random) -> Iterator[Case]:
    """With and without a factor for each channel; channels that fill vectors and that do not."""
    for channels in (sizes.width, sizes.width - 1):
        for rows in sizes.rows:
            x = floats(random, 1, rows, channels, dtype="float32")
            for factor in (None, floats(random, channels, dtype="float32")):
                yield Case("ScaledClamp", (x, factor), {"low": -0.5, "high": 1.0})
