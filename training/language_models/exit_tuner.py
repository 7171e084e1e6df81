"""Train a causal language model to predict after some of its blocks, and measure these predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from intaglio.networks.exit_network import exits
from intaglio.training.language_models.checkpoint import Windows
from intaglio.training.language_models.fine_tuner import follow, optimiser_of, risen


class Exit(msgspec.Struct):
    """The predictions of one exit on held-out text, over all tokens."""

    loss: float  # nats per token
    agreement: float  # fraction of tokens where its top-1 is the last block's


def both(layer: int, depth: int) -> dict[int, float]:
    """An exit after `layer` blocks, and the whole model, with equal weights (thesis, appendix C.2, BiLD)."""
    return {layer: 0.5, depth: 0.5}


def every(depth: int) -> dict[int, float]:
    """An exit after every block, with the weights i / Σj of appendix C.2, CALM: later exits weigh more."""
    return {layer: 2 * layer / (depth * (depth + 1)) for layer in range(1, depth + 1)}


class ExitTuner:
    """Trains `network` (of transformers) on the weighted mean of its exits' losses: L = Σ w_i L_i.

    Final norm and head are shared.
    """

    def __init__(self, network: Any, weights: Mapping[int, float], learning_rate: float):
        """`weights`: blocks before an exit -> w_i, in ascending order; the last exit is after all blocks."""
        self._network, self._weights = network, dict(weights)
        self._optimiser, self._rates = optimiser_of(network.parameters(), learning_rate, risen)

    def step(self, windows: Windows) -> None:
        """Run one step on windows [batch, tokens]. Raises `GraphError` if the loss becomes NaN or infinite."""
        self._network.train()
        self._optimiser.zero_grad()
        tokens = torch.from_numpy(windows)
        losses = [_losses(logits, tokens).mean() for logits in self._logits(tokens)]
        loss = torch.stack([w * each for w, each in zip(self._weights.values(), losses, strict=True)]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        follow(loss, self._network.parameters(), self._optimiser, self._rates)

    @torch.no_grad()
    def measure(self, held_out: Windows, batch_size: int) -> list[Exit]:
        """Loss and agreement of every exit on the windows `held_out` [windows, tokens]."""
        self._network.eval()
        sums, count = torch.zeros(len(self._weights), 2, dtype=torch.float64), 0
        for at in range(0, len(held_out), batch_size):
            tokens = torch.from_numpy(held_out[at : at + batch_size])
            found = [(_losses(logits, tokens).double().sum(), logits.argmax(-1)) for logits in self._logits(tokens)]
            last = found[-1][1]
            sums += torch.stack([torch.stack([loss, (likeliest == last).sum()]) for loss, likeliest in found])
            count += last.numel()
        return [Exit(*each) for each in (sums / count).tolist()]

    def _logits(self, tokens: Tensor) -> Iterator[Tensor]:
        """The logits of each exit for each token but the first, [batch, tokens - 1, vocab], earliest exit first."""
        *early, _ = self._weights
        with exits(self._network, early):
            logits = self._network(input_ids=tokens, use_cache=False).logits
        yield from logits.reshape(len(tokens), len(self._weights), tokens.shape[1], -1)[:, :, :-1].unbind(1)


def _losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """The loss of every token but the first, in nats."""
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
