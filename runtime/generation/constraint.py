"""What may come next in a text: a constraint that masks logits before a token is chosen from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError

Booleans = npt.NDArray[np.bool_]
Logits = npt.NDArray[np.floating]


class LogitConstraint(Protocol):
    """Which tokens may come next; the same tokens before give the same answer.

    Strategies ask about drafts too, in any order, so that it must not depend on what it was asked before.
    """

    def allowed(self, written: Sequence[int]) -> Booleans | None:
        """The tokens [vocab] that may follow those written so far, without the prompt; None: all.

        Tokens beyond the mask may not. Whether the text may end here is whether an end token is allowed.
        """
        ...


def constrained(logits: Logits, constraint: LogitConstraint, written: Sequence[int]) -> Logits:
    """Logits [vocab] with those of tokens that may not follow `written` at minus infinity.

    Raises `UsageError` where none may.
    """
    mask = constraint.allowed(written)
    if mask is None:
        return logits
    within = mask[: len(logits)]
    if not within.any():
        raise UsageError(
            f"the constraint allows no token after {len(written)} tokens. Let it allow an end token where it is done."
        )
    masked = np.full_like(logits, -np.inf)
    masked[: len(within)][within] = logits[: len(within)][within]
    return masked
