"""The probabilities that a token is drawn from, on a GPU."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.plugins.native.token_choice import launch
from intaglio.runtime.engines.device_array import DeviceArray
from intaglio.runtime.sessions.token_chooser import TokenChooser, checked

WEIGHT = np.dtype(np.uint64)


class DeviceDistribution:
    """Probabilities [vocab] after all filters; `[token]` is one of them. As a NumPy array, they are on the host.

    Its memory goes back to the chooser when nothing refers to it any more.
    """

    def __init__(self, chooser: TokenChooser, vocabulary: int):
        """Memory for the sum of the weights and those of each token, for a kernel to write."""
        self._chooser, self._size = chooser, vocabulary
        address = chooser.take(WEIGHT.itemsize * (1 + vocabulary))
        self.weights = DeviceArray.contiguous_at(address, [1 + vocabulary], WEIGHT)
        weakref.finalize(self, chooser.give_back, address, self.weights.nbytes)
        self._sum: int | None = None

    def __getitem__(self, token: int) -> float:
        """The probability of a token. Raises `EngineError` if the logits were NaN or infinite."""
        if self._sum is None:
            self._sum = int(self._read(0, 1)[0])
        checked(self._sum or -1)
        return int(self._read(1 + token, 1)[0]) / self._sum

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        weights = self._read(1, self._size)
        return np.asarray(weights / weights.sum(), dtype)

    def draw(self, number: int) -> int:
        """Draw a token; `number`: 0 to 2^53 - 1. -1 if all weights are 0."""
        return self._chooser.drawn(launch.draw(self._size, number), self.weights)

    def instead_of(self, token: int, draft: DeviceDistribution | None) -> DeviceDistribution:
        """The distribution of what replaces a rejected draft token, see `subtracted`; only `draw` may be asked for.

        `draft`: what the token was drawn from; None if it was not drawn.
        """
        found = DeviceDistribution(self._chooser, self._size)
        work = launch.subtract(self._size, token if draft is None else None)
        inputs = [self.weights.address, (draft or self).weights.address]
        self._chooser.run(work, inputs, [found.weights.address])
        return found

    def _read(self, start: int, count: int) -> npt.NDArray[np.uint64]:
        return self._chooser.fetched(self.weights[start : start + count])
