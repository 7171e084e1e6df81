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

from intaglio.networks.draft_network import matrices, medusa_states, transferred_states
from intaglio.networks.drafts import HIDDEN_TRANSFER, Drafts
from intaglio.runtime.sessions.draft_inputs import draft_mask
from intaglio.runtime.sessions.masks import fill_mask, seen_among


class Drafter(ABC):
    """The matrices of drafts, initially 0, for a frozen `transformers` network, whose head they share.

    `precision`, a torch dtype's name, applies to all products, including the network's own.
    """

    def __init__(self, network: Any, drafts: Drafts, width: int, precision: str):
        self._base, self._head = network.base_model, network.get_output_embeddings()
        self._drafts, self._precision = drafts, getattr(torch, precision)
        self.matrices = matrices(drafts.steps, width)
        network.eval().requires_grad_(False)

    def logits(self, windows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The model's logits and those of `step`, both float32 [batch, tokens - step - 1, vocab].

        windows  int64 [batch, tokens], with more than step + 1 tokens
        """
        with torch.autocast("cpu", self._precision, enabled=self._precision != torch.float32):
            states, drafted = self._states(windows, step)
            with torch.no_grad():
                own = self._head(states[:, step + 1 :])
            return own.float(), self._head(drafted[:, : -step - 1]).float()

    @abstractmethod
    def _states(self, windows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The last states of the tokens and those of `step` from each of them, both [batch, tokens, width]."""


class MedusaDrafter(Drafter):
    """Medusa heads; they start as the model's own prediction of the next token."""

    def __init__(self, network: Any, drafts: Drafts, precision: str):
        super().__init__(network, drafts, network.get_output_embeddings().in_features, precision)

    def _states(self, windows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            states = self._base(input_ids=windows, use_cache=False).last_hidden_state
        return states, medusa_states(self.matrices[step], states)


class TransferDrafter(Drafter):
    """Hidden transfer; it starts with the tokens' own states as pseudo states."""

    def __init__(self, network: Any, drafts: Drafts, precision: str):
        super().__init__(network, drafts, network.config.hidden_size, precision)
        self._window = getattr(network.config, "sliding_window", None)

    def _states(self, windows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        tokens, steps = windows.shape[1], step + 1  # later steps are not seen by this one
        inputs = [each.expand(len(windows), *each.shape[1:]) for each in self._inputs(tokens, steps)]
        states = transferred_states(
            self._base, list(self.matrices)[:steps], self._drafts.layers[:steps], windows, *inputs
        )
        return states[:, :tokens], states[:, tokens * steps :]

    def _inputs(self, tokens: int, steps: int) -> list[Tensor]:
        """The other arguments of `transferred_states` to draft after every token of a window."""
        places = np.arange(tokens)[None]
        mask = np.zeros((1, tokens, tokens * (steps + 1)), np.bool_)
        fill_mask(mask, places, np.arange(mask.shape[-1]), self._window)
        seen = seen_among(tokens, None, self._window)[None]
        drafted = draft_mask(places, seen, np.zeros(1, np.int64), places, steps, self._window, mask.shape[-1])
        return [torch.from_numpy(array) for array in (places, mask, places, *drafted)]


def drafter_of(network: Any, drafts: Drafts, precision: str = "float32") -> Drafter:
    """New drafts for `network`."""
    return (TransferDrafter if drafts.kind == HIDDEN_TRANSFER else MedusaDrafter)(network, drafts, precision)
