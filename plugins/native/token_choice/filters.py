"""What decides which tokens may be drawn, in the numbers that the kernels compute with."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

MOST_TOKENS = 2**31 - 1  # of a vocabulary


class Filters(NamedTuple):
    """The filters of `transformers`, in its order: temperature, top-k, top-p, min-p.

    Both top-k and top-p keep ties with the last token that they keep.
    """

    scale: np.float32  # steps of a distance for each difference of 1 between logits
    top_k: int  # tokens to keep; 0: all
    top_p: int  # of the sum of the weights that top-k keeps, the part to keep, times 2^32
    min_p: int  # the least weight to keep

    @classmethod
    def of(cls, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Filters:
        """The filters for a temperature above 0, and probabilities from 0 to 1."""
        steps = math.log2(math.e) * 2**20
        most = float(np.finfo(np.float32).max)
        scale, kept = np.float32(min(steps / temperature, most)), min(top_k, MOST_TOKENS)
        return cls(scale, kept, math.ceil(top_p * 2**32), math.ceil(min_p * 2**40))
