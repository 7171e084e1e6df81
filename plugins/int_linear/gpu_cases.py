"""Cases of IntLinear for `gpu-check`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from intaglio.plugins.kernel_check.case import Array, Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, factors, int8s, int32s

ACTIVATED = 4  # optional inputs up to those after an activation, without a gate


def cases(sizes: Sizes, random: Random) -> Cases:
    """Every epilogue; a feed-forward layer, the same with odd lengths, and the columns of a vocabulary."""
    epilogues = ((8, ""), (8, "gelu"), (16, ""), (32, ""))
    for bits, activation in epilogues:
        for less in (0, 1):
            inner, columns = sizes.width - less, sizes.inner - less
            weight, bias = int8s(random, inner, columns), int32s(random, columns, bits=18)
            for rows in sizes.rows if (bits, activation, less) == (8, "", 0) else sizes.few_rows:
                x = int8s(random, 1, rows, inner)
                for final in _factors(random, (rows, columns), bits, activation):
                    attributes = {"bits": bits, "activation": activation, "out_scale": 0.05}
                    if activation and len(final) == ACTIVATED:
                        attributes["out_zero_point"] = -112
                    yield Case("IntLinear", (x, weight, bias, *final), attributes)
    x, weight = int8s(random, 8, sizes.hidden), int8s(random, sizes.hidden, sizes.vocabulary)
    bias = int32s(random, sizes.vocabulary, bits=18)
    yield Case("IntLinear", (x, weight, bias, *factors(random, sizes.vocabulary, 42)), {"bits": 8})


def _factors(random: Random, shape: tuple[int, int], bits: int, activation: str) -> Iterator[tuple[Array | None, ...]]:
    """The optional inputs: none, the factors, with an activation also those after it and a gate, else a residual."""
    columns = shape[1]
    if bits == 32:
        yield ()
        return
    if not activation:
        yield factors(random, columns, 50 - bits)
        if bits == 16:
            multiple = 2 ** random.integers(0, 8, columns).astype(np.int32)
            yield (*factors(random, columns, 34), *[None] * 5, int32s(random, 1, *shape, bits=30), multiple)
        return
    yield factors(random, columns, 33)
    activated = (*factors(random, columns, 36), *factors(random, columns, 34))
    yield activated
    yield (*activated, int32s(random, 1, *shape, bits=17), *factors(random, columns, 40))
