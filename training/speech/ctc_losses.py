"""The CTC losses that a speech recogniser is trained with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

from intaglio.networks.speech.network import SpeechNetwork
from intaglio.training.speech.batches import Batch, Targets
from intaglio.training.speech.tokens import characters


def ctc_loss(log_probs: Tensor, lengths: Tensor, targets: Targets, blank: int) -> Tensor:
    """The CTC loss of `log_probs` [batch, frames, vocabulary] in nats a token.

    A row with more tokens than frames adds no loss, but its tokens are counted.
    """
    losses = nn.functional.ctc_loss(
        log_probs.transpose(0, 1), targets.tokens, lengths, targets.counts, blank, "sum", zero_infinity=True
    )
    return losses / targets.counts.sum()


class Losses(NamedTuple):
    """Of a batch, in nats a token."""

    own: Tensor  # the network's
    minimised: Tensor  # with the share of the letters


class TrainingLoss(nn.Module):
    """The loss to minimise: that of `network`, mixed with that of letters, which are read after its block `block`.

    A linear layer, used in training only, reads the letters. With it, an early block learns sounds in fewer steps, and
    the later blocks assemble sub-word pieces (intermediate loss: Lee and Watanabe, arXiv:2102.03216; smaller units in
    lower layers: Sanabria and Metze, arXiv:1807.07104).
    """

    def __init__(self, network: SpeechNetwork, letters: float = 0.0, block: int = 0):
        super().__init__()
        self._network = [network]  # in a list, so that its weights are not this module's
        self._share, self._block = letters, block
        vocabulary = characters().vocabulary
        self._blank = vocabulary.blank
        self.head = nn.Linear(network.config.hidden_size, len(vocabulary)) if letters else None

    def forward(self, features: Tensor, batch: Batch) -> Losses:
        """The losses of `batch` with `features` instead of its own."""
        (network,) = self._network
        with _calls_of(network.encoder.get_submodule(f"layers.{self._block}")) as calls:
            log_probs, lengths = network(features, batch.frames)
        own = ctc_loss(log_probs, lengths, batch.tokens, network.config.blank_token_id)
        if self.head is None:
            return Losses(own, own)
        ((_, keep, _), states) = calls[0]
        letters = nn.functional.log_softmax(self.head(states), dim=-1)
        of_letters = ctc_loss(letters, keep.sum(1), batch.letters, self._blank)
        return Losses(own, (1 - self._share) * own + self._share * of_letters)


@contextmanager
def _calls_of(module: nn.Module) -> Iterator[list[tuple[tuple[Tensor, ...], Tensor]]]:
    """Collect the inputs and the output of `module` each time that it is called while the block runs."""
    calls: list[tuple[tuple[Tensor, ...], Tensor]] = []
    handle = module.register_forward_hook(lambda module, inputs, output: calls.append((inputs, output)))
    try:
        yield calls
    finally:
        handle.remove()
