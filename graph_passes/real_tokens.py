"""Leaving out of an activation what the model computes at padding: it means nothing, and may be an outlier.

The attention mask, [batch, sequence] and 0 at padding, says where padding is. Which axes of an activation are the
mask's is told by their symbolic names; an axis whose name says nothing is taken for the one that has its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32 | np.float64]
Length = int | str | None  # of an axis as the graph states it: fixed, named, or not stated


class Axis(Enum):
    """What an axis of an activation counts."""

    BATCH = "texts"
    SEQUENCE = "positions"
    TOKENS = "texts times positions"
    OTHER = "channels, heads, or whatever has a fixed length"


def axes_of(
    array: Array, stated: Sequence[Length] | None, mask: npt.NDArray[np.bool_], names: Sequence[Length]
) -> list[Axis]:
    """What each axis of `array` counts, by its `stated` length.

    `mask`: [batch, sequence]; `names`: how the graph calls the mask's two axes.
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
    """`array` without padding, in parts of the same rank: one per text, or one for all.

    An array without an axis for the texts counts once for each of them, so that its statistics do not depend on how
    the texts were batched.
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
