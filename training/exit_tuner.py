"""Training a causal language model to predict after its first blocks too, and measuring both of its predictions."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from intaglio.exit_network import before_head
from intaglio.training.causal_model import Windows
from intaglio.training.fine_tuner import follow, optimiser_of, risen


class Exits(msgspec.Struct):
    """What both exits predict on held-out text, over all tokens."""

    early_loss: float  # nats a token
    last_loss: float
    agreement: float  # part of the tokens where the likeliest is the same


class ExitTuner:
    """Trains `network` (of transformers) on the mean of the losses after `layer` blocks and after the last one.

    L = (L_early + L_last) / 2, final norm and head shared (thesis, appendix C.2).
    """

    def __init__(self, network: Any, layer: int, learning_rate: float):
        self._network, self._layer = network, layer
        self._optimiser, self._rates = optimiser_of(network.parameters(), learning_rate, risen)

    def step(self, windows: Windows) -> None:
        """One step on windows [batch, tokens]. Raises `GraphError` where the loss is no number any more."""
        self._network.train()
        self._optimiser.zero_grad()
        tokens = torch.from_numpy(windows)
        early, last = (_losses(logits, tokens).mean() for logits in self._logits(tokens))
        loss = (early + last) / 2
        loss.backward()  # type: ignore[no-untyped-call]
        follow(loss, self._network.parameters(), self._optimiser, self._rates)

    @torch.no_grad()
    def measure(self, held_out: Windows, batch_size: int) -> Exits:
        """How both exits do on the windows `held_out` [windows, tokens]."""
        self._network.eval()
        sums, count = torch.zeros(3, dtype=torch.float64), 0
        for at in range(0, len(held_out), batch_size):
            tokens = torch.from_numpy(held_out[at : at + batch_size])
            early, last = self._logits(tokens)
            same = early.argmax(-1) == last.argmax(-1)
            sums += torch.stack([each.double().sum() for each in (_losses(early, tokens), _losses(last, tokens), same)])
            count += same.numel()
        return Exits(*(sums / count).tolist())

    def _logits(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What is predicted of each token but the first, early and last, [batch, tokens - 1, vocab] both."""
        base, head = self._network.base_model, self._network.get_output_embeddings()
        found = base(input_ids=tokens, use_cache=False, output_hidden_states=True)
        early = before_head(base, found.hidden_states[self._layer][:, :-1])
        return head(early), head(found.last_hidden_state[:, :-1])


def _losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of every token but the first, in nats."""
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
