"""Logits that stay on a GPU: tokens are chosen there, and only what a strategy asks for goes to the host."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import EngineError, MissingExtraError
from intaglio.plugins.cuda import launcher
from intaglio.plugins.native.token_choice import launch
from intaglio.plugins.native.token_choice.settings import Choice
from intaglio.runtime.engines.device_array import DeviceArray
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.sessions.device_distribution import DeviceDistribution
from intaglio.runtime.sessions.token_chooser import Summary, TokenChooser

Index = int | slice | tuple[int | slice, ...]

Logits = npt.NDArray[np.float32]


class LogitsOnTheHost(UserWarning):
    """Tokens are chosen on the CPU, to which the logits of every step are copied."""


class DeviceLogits:
    """Logits [rows, wanted, vocab] float32 on a GPU, or a part of them; valid until the next step.

    As a NumPy array, and by `copy`, they are on the host.
    """

    def __init__(self, chooser: TokenChooser, array: DeviceArray, part_of: tuple[DeviceLogits, Index] | None = None):
        """`part_of`: the logits that these are a part of, and the index."""
        self._chooser, self._memory, self._part_of = chooser, array, part_of
        self._step: int = chooser.steps if part_of is None else part_of[0]._step
        self.chosen: int | None = None  # the token chosen from the last row, together with those of other sequences

    def __getitem__(self, index: Index) -> DeviceLogits:
        """A view of the part at `index`, of leading axes before the last."""
        part = DeviceLogits(self._chooser, self._memory[index], (self, index))
        part.chosen = self.chosen if index in (-1, len(self) - 1) else None
        return part

    @property
    def _array(self) -> DeviceArray:
        """Where they are. Raises `EngineError` once a step has overwritten them."""
        if self._step != self._chooser.steps:
            raise EngineError("logits of an earlier step are asked for. Copy them before the next step.")
        return self._memory

    @cached_property
    def _summary(self) -> Summary:
        """Of all rows of a step at once, when one of them is asked for."""
        if self._part_of is None:
            return self._chooser.summary(self._array)
        whole, index = self._part_of
        return whole._summary.part(index)

    def __len__(self) -> int:
        return self._memory.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of every axis."""
        return self._memory.shape

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        found = self.copy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def copy(self) -> npt.NDArray[np.float32]:
        """A copy on the host."""
        return self._chooser.fetched(self._array)

    def best(self) -> int:
        """Of one row, the token with the highest logit; -1 if one is NaN or the highest is infinite."""
        return int(self._summary.tokens)

    def largest_probability(self) -> float:
        """Of one row, the highest probability at a temperature of 1."""
        return float(1 / self._summary.totals)

    def surprise(self, token: int) -> float:
        """Of one row, -ln p(token) at a temperature of 1, in nats."""
        (logit,) = self._chooser.fetched(self._array[token : token + 1])
        return float(np.log(self._summary.totals) + (self._summary.highest - logit))

    def likeliest(self, count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """Of each row of [rows, vocab], the most probable tokens, see `TokenChooser`."""
        return self._chooser.likeliest(self._array, count)

    def distribution(self, choice: Choice) -> DeviceDistribution:
        """Of one row, the probabilities that `choice` would draw from."""
        found = DeviceDistribution(self._chooser, *self.shape)
        self._chooser.weigh(self._array, choice, found.weights)
        return found

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
        if engine.memory.device != 0:
            raise EngineError(f"the kernels run on GPU 0, and the engine on {engine.memory.device}.")
        launcher.prepare(launch.FOLDER)
    except (EngineError, MissingExtraError) as error:
        warnings.warn(f"tokens are chosen on the CPU: {error}", LogitsOnTheHost, stacklevel=4)
        return None
    return TokenChooser(engine.memory)
