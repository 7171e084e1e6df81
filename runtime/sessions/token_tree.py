"""Trees of drafted tokens: each token has a predecessor, and several may share the same one.

A tree is the list of its tokens' parents: the index of each token's predecessor, which comes earlier in the list, or
-1 for a token that follows the sequence itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def depths(parents: Sequence[int]) -> list[int]:
    """The depth of each token in the tree: 0 for those that follow the sequence."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def ancestors(parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """[tokens, tokens]: whether the column's token is on the path to the row's token, which includes itself."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for place, parent in enumerate(parents):
        if parent >= 0:
            seen[place] |= seen[parent]
    return seen
