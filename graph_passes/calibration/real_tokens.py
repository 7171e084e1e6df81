"""Remove padding positions from an activation: their values are meaningless, and may be outliers.

The attention mask, [batch, sequence], is 0 at padding. The axes of an activation are matched with the mask's by their
symbolic names; an axis without a known name is matched by its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32 | np.float64]
Length = int | str | None  # of an axis in the graph: fixed, named, or unknown


class Axis(Enum):
    """The meaning of an axis of an activation."""

    BATCH = "texts"
    SEQUENCE = "positions"
    TOKENS = "texts times positions"
    OTHER = "channels, heads, or anything of a fixed length"


def axes_of(
    array: Array, stated: Sequence[Length] | None, mask: npt.NDArray[np.bool_], names: Sequence[Length]
) -> list[Axis]:
    """Return the meaning of each axis of `array`, from its `stated` length.

    `mask`: [batch, sequence]; `names`: the graph's names of the mask's two axes.
    """
    batch, sequence = mask.shape
    axes: list[Axis] = []
    for index, actual in enumerate(array.shape):
        name = stated[index] if stated is not None else None
        if isinstance(name, int):
            axis = Axis.OTHER
        elif name is not None and name in names:
            axis = Axis.BATCH if name == names[0] else Axis.SEQUENCE
        elif actual == batch and Axis.BATCH not in axes and (index == 0 or actual != sequence):
            axis = Axis.BATCH
        elif actual == sequence:
            axis = Axis.SEQUENCE
        else:
            axis = Axis.TOKENS if index == 0 and actual == batch * sequence else Axis.OTHER
        expected = {Axis.BATCH: batch, Axis.SEQUENCE: sequence}.get(axis, actual)
        axes.append(axis if actual == expected else Axis.OTHER)
    return axes


def real_parts(array: Array, axes: Sequence[Axis], mask: npt.NDArray[np.bool_]) -> Iterator[Array]:
    """Yield `array` without padding, in parts of the same rank: one per text, or one for all.

    An array without a batch axis is yielded once per text, so that its statistics do not depend on the batching.
    """
    if Axis.TOKENS in axes:
        yield array.compress(mask.reshape(-1), axes.index(Axis.TOKENS))
        return
    batch = axes.index(Axis.BATCH) if Axis.BATCH in axes else None
    positions = [index for index, axis in enumerate(axes) if axis is Axis.SEQUENCE]
    if batch is not None and (not positions or mask.all()):
        yield array
        return
    for text, keep in enumerate(mask):
        part = array if batch is None else array[(slice(None),) * batch + (slice(text, text + 1),)]
        for position in positions:
            part = part.compress(keep, position)
        yield part
