"""Train one step of drafts to match the model's own predictions, and measure the agreement."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from intaglio.training.language_models.checkpoint import Windows
from intaglio.training.language_models.drafter import Drafter
from intaglio.training.language_models.fine_tuner import follow, optimiser_of, risen

LIKELIEST = 3  # top predictions per step that a draft tree may contain


class Agreement(msgspec.Struct):
    """The agreement of a step's predictions with the model's own on held-out text, over all tokens."""

    kl_divergence: float  # nats, of the step's distribution from the model's
    top1: float  # fraction of tokens where the model's top-1 is the step's top-1
    top3: float  # ... is in the step's top-3


class DraftTuner:
    """Trains the matrix of `step`; the learning rate warms up, then falls linearly to 0."""

    def __init__(self, drafter: Drafter, step: int, learning_rate: float, steps: int):
        """`steps`: the total number of optimiser steps."""
        self._drafter, self._step = drafter, step
        self._matrix = drafter.matrices[step].get_parameter("weight")
        self._optimiser, self._rates = optimiser_of(
            [self._matrix], learning_rate, lambda done: risen(done) * (1 - done / steps)
        )

    def train(self, windows: Windows) -> None:
        """Run one optimiser step on windows [batch, tokens]. Raises `GraphError` if the loss is NaN or infinite."""
        self._optimiser.zero_grad()
        loss = _divergence(*self._drafter.logits(torch.from_numpy(windows), self._step)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        follow(loss, [self._matrix], self._optimiser, self._rates)


@torch.no_grad()
def agreement(drafter: Drafter, step: int, held_out: Windows, batch_size: int) -> Agreement:
    """The agreement of `step` on the windows `held_out` [windows, tokens]."""
    sums, count = torch.zeros(3, dtype=torch.float64), 0
    for at in range(0, len(held_out), batch_size):
        own, drafted = drafter.logits(torch.from_numpy(held_out[at : at + batch_size]), step)
        likeliest = own.argmax(-1, keepdim=True)
        hits = drafted.topk(min(LIKELIEST, drafted.shape[-1])).indices == likeliest
        divergence = _divergence(own, drafted)
        sums += torch.stack([divergence.double().sum(), hits[..., 0].double().sum(), hits.double().sum()])
        count += divergence.numel()
    return Agreement(*(sums / count).tolist())


def _divergence(own: Tensor, drafted: Tensor) -> Tensor:
    """KL divergence, nats, [batch, tokens], from logits [batch, tokens, vocab] (Hidden Transfer, section 3.3)."""
    expected, found = own.log_softmax(-1), drafted.log_softmax(-1)
    return (expected.exp() * (expected - found)).sum(-1)
