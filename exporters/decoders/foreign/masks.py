"""Which tokens an attention of another tool's graph attends to: read from the mask that its graph computes.

However the mask is made, a decoder's tokens attend to all tokens before them, or to the last ones, a window. Both are
seen in the mask of a few tokens behind a long text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.decoders.foreign.original import Original
from intaglio.exporters.decoders.foreign.site import Site

TOKENS = (1, 2, 3)
HIDDEN = -1e4  # scores of tokens that are not attended to are at most this


def window_of(site: Site, original: Original, longest: int) -> int | None:
    """The tokens that a token attends to at this site, including itself; None: all before it, up to `longest`.

    Raises `SourceError` for a mask that is neither, such as one that adds positions to the scores.
    """
    past = max(longest - len(TOKENS), 1)
    attended = np.ones((len(TOKENS), past + len(TOKENS)), np.bool_)
    if site.mask is not None:
        (mask,) = original.compute([str(site.mask.name)], TOKENS, past)
        attended = _attended(mask, attended.shape)
    places = np.arange(attended.shape[1])
    tokens = places[past:, None]
    if site.causal:
        attended = attended & (places <= tokens)
    seen = int(attended[0].sum())
    expected = (places <= tokens) & (places > tokens - seen)
    if seen > past:
        expected = places <= tokens
    if not np.array_equal(attended, expected):
        raise SourceError(f"the mask of {site.node.name or site.node.op_type} is no window of tokens")
    return None if seen > past else seen


def _attended(mask: npt.NDArray[np.generic], shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """A mask as bool [tokens, slots]; the same for all heads."""
    if mask.dtype != np.bool_:
        if not np.isin(mask[mask > HIDDEN], [0]).all():  # type: ignore[operator]
            raise SourceError("its attention adds other numbers to the scores than a mask's, such as ALiBi")
        mask = mask == 0
    every = np.broadcast_to(mask, (*np.broadcast_shapes(mask.shape[:-2], (1, 1)), *shape)).reshape(-1, *shape)
    if not (every == every[0]).all():
        raise SourceError("its heads have different masks")
    found: npt.NDArray[np.bool_] = every[0]
    return found
