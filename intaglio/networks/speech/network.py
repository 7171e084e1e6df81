"""A speech recogniser: front end, encoder and CTC head in one torch module."""

from __future__ import annotations

from torch import Tensor, nn

from intaglio.networks.speech.configuration import ConformerConfig, SpeechConfig, SqueezeformerConfig
from intaglio.networks.speech.conformer import ConformerEncoder
from intaglio.networks.speech.front_end import LogMel
from intaglio.networks.speech.squeezeformer import SqueezeformerEncoder

AUDIO, FEATURES = ("audio", "lengths"), ("features", "lengths")
OUTPUTS = ("log_probs", "output_lengths")


class SpeechNetwork(nn.Module):
    """Log-probabilities of the vocabulary in every output frame.

    With `front_end`, the inputs are `audio` float32 [batch, samples], from -1 to 1, and `lengths` int64 [batch], the
    samples of each row; without it, `features` [batch, frames, mels] and the frames of each row. The outputs are
    `log_probs` float32 [batch, frames, vocabulary] and `output_lengths` int64 [batch]. What lies beyond a row's length
    never changes the row's output.
    """

    def __init__(self, config: SpeechConfig, front_end: bool = True):
        super().__init__()
        self.config = config
        self.input_names = AUDIO if front_end else FEATURES
        self.output_names = OUTPUTS
        self.front_end = LogMel(config.front_end) if front_end else None
        self.encoder = _encoder(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, signal: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probabilities and the number of frames of each row."""
        features, frames = self.front_end(signal, lengths) if self.front_end else (signal, lengths)
        if self.config.front_end.precision == "float16":
            features = features.half()
        states, frames = self.encoder(features.to(self.head.weight.dtype), frames)
        return nn.functional.log_softmax(self.head(states).float(), dim=-1), frames


def _encoder(config: SpeechConfig) -> nn.Module:
    if isinstance(config, SqueezeformerConfig):
        return SqueezeformerEncoder(config)
    assert isinstance(config, ConformerConfig)
    return ConformerEncoder(config)
