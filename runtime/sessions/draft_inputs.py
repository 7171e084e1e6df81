"""The inputs of hidden transfer: the positions of pseudo states, and the slots they attend to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Decoder
from intaglio.networks.drafts import HIDDEN_TRANSFER

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


def drafted(decoder: Decoder, drafting: int) -> int:
    """The number of cache slots after the tokens that drafting after `drafting` of them needs."""
    return decoder.drafts * drafting if decoder.draft_kind == HIDDEN_TRANSFER else 0


def draft_rows(
    places: Integers, seen: Booleans, draft_indices: Integers, steps: int, window: int | None
) -> tuple[Integers, Booleans]:
    """The positions of pseudo states, [batch, drafted], and the new slots they attend to; drafted = steps · drafting.

    places         [batch, tokens], the positions of the tokens in their sequences
    seen           [batch, tokens, tokens], the tokens that each token attends to
    draft_indices  [batch, drafting], the tokens to draft after
    window         the decoder's `sliding_window`

    The latter is [batch, drafted, tokens + drafted], for the slots from the step's first. Row s · drafting + j is the
    pseudo state of step s from the token draft_indices[j]; it is stored after the tokens, at the index of its row. It
    attends to the slots of that token, within the window, and to the pseudo states of its own and earlier steps from
    the same token (Hidden Transfer, section 3.3).
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
    """`draft_positions` [batch, drafted] and `draft_mask` [batch, drafted, capacity] for all slots; see `draft_rows`.

    All attend to the cached tokens, the slots below `write_start` [batch], within `window`.
    """
    stand, new = draft_rows(places, seen, draft_indices, steps, window)
    slots = np.arange(capacity)
    mask = np.tile(slots < write_start[:, None, None], (1, stand.shape[1], 1))
    if window is not None:
        mask &= slots > stand[:, :, None] - window
    for each, start, patch in zip(mask, write_start, new, strict=True):
        each[:, start : start + new.shape[2]] = patch
    return stand, mask
