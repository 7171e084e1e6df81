"""Removal of padding, whose values are meaningless and are not compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def without_padding(array: npt.NDArray[np.generic], mask: npt.NDArray[np.generic] | None) -> npt.NDArray[np.generic]:
    """The tokens of `array` [batch, sequence, width, ...] as [tokens, width, ...]; any other array unchanged.

    `mask` [batch, sequence] is 0 at padding; None: there is none. An array of two axes, such as embeddings [batch,
    width] or logits [batch, classes], has one row per sequence, even if its width happens to equal the sequence length.
    """
    padded = mask is not None and array.ndim > 2 and array.shape[:2] == mask.shape
    return array[mask != 0] if padded else array
