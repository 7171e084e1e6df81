"""A choice of a token on a GPU: the logits it is made from, and all that decides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.plugins.native.token_choice.edits import EDIT, Edits
from intaglio.plugins.native.token_choice.filters import Filters

Octets = npt.NDArray[np.uint8]
NUMBERS = 11  # in a row of the settings

HIGHEST = Filters(np.float32(1), 1, 1 << 32, 0)  # with a draw of 0: the first of the tokens with the highest score


@dataclass(frozen=True)
class Choice:
    """One choice. `octets`: a mask of bits, the first token in the lowest bit; None: every token is allowed."""

    octets: Octets | None
    edits: Edits
    penalty: float
    filters: Filters
    draw: int  # 0 to 2^53 - 1


def packed(sources: Sequence[int], choices: Sequence[Choice]) -> tuple[npt.NDArray[np.uint64], Octets, Edits]:
    """Return what the kernels read: settings uint64 [choices, NUMBERS], all masks one after another, and all edits.

    sources: for each choice, the element of the logits where its row begins.
    """
    settings = np.zeros((len(choices), NUMBERS), np.uint64)
    octets: list[Octets] = []
    edits: list[Edits] = []
    masked = edited = 0
    for row, source, choice in zip(settings, sources, choices, strict=True):
        count = 0 if choice.octets is None else len(choice.octets) + 1
        filters = choice.filters
        penalty, scale = (int(np.float32(value).view(np.uint32)) for value in (choice.penalty, filters.scale))
        row[:] = source, masked, count, edited, len(choice.edits), penalty, scale, *filters[1:], choice.draw
        edits.append(choice.edits)
        edited += len(choice.edits)
        if choice.octets is not None:
            octets.append(choice.octets)
            masked += len(choice.octets)
    return settings, np.concatenate([np.zeros(0, np.uint8), *octets]), np.concatenate([np.zeros(0, EDIT), *edits])
