"""Constraints: which tokens may come next in a text. They mask logits before a token is chosen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError
from intaglio.plugins.native import logit_mask
from intaglio.plugins.native.logit_mask import BITS

Booleans = npt.NDArray[np.bool_]
Octets = npt.NDArray[np.uint8]  # a mask as bits, eight tokens in each byte, the first token in the lowest bit
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

    def octets(self, written: Sequence[int]) -> Octets | None:
        """Return `allowed` as bits; those beyond the end of the mask are 0."""
        mask = self.allowed(written)
        return None if mask is None else np.packbits(mask, bitorder="little")

    def finished(self, written: Sequence[int]) -> bool:
        """Whether the text is complete with `written`: it ends here without an end token."""
        return False

    def forced(self, written: Sequence[int]) -> int | None:
        """Return the only token that may follow `written`; None if there are several, or none."""
        octets = self.octets(written)
        if octets is None or np.count_nonzero(octets) != 1:
            return None
        place = int(octets.argmax())
        octet = int(octets[place])
        return BITS * place + octet.bit_length() - 1 if octet.bit_count() == 1 else None

    def count_allowed(self, written: Sequence[int], draft: Sequence[int]) -> int:
        """Return how many tokens of `draft`, from its first, may follow `written` one after another."""
        for place, token in enumerate(draft):
            before = [*written, *draft[:place]]
            mask = self.allowed(before)
            if self.finished(before) if mask is None else not (token < len(mask) and mask[token]):
                return place
        return len(draft)


class Suppression(LogitConstraint):
    """Allows every token of a vocabulary but some."""

    def __init__(self, tokens: Sequence[int], vocabulary: int):
        self._mask: Booleans = np.ones(vocabulary, np.bool_)
        self._mask[list(tokens)] = False
        self._octets: Octets = np.packbits(self._mask, bitorder="little")

    def allowed(self, written: Sequence[int]) -> Booleans:
        """See `LogitConstraint`."""
        return self._mask

    def octets(self, written: Sequence[int]) -> Octets:
        """See `LogitConstraint`."""
        return self._octets

    def forced(self, written: Sequence[int]) -> None:
        """Return None: several tokens may follow."""


def constrained(logits: Logits, constraint: LogitConstraint, written: Sequence[int], memory: Logits) -> Logits:
    """Return the logits [vocab], with minus infinity for tokens that may not follow `written`: see `allowed_octets`.

    `memory`: [vocab] of the dtype of `logits`, which the result is written to.
    """
    octets = allowed_octets(len(logits), constraint, written)
    if octets is None:
        return logits
    return logit_mask.apply(logits, octets, memory)  # an infinite one may become NaN, which the sampler reports


def allowed_octets(vocabulary: int, constraint: LogitConstraint, written: Sequence[int]) -> Octets | None:
    """Return the tokens of a vocabulary that may follow `written`, as bits; None: all.

    A complete text is not constrained, as what follows it is not written. Raises `UsageError` if no token is allowed.
    """
    octets = constraint.octets(written)
    if octets is None or _any_within(octets, vocabulary):
        return octets
    if constraint.finished(written):
        return None
    raise UsageError(
        f"the constraint allows no token after {len(written)} tokens. Make it allow an end token when it is done."
    )


def _any_within(octets: Octets, size: int) -> bool:
    """Whether one of the first `size` bits is set."""
    whole, rest = divmod(size, BITS)
    return bool(np.count_nonzero(octets[:whole]) or (rest and (octets[whole : whole + 1] & (1 << rest) - 1).any()))


def masking_memory(logits: Logits) -> Logits:
    """Return new memory for `constrained`."""
    return np.empty(len(logits), logits.dtype)
