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
        self._staying: Tensor | None = None  # bool [batch, tokens, 1]: runs through the next block; None: all do
        self.blocks_run: Tensor | None = None  # int64 [batch, tokens, 1]

    @contextmanager
    def watching(self, model: Any, select: Any = torch.where) -> Iterator[None]:
        """While this context is active, tokens exit in `model`.

        `select(staying, new, old)` returns the states after a block.
        """

        def change(old: Tensor, new: Tensor) -> Tensor:
            states: Tensor = new if self._staying is None else select(self._staying, new, old)
            ran = torch.ones_like(states[..., :1], dtype=torch.int64) if self._staying is None else self._staying.long()
            self.blocks_run = ran if self.blocks_run is None else self.blocks_run + ran
            staying = ~(_cosine(old, states) > self._thresholds)
            self._staying = staying if self._staying is None else self._staying & staying
            return states

        with ExitStack() as hooks:
            for block in blocks(model):
                hooks.enter_context(after(block, change))
            yield


def _cosine(left: Tensor, right: Tensor) -> Tensor:
    """[batch, tokens, 1], in float32; NaN if a state is zero, which exceeds no threshold."""
    left, right = left.float(), right.float()
    lengths = [torch.linalg.vector_norm(each, dim=-1, keepdim=True) for each in (left, right)]
    cosines: Tensor = (left * right).sum(-1, keepdim=True) / (lengths[0] * lengths[1])
    return cosines
