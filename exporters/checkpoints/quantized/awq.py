"""Weights as AWQ's tools store them, in the layout "gemm" (AutoAWQ).

qweight  int32 [K, N/8], eight codes of a row in a word, in the order of `ORDER`
qzeros   int32 [groups, N/8], the zero points in the same way
scales   [groups, N]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import (
    GroupedWeight,
    Groups,
    spread,
    stated_group_size,
    usable_group,
)
from intaglio.exporters.checkpoints.quantized.parts import Parts, array, described, unpacked
from intaglio.plugins.bit_packing import pack

LAYOUT = "gemm"
BITS = 4
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the channel of each four bits of a word, from the lowest


def weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight:
    """The weight `name` from its parts. Raises `SourceError` where they disagree or cannot be kept."""
    if (layout := str(settings.get("version", LAYOUT)).lower()) != LAYOUT:
        raise SourceError(
            f"{name}: AWQ's layout {layout!r} is not read, {LAYOUT!r} is. Export the original checkpoint."
        )
    inputs, words = parts["qweight"].shape
    groups, channels = parts["scales"].shape
    if channels != words * len(ORDER) or parts["qzeros"].shape != (groups, words) or not groups:
        raise SourceError(f"{name}: {described(parts)} do not form a weight of AWQ in {BITS} bits. Download it again.")
    size = stated_group_size(name, settings, ("group_size", "q_group_size"), inputs, groups)
    usable = usable_group(name, inputs, groups, size)

    def read() -> Groups:
        packed = pack(np.ascontiguousarray(_channels(array(parts["qweight"])).T), BITS)
        scales = spread(array(parts["scales"]).T.astype(np.float32), size, usable, inputs)
        return Groups(packed, scales, spread(_channels(array(parts["qzeros"])).T, size, usable, inputs))

    return GroupedWeight((channels, inputs), BITS, usable, read)


def _channels(words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """[rows, N/8] words to [rows, N] numbers."""
    stored = unpacked(words, BITS).reshape(len(words), -1, len(ORDER))
    numbers = np.empty_like(stored)
    numbers[:, :, ORDER] = stored
    return numbers.reshape(len(words), -1)
