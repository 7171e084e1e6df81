"""What stands at padding means nothing, so it is not compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def without_padding(array: npt.NDArray[np.generic], mask: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """The tokens of `array` [batch, sequence, width, ...] as [tokens, width, ...]; any other array as it is.

    `mask` [batch, sequence] is 0 at padding. An array of two axes, such as embeddings [batch, width] or logits
    [batch, classes], is one row per text, also where its width happens to equal the sequence's length.
    """
    return array[mask != 0] if array.ndim > 2 and array.shape[:2] == mask.shape else array
