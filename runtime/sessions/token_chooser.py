"""The kernels that choose tokens, on memory of a GPU that is kept from one step to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.errors import EngineError
from intaglio.plugins.cuda import launcher
from intaglio.plugins.cuda.launching.geometry import Launch
from intaglio.plugins.native.token_choice import launch
from intaglio.plugins.native.token_choice.reference import ONE
from intaglio.plugins.native.token_choice.settings import Choice, packed
from intaglio.runtime.engines.device_array import DeviceArray
from intaglio.runtime.engines.device_memory import DeviceMemory

MOST_SPARE = 64 << 20  # bytes of buffers of one size that are kept for later


class Summary(NamedTuple):
    """Of each row of logits: the token with the highest, -1 for NaN or infinity; the highest; Σ exp(logit - it)."""

    tokens: npt.NDArray[np.int32]
    highest: npt.NDArray[np.float32]
    totals: npt.NDArray[np.float64]

    def part(self, index: Any) -> Summary:
        """The same of a part of the rows."""
        return Summary(self.tokens[index], self.highest[index], self.totals[index])


class TokenChooser:
    """Chooses tokens on a GPU from logits in its `memory`, until this is closed."""

    def __init__(self, memory: DeviceMemory):
        self.memory = memory
        self._held: dict[str, DeviceArray] = {}  # buffers that grow on demand
        self._spare: dict[int, list[int]] = {}  # bytes -> addresses of buffers that nothing uses
        self._given: npt.NDArray[np.uint8] | None = None
        self._is_closed = False
        self.steps = 0  # after each of them, logits of those before are overwritten

    def summary(self, logits: DeviceArray) -> Summary:
        """Summarise logits [rows, wanted, vocab], whose rows lie evenly apart."""
        rows, wanted, vocabulary = logits.shape
        count = rows * wanted
        found = self._buffer("summary", 16 * count)
        outputs = [found.address + offset * count for offset in (8, 12, 0)]
        self.run(launch.summarise(count, vocabulary, _stride(logits)), [logits.address], outputs)
        numbers = self.fetched(found)
        sums, rest = np.split(numbers, [8 * count])
        tokens, highest = np.split(rest, 2)
        whole = Summary(tokens.view(np.int32), highest.view(np.float32), sums.view(np.uint64) / 2.0**ONE)
        return whole.part(np.arange(count).reshape(rows, wanted))

    def likeliest(
        self, logits: DeviceArray, count: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """Of each row of logits [rows, vocab]: the most probable tokens, their logits, and Σ exp(logit - highest)."""
        rows, vocabulary = logits.shape
        count = min(count, vocabulary, launch.MOST_LIKELIEST)
        half = 4 * rows * count
        found = self._buffer("likeliest", 8 * rows + 2 * half)
        places = [found.address + offset for offset in (8 * rows, 8 * rows + half, 0)]
        self.run(launch.likeliest(rows, vocabulary, _stride(logits), count), [logits.address], places)
        numbers = self.fetched(found)
        sums, tokens, scores = np.split(numbers, [8 * rows, 8 * rows + half])
        shape = rows, count
        totals = sums.view(np.uint64) / 2.0**ONE
        return tokens.view(np.int32).reshape(shape), scores.view(np.float32).reshape(shape), totals

    def choose(self, rows: Sequence[DeviceArray], choices: Sequence[Choice]) -> list[int]:
        """Choose a token from each of `rows` of logits [vocab]; -1 if one is NaN or infinite."""
        count, (vocabulary,) = len(choices), rows[0].shape
        scores, settings = self._prepared(rows, choices)
        return self._tokens(launch.choose(count, vocabulary), [scores, settings], count)

    def weigh(self, row: DeviceArray, choice: Choice, weights: DeviceArray) -> None:
        """Write what `choose` would draw by, for logits [vocab], to `weights` uint64 [1 + vocab], the sum first."""
        self.run(launch.weigh(*row.shape), self._prepared([row], [choice]), [weights.address])

    def drawn(self, work: Launch, weights: DeviceArray) -> int:
        """The token that a launch draws from `weights`."""
        return self._tokens(work, [weights.address], 1)[0]

    def take(self, size: int) -> int:
        """The address of a buffer of `size` bytes, for `give_back`."""
        spare = self._spare.setdefault(size, [])
        return spare.pop() if spare else self.memory.empty([size], np.uint8).address

    def give_back(self, address: int, size: int) -> None:
        """Keep a buffer for the next `take`, unless there are many; what is on the stream may still use it.

        After `close` it is freed with the memory.
        """
        if self._is_closed:
            return
        spare = self._spare.setdefault(size, [])
        if size * len(spare) < MOST_SPARE:
            spare.append(address)
        else:
            self.memory.release(DeviceArray.contiguous_at(address, [size], np.uint8))

    def fetched(self, array: DeviceArray) -> npt.NDArray[Any]:
        """A copy of an array on the host, when all work before it is done."""
        found: npt.NDArray[Any] = np.empty(array.shape, array.dtype)
        self.memory.copy(found, array)
        self.memory.wait()
        return found

    def run(self, work: Launch, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Launch a kernel on arrays at these addresses."""
        launcher.enqueue(launch.FOLDER, work, inputs, outputs, self.memory.stream)

    def close(self) -> None:
        """Free the buffers that nothing uses."""
        self._is_closed = True
        for buffer in self._held.values():
            self.memory.release(buffer)
        for size, addresses in self._spare.items():
            for address in addresses:
                self.memory.release(DeviceArray.contiguous_at(address, [size], np.uint8))
        self._held.clear()
        self._spare.clear()

    def _prepared(self, rows: Sequence[DeviceArray], choices: Sequence[Choice]) -> list[int]:
        """The addresses of the scores of `rows` after masks and edits, and of the settings of `choices`."""
        count, (vocabulary,), first = len(choices), rows[0].shape, min(row.address for row in rows)
        settings, octets, edits = packed([(row.address - first) // row.dtype.itemsize for row in rows], choices)
        given = np.concatenate([part.view(np.uint8).reshape(-1) for part in (settings, edits, octets)])
        placed = self._buffer("settings", len(given))
        self.memory.copy(placed, given)
        self._given = given  # until the copy is done, which is when something is fetched
        place, behind = placed.address, placed.address + settings.nbytes
        scores = self._buffer("scores", 4 * count * vocabulary).address
        self.run(launch.prepare(count, vocabulary), [first, place, behind + edits.nbytes, behind], [scores])
        return [scores, place]

    def _tokens(self, work: Launch, inputs: Sequence[int], count: int) -> list[int]:
        """The tokens that a launch writes."""
        found = DeviceArray.contiguous_at(self._buffer("tokens", 4 * count).address, [count], np.int32)
        self.run(work, inputs, [found.address])
        return [int(token) for token in self.fetched(found)]

    def _buffer(self, name: str, size: int) -> DeviceArray:
        """`size` bytes, whose content is lost with the next call for the same name."""
        held = self._held.get(name)
        if held is None or held.nbytes < size:
            if held is not None:
                self.memory.release(held)  # waits for the device, so sizes that grow must do so rarely
            held = self._held[name] = self.memory.empty([1 << (size - 1).bit_length()], np.uint8)
        return held[:size]


def checked(token: int) -> int:
    """Return `token`; raise `EngineError` for -1, which stands for NaN or infinite logits."""
    if token < 0:
        raise EngineError("the model returns NaN or infinite logits. It overflows: use another bundle or dtype.")
    return token


def _stride(logits: DeviceArray) -> int:
    """Elements between the starts of rows [..., vocab] that lie evenly apart."""
    *_, width = logits.strides
    assert width == logits.dtype.itemsize, "each row is contiguous"
    return logits.strides[-2] // width
