"""Which slots of a cache a token attends to, in a text without branches: those up to its own, as far as a window."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


def fill_mask(mask: Booleans, places: Integers, slots: Integers, window: int | None) -> None:
    """Let the token at each of `places` [batch, tokens] attend to the slots up to its own, in `mask`.

    mask    [batch, tokens, capacity], written
    slots   [capacity]: 0, 1, 2, ...
    window  how many of them, its own among them; None: all
    """
    np.less_equal(slots, places[:, :, None], out=mask)
    if window is not None:
        mask &= slots > places[:, :, None] - window


def seen_slots(capacity: int, window: int | None) -> Booleans:
    """Which slots the token in each slot attends to, [capacity, capacity], read-only; `window` as of `fill_mask`."""
    apart = np.arange(1 - capacity, capacity)  # from a token to a slot
    seen = apart <= 0
    if window is not None:
        seen &= apart > -window
    # Every row is the one before it moved by one slot, so that all of them lie in one.
    return np.lib.stride_tricks.sliding_window_view(seen, capacity)[::-1]
