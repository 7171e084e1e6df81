"""The cache slots that a token attends to: those up to its own, within a window; in a tree, its ancestors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from intaglio.runtime.engines.memory import Buffer, Memory
from intaglio.runtime.sessions.token_tree import ancestors, depths

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


def fill_mask(mask: Booleans, places: Integers, slots: Integers, window: int | None) -> None:
    """Write `mask` so that the token at each of `places` [batch, tokens] attends to the slots up to its own.

    mask    [batch, tokens, capacity], written
    slots   [capacity]: 0, 1, 2, ...
    window  the number of these slots, including its own; None: all
    """
    np.less_equal(slots, places[:, :, None], out=mask)
    if window is not None:
        mask &= slots > places[:, :, None] - window


def seen_slots(memory: Memory, capacity: int, window: int | None) -> tuple[Buffer, Buffer]:
    """A buffer and its view [capacity, capacity]: the slots that the token in each slot attends to.

    Every row of the view is the previous one shifted by one slot, so all rows are windows of a single line of
    2 · capacity - 1 bytes. `window` as in `fill_mask`.
    """
    line = memory.zeros([2 * capacity - 1], np.bool_)
    memory.fill(line[capacity - min(window or capacity, capacity) : capacity], 1)
    return line, memory.descending_windows(line, capacity)


def seen_among(tokens: int, parents: Sequence[int] | None, window: int | None) -> Booleans:
    """The new tokens of a step that each of them attends to, [tokens, tokens], within `window`.

    `parents`: those of a tree, see `token_tree`; None: a plain sequence.
    """
    if parents is None:
        seen = np.tri(tokens, dtype=np.bool_)
        return seen if window is None else seen & ~np.tri(tokens, k=-window, dtype=np.bool_)
    seen = ancestors(parents)
    if window is not None:
        places = np.array(depths(parents))
        seen &= places[:, None] - places < window
    return seen
