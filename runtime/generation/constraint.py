"""Constraints: which tokens may come next in a text. They mask logits before a token is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError

Booleans = npt.NDArray[np.bool_]
Logits = npt.NDArray[np.floating]


class LogitConstraint(Protocol):
    """Decides which tokens may come next, as a function of the preceding tokens alone.

    Strategies ask about drafts too, in any order, so the answer must not depend on earlier calls.
    """

    def allowed(self, written: Sequence[int]) -> Booleans | None:
        """Return a mask [vocab] of the tokens that may follow those `written` so far (without the prompt); None: all.

        Tokens beyond the end of the mask are not allowed. The text may end here if an end token is allowed.
        """
        ...


def constrained(logits: Logits, constraint: LogitConstraint, written: Sequence[int]) -> Logits:
    """Set the logits [vocab] of tokens that may not follow `written` to minus infinity.

    Raises `UsageError` where no token is allowed.
    """
    mask = constraint.allowed(written)
    if mask is None:
        return logits
    within = mask[: len(logits)]
    if not within.any():
        raise UsageError(
            f"the constraint allows no token after {len(written)} tokens. Make it allow an end token when it is done."
        )
    masked = np.full_like(logits, -np.inf)
    masked[: len(within)][within] = logits[: len(within)][within]
    return masked
