"""The CTC losses that a speech recogniser is trained with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

from intaglio.speech.modules import halved
from intaglio.speech.network import SpeechNetwork
from intaglio.training.speech.batches import Batch, Targets
from intaglio.training.speech.tokens import characters


def ctc_loss(log_probs: Tensor, lengths: Tensor, targets: Targets, blank: int) -> Tensor:
    """The CTC loss of `log_probs` [batch, frames, vocabulary] in nats a token.

    A row with more tokens than frames counts nothing.
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
    """The loss that is minimised: that of `network`, and a share of that of letters, read after its block `block`.

    A linear layer, which is used for nothing else, reads the letters. An early block that has to tell letters apart
    learns what is heard in fewer steps, and the later ones find the sub-word pieces (intermediate loss: Lee and
    Watanabe, arXiv:2102.03216; smaller units in lower layers: Sanabria and Metze, arXiv:1807.07104).
    """

    def __init__(self, network: SpeechNetwork, letters: float = 0.0, block: int = 0):
        super().__init__()
        self._network, self._share, self._block = [network], letters, block  # in a list: its weights are not of this
        vocabulary = characters().vocabulary
        self._blank = vocabulary.blank
        self.head = nn.Linear(network.config.hidden_size, len(vocabulary)) if letters else None

    def forward(self, features: Tensor, batch: Batch) -> Losses:
        """The losses of `batch` with `features` in the place of its own."""
        (network,) = self._network
        with _output_of(network.encoder.get_submodule(f"layers.{self._block}")) as states:
            log_probs, lengths = network(features, batch.frames)
        own = ctc_loss(log_probs, lengths, batch.tokens, network.config.blank_token_id)
        if self.head is None:
            return Losses(own, own)
        letters = nn.functional.log_softmax(self.head(states[0]), dim=-1)
        # Inside of a temporal U-Net, the frame rate is half of that at the end.
        heard = lengths if letters.shape[1] == log_probs.shape[1] else halved(lengths)
        of_letters = ctc_loss(letters, heard, batch.letters, self._blank)
        return Losses(own, (1 - self._share) * own + self._share * of_letters)


@contextmanager
def _output_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """What `module` gives inside the block."""
    given: list[Tensor] = []
    handle = module.register_forward_hook(lambda module, inputs, output: given.append(output))
    try:
        yield given
    finally:
        handle.remove()
