"""What is done to the scores of single tokens before one is chosen: penalties and biases."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# As in kernel.cu: a token; whether the repetition penalty applies to it; what its score loses, and then gains.
EDIT = np.dtype([("token", "<i4"), ("repeats", "<i4"), ("lowered", "<f8"), ("raised", "<f4"), ("unused", "<i4")])

Edits = npt.NDArray[np.void]  # of EDIT, of different tokens in ascending order


def edited(scores: npt.NDArray[np.floating], edits: Edits, penalty: float) -> npt.NDArray[np.floating]:
    """Return scores [vocab] after `edits`, in the dtype of `scores`.

    penalty: divides scores of 0 and more, multiplies those below (Keskar et al. 2019, CTRL).
    """
    edits = edits[: np.searchsorted(edits["token"], len(scores))]  # not of padding behind the vocabulary
    if not len(edits):
        return scores
    scores = scores.copy()
    tokens = edits["token"]
    values = scores[tokens]
    repeated = np.where(values < 0, values * penalty, values / penalty)
    values = np.where(edits["repeats"], repeated, values)
    scores[tokens] = (values - edits["lowered"]).astype(scores.dtype) + edits["raised"]
    return scores
