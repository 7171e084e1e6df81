"""Trees of drafted tokens: each has a token before it, and several may have the same one.

A tree is the list of its tokens' parents: the place of the token before each, which comes earlier in the list; -1 for
one that follows the text itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def depths(parents: Sequence[int]) -> list[int]:
    """How many tokens of the tree are before each: 0 for those that follow the text."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def ancestors(parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """[tokens, tokens]: whether the one of the column is on the path to the one of the row, itself among them."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for place, parent in enumerate(parents):
        if parent >= 0:
            seen[place] |= seen[parent]
    return seen
