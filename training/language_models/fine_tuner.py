"""Fine-tune a causal language model while masks keep pruned weights at 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from intaglio.errors import GraphError
from intaglio.training.language_models.checkpoint import Windows
from intaglio.training.language_models.masks import Masks

LONGEST_GRADIENT = 1.0  # gradients are clipped to this norm
WARM_UP = 20  # steps in which the learning rate rises


class FineTuner:
    """Trains `network` (of transformers) to predict each next token, with the weights under `masks` at 0."""

    def __init__(self, network: Any, masks: Masks, held_out: Windows, batch_size: int, learning_rate: float):
        self._network = network
        self._masks = masks
        self._held_out = [
            torch.from_numpy(held_out[at : at + batch_size]) for at in range(0, len(held_out), batch_size)
        ]
        self._optimiser, self._rates = optimiser_of(network.parameters(), learning_rate, risen)

    def step(self, windows: Windows) -> None:
        """Run one step on windows [batch, tokens]. Raises `GraphError` if the loss becomes NaN or infinite."""
        self._network.train()
        self._masks.apply()
        self._optimiser.zero_grad()
        loss = self._loss(torch.from_numpy(windows))
        loss.backward()  # type: ignore[no-untyped-call]
        self._masks.apply()
        follow(loss, self._network.parameters(), self._optimiser, self._rates)
        self._masks.apply()  # the optimiser's momentum moves weights without a gradient

    @torch.no_grad()
    def loss(self) -> float:
        """The mean loss of the held-out windows, in nats per token."""
        self._network.eval()
        losses = [self._loss(windows).item() for windows in self._held_out]
        return float(np.average(losses, weights=[len(windows) for windows in self._held_out]))

    def _loss(self, windows: Tensor) -> Tensor:
        logits = self._network(input_ids=windows, use_cache=False).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def optimiser_of(
    parameters: Iterable[Tensor], learning_rate: float, part: Callable[[int], float]
) -> tuple[Optimizer, LRScheduler]:
    """AdamW without weight decay, and its schedule: `part(steps done)` is the fraction of `learning_rate`."""
    optimiser = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, part)


def follow(loss: Tensor, parameters: Iterable[Tensor], optimiser: Optimizer, rates: LRScheduler) -> None:
    """Run an optimiser step on `loss`. Raises `GraphError` if the gradients become NaN or infinite."""
    length = float(torch.nn.utils.clip_grad_norm_(parameters, LONGEST_GRADIENT))
    if not math.isfinite(length):
        raise GraphError(f"training: the loss is {loss.item():g}, the gradient {length:g}. Lower the learning rate.")
    optimiser.step()
    rates.step()


def risen(done: int) -> float:
    """The fraction of the learning rate after `done` steps: linear warm-up over the first `WARM_UP` steps."""
    return min(1.0, (done + 1) / WARM_UP)
