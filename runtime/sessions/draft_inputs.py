"""The inputs with which a decoder's graph drafts: after which tokens, where pseudo states stand, and what they see."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intaglio.bundle import Decoder
from intaglio.drafts import HIDDEN_TRANSFER

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


def draft_inputs(
    positions: Integers,
    attention_mask: Booleans,
    write_start: Integers,
    draft_indices: Integers,
    steps: int,
    window: int | None,
) -> tuple[Integers, Booleans]:
    """`draft_positions` [batch, drafted] and `draft_mask` [batch, drafted, capacity]; drafted = steps · drafting.

    positions       [batch, tokens]
    attention_mask  [batch, tokens, capacity], with slots for the tokens and behind them for what is drafted
    write_start     [batch]
    draft_indices   [batch, drafting], which of the tokens are drafted after
    window          the decoder's `sliding_window`

    Row s · drafting + j is the pseudo state of step s from the token draft_indices[j]; it lies in the slot
    write_start + tokens + s · drafting + j. It attends to what that token attends to, as far as a window reaches, and
    to the pseudo states of its own and earlier steps from the same token (Hidden Transfer, section 3.3).
    """
    (batch, tokens, capacity), drafting = attention_mask.shape, draft_indices.shape[1]
    ahead = np.repeat(np.arange(1, steps + 1), drafting)
    places = np.tile(np.take_along_axis(positions, draft_indices, 1), steps) + ahead
    mask = np.tile(np.take_along_axis(attention_mask, draft_indices[:, :, None], 1), (1, steps, 1))
    if window is not None:
        held = np.tile(np.arange(capacity), (batch, 1))  # the position of what is in a slot
        np.put_along_axis(held, write_start[:, None] + np.arange(tokens), positions, 1)
        mask &= held[:, None] > places[:, :, None] - window
    row = np.arange(steps * drafting)
    seen = (row[:, None] % drafting == row % drafting) & (row[:, None] >= row)  # [drafted, drafted]
    if window is not None:
        seen &= row[:, None] // drafting - row // drafting < window
    for start, each in zip(write_start + tokens, mask, strict=True):
        each[:, start : start + len(row)] = seen
    return places, mask


def draft_feeds(
    decoder: Decoder, positions: Integers, attention_mask: Booleans, write_start: Integers, draft_indices: Integers
) -> dict[str, npt.NDArray[np.generic]]:
    """The inputs of a graph that drafts, of either kind, besides those of every decoder; see `draft_inputs`."""
    feeds: dict[str, npt.NDArray[np.generic]] = {"draft_indices": np.ascontiguousarray(draft_indices)}
    if decoder.draft_kind == HIDDEN_TRANSFER:
        feeds["draft_positions"], feeds["draft_mask"] = draft_inputs(
            positions, attention_mask, write_start, draft_indices, decoder.drafts, decoder.sliding_window
        )
    return feeds


def drafted(decoder: Decoder, drafting: int) -> int:
    """The slots of the cache behind the tokens that drafting after so many of them takes."""
    return decoder.drafts * drafting if decoder.draft_kind == HIDDEN_TRANSFER else 0
