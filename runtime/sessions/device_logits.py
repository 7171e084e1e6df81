"""Logits that stay on a GPU: tokens are chosen there, and only what a strategy asks for goes to the host."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.errors import EngineError, MissingExtraError
from intaglio.plugins.cuda import launcher
from intaglio.plugins.cuda.launching.geometry import Launch
from intaglio.plugins.native.token_choice import launch
from intaglio.plugins.native.token_choice.reference import ONE
from intaglio.plugins.native.token_choice.settings import Choice, packed
from intaglio.runtime.engines.device_array import DeviceArray
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.sessions.device_distribution import DeviceDistribution

Index = int | slice | tuple[int | slice, ...]


Logits = npt.NDArray[np.float32]


class LogitsOnTheHost(UserWarning):
    """Tokens are chosen on the CPU, to which the logits of every step are copied."""


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
        self._spare: dict[int, list[int]] = {}  # bytes -> addresses of such buffers that nothing uses

    def summary(self, logits: DeviceArray) -> Summary:
        """Summarise logits [rows, wanted, vocab], whose rows lie evenly apart."""
        rows, wanted, vocabulary = logits.shape
        count = rows * wanted
        found = self._buffer("summary", 16 * count)
        outputs = [found.address + offset * count for offset in (8, 12, 0)]
        self.run(launch.summarise(count, vocabulary, _stride(logits)), [logits.address], outputs)
        numbers = np.empty(16 * count, np.uint8)
        self.memory.copy(numbers, found)
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
        numbers = np.empty(found.nbytes, np.uint8)
        self.memory.copy(numbers, found)
        sums, tokens, scores = np.split(numbers, [8 * rows, 8 * rows + half])
        shape = rows, count
        totals = sums.view(np.uint64) / 2.0**ONE
        return tokens.view(np.int32).reshape(shape), scores.view(np.float32).reshape(shape), totals

    def choose(self, rows: Sequence[DeviceArray], choices: Sequence[Choice]) -> list[int]:
        """Choose a token from each of `rows` of logits [vocab]; -1 if one is NaN or infinite."""
        count, (vocabulary,) = len(choices), rows[0].shape
        scores, settings = self._prepared(rows, choices)
        return self._tokens(launch.choose(count, vocabulary), [scores, settings], count)

    def distribution(self, row: DeviceArray, choice: Choice) -> DeviceDistribution:
        """The probabilities that `choice` would draw from, for logits [vocab]."""
        found = DeviceDistribution(self, *row.shape)
        self.run(launch.weigh(*row.shape), self._prepared([row], [choice]), [found.weights.address])
        return found

    def drawn(self, work: Launch, weights: DeviceArray) -> int:
        """The token that a launch draws from `weights`."""
        return self._tokens(work, [weights.address], 1)[0]

    def take(self, size: int) -> int:
        """The address of a buffer of `size` bytes, for `give_back`."""
        spare = self._spare.setdefault(size, [])
        return spare.pop() if spare else self.memory.empty([size], np.uint8).address

    def give_back(self, address: int, size: int) -> None:
        """Keep a buffer for the next `take`; what is on the stream may still use it."""
        self._spare.setdefault(size, []).append(address)

    def run(self, work: Launch, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Launch a kernel on arrays at these addresses."""
        launcher.enqueue(launch.FOLDER, work, inputs, outputs, self.memory.stream)

    def close(self) -> None:
        """Free the buffers."""
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
        place, behind = placed.address, placed.address + settings.nbytes
        scores = self._buffer("scores", 4 * count * vocabulary).address
        self.run(launch.prepare(count, vocabulary), [first, place, behind + edits.nbytes, behind], [scores])
        return [scores, place]

    def _tokens(self, work: Launch, inputs: Sequence[int], count: int) -> list[int]:
        """The tokens that a launch writes."""
        found = DeviceArray.contiguous_at(self._buffer("tokens", 4 * count).address, [count], np.int32)
        self.run(work, inputs, [found.address])
        tokens = np.empty(count, np.int32)
        self.memory.copy(tokens, found)
        return [int(token) for token in tokens]

    def _buffer(self, name: str, size: int) -> DeviceArray:
        """`size` bytes, whose content is lost with the next call for the same name."""
        held = self._held.get(name)
        if held is None or held.nbytes < size:
            if held is not None:
                self.memory.release(held)
            held = self._held[name] = self.memory.empty([size], np.uint8)
        return held[:size]


