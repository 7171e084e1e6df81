"""The inputs with which hidden transfer drafts: where pseudo states stand, and what they attend to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intaglio.bundle import Decoder
from intaglio.drafts import HIDDEN_TRANSFER

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


def drafted(decoder: Decoder, drafting: int) -> int:
    """The slots of the cache behind the tokens that drafting after so many of them takes."""
    return decoder.drafts * drafting if decoder.draft_kind == HIDDEN_TRANSFER else 0


def draft_rows(
    places: Integers, seen: Booleans, draft_indices: Integers, steps: int, window: int | None
) -> tuple[Integers, Booleans]:
    """Where pseudo states stand, [batch, drafted], and what is new that they attend to; drafted = steps · drafting.

    places         [batch, tokens], the positions of the tokens in their sequences
    seen           [batch, tokens, tokens], which of the tokens each attends to
    draft_indices  [batch, drafting], which of the tokens are drafted after
    window         the decoder's `sliding_window`

    The latter is [batch, drafted, tokens + drafted]: of the slots from the step's first on. Row s · drafting + j is the
    pseudo state of step s from the token draft_indices[j]; it lies behind the tokens, in the place of its row. It
    attends to what that token attends to, as far as a window reaches, and to the pseudo states of its own and earlier
    steps from the same token (Hidden Transfer, section 3.3).
    """
    drafting = draft_indices.shape[1]
    row = np.arange(steps * drafting)
    ahead = np.repeat(np.arange(1, steps + 1), drafting)
    stand = np.tile(np.take_along_axis(places, draft_indices, 1), steps) + ahead
    tokens = np.tile(np.take_along_axis(seen, draft_indices[:, :, None], 1), (1, steps, 1))
    own = (row[:, None] % drafting == row % drafting) & (row[:, None] >= row)  # [drafted, drafted]
    if window is not None:
        tokens = tokens & (places[:, None] > stand[:, :, None] - window)
        own &= row[:, None] // drafting - row // drafting < window
    return stand, np.concatenate([tokens, np.broadcast_to(own, (len(places), *own.shape))], axis=2)


def draft_mask(
    places: Integers,
    seen: Booleans,
    write_start: Integers,
    draft_indices: Integers,
    steps: int,
    window: int | None,
    capacity: int,
) -> tuple[Integers, Booleans]:
    """`draft_positions` [batch, drafted] and `draft_mask` [batch, drafted, capacity], of all slots; see `draft_rows`.

    To what the cache holds, the slots below `write_start` [batch], all attend as far as `window`.
    """
    stand, new = draft_rows(places, seen, draft_indices, steps, window)
    slots = np.arange(capacity)
    mask = np.tile(slots < write_start[:, None, None], (1, stand.shape[1], 1))
    if window is not None:
        mask &= slots > stand[:, :, None] - window
    for each, start, patch in zip(mask, write_start, new, strict=True):
        each[:, start : start + new.shape[2]] = patch
    return stand, mask
