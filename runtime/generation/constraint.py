"""Constraints: which tokens may come next in a text. They mask logits before a token is chosen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError

Booleans = npt.NDArray[np.bool_]
Logits = npt.NDArray[np.floating]


class LogitConstraint(ABC):
    """Decides which tokens may come next, as a function of the preceding tokens alone.

    Strategies ask about drafts too, in any order, so no answer may depend on earlier calls. `written` are the tokens
    of the text so far, without the prompt.
    """

    @abstractmethod
    def allowed(self, written: Sequence[int]) -> Booleans | None:
        """Return a mask [vocab] of the tokens that may follow `written`; None: all.

        Tokens beyond the end of the mask are not allowed. The text may end here if an end token is allowed.
        """

    def finished(self, written: Sequence[int]) -> bool:
        """Whether the text is complete with `written`: it ends here without an end token."""
        return False

    def count_allowed(self, written: Sequence[int], draft: Sequence[int]) -> int:
        """Return how many tokens of `draft`, from its first, may follow `written` one after another."""
        for place, token in enumerate(draft):
            before = [*written, *draft[:place]]
            mask = self.allowed(before)
            if self.finished(before) or (mask is not None and not (token < len(mask) and mask[token])):
                return place
        return len(draft)


def constrained(logits: Logits, constraint: LogitConstraint, written: Sequence[int], out: Logits) -> Logits:
    """Return the logits [vocab], with minus infinity for tokens that may not follow `written`.

    `out`: an array of the shape and dtype of `logits`, for the result. A complete text is not constrained, as what
    follows it is not written. Raises `UsageError` where no token is allowed.
    """
    mask = constraint.allowed(written)
    if mask is None:
        return logits
    within = mask[: len(logits)]
    if not within.any():
        if constraint.finished(written):
            return logits
        raise UsageError(
            f"the constraint allows no token after {len(written)} tokens. Make it allow an end token when it is done."
        )
    out.fill(-np.inf)
    np.copyto(out[: len(within)], logits[: len(within)], where=within)
    return out