class DeviceLogits:
    """Logits [rows, wanted, vocab] float32 on a GPU, or a part of them; valid until the next step.

    As a NumPy array, and by `copy`, they are on the host.
    """

    def __init__(self, chooser: TokenChooser, array: DeviceArray, part_of: tuple[DeviceLogits, Index] | None = None):
        """`part_of`: the logits that these are a part of, and the index."""
        self._chooser, self._array, self._part_of = chooser, array, part_of
        self.chosen: int | None = None  # the token chosen from the last row, together with those of other sequences

    def __getitem__(self, index: Index) -> DeviceLogits:
        """A view of the part at `index`, of leading axes before the last."""
        part = DeviceLogits(self._chooser, self._array[index], (self, index))
        part.chosen = self.chosen if index in (-1, len(self) - 1) else None
        return part

    @cached_property
    def _summary(self) -> Summary:
        """Of all rows of a step at once, when one of them is asked for."""
        if self._part_of is None:
            return self._chooser.summary(self._array)
        whole, index = self._part_of
        return whole._summary.part(index)

    def __len__(self) -> int:
        return self._array.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of every axis."""
        return self._array.shape

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        found = self.copy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def copy(self) -> npt.NDArray[np.float32]:
        """A copy on the host."""
        found: npt.NDArray[np.float32] = np.empty(self.shape, np.float32)
        self._chooser.memory.copy(found, self._array)
        return found

    def best(self) -> int:
        """Of one row, the token with the highest logit; -1 if one is NaN or the highest is infinite."""
        return int(self._summary.tokens)

    def largest_probability(self) -> float:
        """Of one row, the highest probability at a temperature of 1."""
        return float(1 / self._summary.totals)

    def surprise(self, token: int) -> float:
        """Of one row, -ln p(token) at a temperature of 1, in nats."""
        logit: npt.NDArray[np.float32] = np.empty(1, np.float32)
        self._chooser.memory.copy(logit, self._array[token : token + 1])
        return float(np.log(self._summary.totals) + (self._summary.highest - logit[0]))

    def likeliest(self, count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """Of each row of [rows, vocab], the most probable tokens, see `TokenChooser`."""
        return self._chooser.likeliest(self._array, count)

    def distribution(self, choice: Choice) -> DeviceDistribution:
        """Of one row, the probabilities that `choice` would draw from."""
        return self._chooser.distribution(self._array, choice)

    def choose(self, choice: Choice) -> int:
        """Of one row, the token of `choice`; -1 if a logit is NaN or the highest is infinite."""
        return self._chooser.choose([self._array], [choice])[0]


StepLogits = Logits | DeviceLogits


def choose_together(logits: Sequence[DeviceLogits], choices: Sequence[Choice]) -> None:
    """Choose a token from the last row of each of `logits` [wanted, vocab], all of one step, and note it there."""
    tokens = logits[0]._chooser.choose([each._array[len(each) - 1] for each in logits], choices)
    for each, token in zip(logits, tokens, strict=True):
        each.chosen = token


def chooser_for(engine: Engine, output: str) -> TokenChooser | None:
    """What chooses tokens where `engine` computes, from the logits that are its `output`; None for the host.

    Without a compiler of kernels it is the host, too, and the warning `LogitsOnTheHost` says so.
    """
    (dtype,) = (spec.dtype for spec in engine.outputs if spec.name == output)
    if not isinstance(engine.memory, DeviceMemory) or dtype != "float32":
        return None
    try:
        launcher.prepare(launch.FOLDER)
    except (EngineError, MissingExtraError) as error:
        warnings.warn(f"tokens are chosen on the CPU: {error}", LogitsOnTheHost, stacklevel=3)
        return None
    return TokenChooser(engine.memory)


def _stride(logits: DeviceArray) -> int:
    """Elements between the starts of rows [..., vocab] that lie evenly apart."""
    *_, width = logits.strides
    assert width == logits.dtype.itemsize, "each row is contiguous"
    return logits.strides[-2] // width
