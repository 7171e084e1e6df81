"""Drafts during training: their predictions on windows of text, and the model's own predictions there.

Step s, from 0, of the token at position j represents position j + s + 1: its prediction is compared with the model's
own distribution there, which predicts the next token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intaglio.networks.blocks import before
from intaglio.networks.draft_network import matrices, medusa_states, transferring, with_pseudo_rows
from intaglio.networks.drafts import HIDDEN_TRANSFER, Drafts
from intaglio.networks.positions import first_position
from intaglio.runtime.sessions.draft_inputs import draft_mask
from intaglio.runtime.sessions.masks import fill_mask, seen_among


class Drafter(ABC):
    """The matrices of drafts, initially 0, for a frozen `transformers` network, whose head they share.

    `precision`, a torch dtype's name, applies to all products, including the network's own.
    """

    def __init__(self, network: Any, drafts: Drafts, width: int, precision: str):
        self._network = network
        self._drafts, self._precision = drafts, getattr(torch, precision)
        self.matrices = matrices(drafts.steps, width)
        network.eval().requires_grad_(False)

    def logits(self, windows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The model's logits and those of `step`, both float32 [batch, tokens - step - 1, vocab].

        windows  int64 [batch, tokens], with more than step + 1 tokens
        """
        with torch.autocast("cpu", self._precision, enabled=self._precision != torch.float32):
            own, drafted = self._logits(windows, step).float().chunk(2, 1)
            return own.detach(), drafted

    @abstractmethod
    def _logits(self, windows: Tensor, step: int) -> Tensor:
        """The logits of the tokens from the `step + 1`-th on; then those of `step` from all but the last as many."""

    def _at_head(self, own: Tensor, drafted: Tensor, step: int) -> Tensor:
        """The head's input for the last states of the tokens, and those of `step`, both [batch, tokens, width]."""
        return torch.cat([own[:, step + 1 :], drafted[:, : -step - 1]], 1)


class MedusaDrafter(Drafter):
    """Medusa heads; they start as the model's own prediction of the next token."""

    def __init__(self, network: Any, drafts: Drafts, precision: str):
        super().__init__(network, drafts, network.get_output_embeddings().in_features, precision)

    def _logits(self, windows: Tensor, step: int) -> Tensor:
        def head_input(states: Tensor) -> Tensor:
            return self._at_head(states, medusa_states(self.matrices[step], states), step)

        with before(self._network.get_output_embeddings(), head_input):
            logits: Tensor = self._network(input_ids=windows, use_cache=False).logits
        return logits


class TransferDrafter(Drafter):
    """Hidden transfer; it starts with the tokens' own states as pseudo states."""

    def __init__(self, network: Any, drafts: Drafts, precision: str):
        super().__init__(network, drafts, network.config.get_text_config().hidden_size, precision)
        self._window = getattr(network.config.get_text_config(), "sliding_window", None)

    def _logits(self, windows: Tensor, step: int) -> Tensor:
        tokens, steps = windows.shape[1], step + 1  # later steps are not seen by this one
        places, mask, draft_indices, draft_positions, draft_mask = (
            each.expand(len(windows), *each.shape[1:]) for each in self._inputs(tokens, steps)
        )
        allowed = torch.cat([mask, draft_mask], 1)[:, None]

        def head_input(states: Tensor) -> Tensor:
            by_row = states.reshape(len(windows), tokens * (steps + 1), -1)
            return self._at_head(by_row[:, :tokens], by_row[:, tokens * steps :], step)

        head = self._network.get_output_embeddings()
        projections, layers = list(self.matrices)[:steps], self._drafts.layers[:steps]
        transfer = transferring(self._network, projections, layers, draft_indices, tokens, cached=False)
        with transfer, before(head, head_input):
            logits: Tensor = self._network(
                input_ids=with_pseudo_rows(windows, draft_indices, steps),
                position_ids=torch.cat([places, draft_positions], 1) + first_position(self._network),
                attention_mask=torch.where(allowed, 0.0, torch.finfo(torch.float32).min),
                use_cache=False,
            ).logits
        return logits

    def _inputs(self, tokens: int, steps: int) -> list[Tensor]:
        """Positions, mask and inputs of drafts, to draft after every token of a window; see `runtime.sessions.step`."""
        places = np.arange(tokens)[None]
        mask = np.zeros((1, tokens, tokens * (steps + 1)), np.bool_)
        fill_mask(mask, places, np.arange(mask.shape[-1]), self._window)
        seen = seen_among(tokens, None, self._window)[None]
        drafted = draft_mask(places, seen, np.zeros(1, np.int64), places, steps, self._window, mask.shape[-1])
        return [torch.from_numpy(array) for array in (places, mask, places, *drafted)]


def drafter_of(network: Any, drafts: Drafts, precision: str = "float32") -> Drafter:
    """New drafts for `network`."""
    return (TransferDrafter if drafts.kind == HIDDEN_TRANSFER else MedusaDrafter)(network, drafts, precision)
