"""Early exits in torch, on a `transformers` model: used by training, and as an export's reference. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from intaglio.networks.blocks import after, before, blocks


@contextmanager
def exits(model: Any, layers: Sequence[int]) -> Iterator[None]:
    """While this context is active, `model` goes on behind its last block with the states of exits, too.

    layers  the blocks before each exit

    Its logits are those of the exits in turn, then its own: [batch, (exits + 1) · tokens, vocab], or the same elements
    in that order. What lies behind the blocks, a norm and the head, treats each row alike.
    """
    exited: dict[int, Tensor] = {}

    def note(layer: int, states: Tensor) -> Tensor:
        exited[layer] = states
        return states

    def together(_: Tensor, states: Tensor) -> Tensor:
        return torch.cat([*exited.values(), states], 1)

    with ExitStack() as hooks:
        every = blocks(model)
        for layer in layers:
            hooks.enter_context(before(every[layer], partial(note, layer)))
        hooks.enter_context(after(every[-1], together))
        yield


class Saturation:
    """The states of tokens that exit once they hardly change (CALM, Schuster et al. 2022).

    A token exits after a block if the cosine similarity of its states before and after it exceeds its threshold; then
    they stay unchanged. Each block still computes keys and values from them.
    """

    def __init__(self, thresholds: Tensor):
        """`thresholds`: float32 [batch, 1, 1]."""
        self._thresholds = thresholds
        self._entered: Tensor | None = None  # the states before the current block
        self._staying: Tensor | None = None  # bool [batch, tokens, 1]: runs through the current block; None: all do
        self.blocks_run: Tensor | None = None  # int64 [batch, tokens, 1], with the current block

    @contextmanager
    def watching(self, model: Any, select: Any = torch.where) -> Iterator[None]:
        """While this context is active, tokens exit in `model`.

        `select(staying, new, old)` returns the states after a block.
        """

        def enter(states: Tensor) -> Tensor:
            if self._entered is not None:
                staying = ~(_cosine(self._entered, states) > self._thresholds)
                self._staying = staying if self._staying is None else self._staying & staying
                self.blocks_run = self._staying.long() + (1 if self.blocks_run is None else self.blocks_run)
            self._entered = states
            return states

        def leave(old: Tensor, new: Tensor) -> Tensor:
            return new if self._staying is None else select(self._staying, new, old)

        with ExitStack() as hooks:
            for block in blocks(model):
                hooks.enter_context(before(block, enter))
                hooks.enter_context(after(block, leave))
            yield


def _cosine(left: Tensor, right: Tensor) -> Tensor:
    """[batch, tokens, 1], in float32; NaN if a state is zero, which exceeds no threshold."""
    left, right = left.float(), right.float()
    lengths = [torch.linalg.vector_norm(each, dim=-1, keepdim=True) for each in (left, right)]
    cosines: Tensor = (left * right).sum(-1, keepdim=True) / (lengths[0] * lengths[1])
    return cosines
