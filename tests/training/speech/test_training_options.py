"""Valid training options, and the networks that they describe."""

from __future__ import annotations

from typing import Any

import pytest

from intaglio.errors import SourceError, UsageError
from intaglio.networks.speech.configuration import SqueezeformerConfig
from intaglio.training.speech.training_options import Architecture, SpeechTraining


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "rnn"}, "architecture 'rnn': expected one of squeezeformer, conformer-ctc"),
        ({"ablation": "no-norm"}, "ablation 'no-norm': expected one of no-skip"),
        ({"ablation": "no-skip", "architecture": "conformer-ctc"}, "ablation no-skip: only for squeezeformer"),
        ({"steps": 0}, "steps 0: expected at least 1"),
        ({"channels": 0}, "channels 0: expected at least 1"),
        ({"variants": -1}, "variants -1: expected at least 0"),
        ({"minutes": 0.0}, "minutes 0.0: expected a positive number"),
        ({"learning_rate": float("nan")}, "learning rate nan"),
        ({"layers": 1}, "layers 1: expected at least 2"),
        ({"letters": 1.0}, "letters 1.0: expected 0 to less than 1"),
        ({"cool_down": 1.1}, "cool down 1.1: expected 0 to 1"),
        ({"dropout": 1.0}, "dropout 1.0: expected 0 to less than 1"),
        ({"width": 30, "heads": 4}, "width 30: expected an even multiple of the 4 heads"),
    ],
)
def test_invalid_options_are_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SpeechTraining(**options)


def test_too_large_network_is_an_error() -> None:
    with pytest.raises(SourceError, match="hidden_size is 1000000"):
        SpeechTraining(width=1_000_000).config(29)


@pytest.mark.parametrize(
    ("architecture", "channels", "made"),
    [("squeezeformer", None, 96), ("conformer-ctc", None, 32), ("conformer-ctc", 96, 96)],
)
def test_subsampling_channels_follow_the_width(architecture: Architecture, channels: int | None, made: int) -> None:
    config = SpeechTraining(architecture, channels=channels).config(29)
    assert config.subsampling.channels == made


@pytest.mark.parametrize(("layers", "reduced"), [(2, (0, 1)), (3, (1, 2)), (6, (2, 5)), (16, (7, 15))])
def test_squeezeformer_halves_the_frame_rate_after_7_16_of_its_blocks(layers: int, reduced: tuple[int, int]) -> None:
    config = SpeechTraining(layers=layers).config(29)
    assert isinstance(config, SqueezeformerConfig) and config.time_reduced == reduced


@pytest.mark.parametrize(("layers", "block"), [(2, 0), (3, 0), (4, 0), (6, 1), (8, 2), (16, 6)])
def test_letter_loss_precedes_the_halved_frame_rate(layers: int, block: int) -> None:
    options = SpeechTraining(layers=layers)
    assert options.letters_after == block
    config = options.config(29)
    assert isinstance(config, SqueezeformerConfig)
    assert block == max(0, config.time_reduced[0] - 1)
