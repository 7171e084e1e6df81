"""Which options of a training are possible, and the networks that they describe."""

from __future__ import annotations

from typing import Any

import pytest

from intaglio.errors import SourceError, UsageError
from intaglio.speech.configuration import SqueezeformerConfig
from intaglio.training.speech.training_options import SpeechTraining


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"architecture": "rnn"}, "architecture 'rnn': expected one of squeezeformer, conformer-ctc"),
        ({"ablation": "no-norm"}, "ablation 'no-norm': expected one of no-skip"),
        ({"ablation": "no-skip", "architecture": "conformer-ctc"}, "ablation no-skip: of the Squeezeformer only"),
        ({"steps": 0}, "steps 0: expected at least 1"),
        ({"variants": -1}, "variants -1: expected at least 0"),
        ({"minutes": 0.0}, "minutes 0.0: expected a positive number"),
        ({"learning_rate": float("nan")}, "learning rate nan"),
        ({"layers": 1}, "layers 1: expected at least 2"),
        ({"dropout": 1.0}, "dropout 1.0: expected 0 to less than 1"),
        ({"width": 30, "heads": 4}, "width 30: expected an even multiple of the 4 heads"),
    ],
)
def test_impossible_options_are_an_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SpeechTraining(**options)


def test_a_network_too_large_is_an_error() -> None:
    with pytest.raises(SourceError, match="hidden_size is 1000000"):
        SpeechTraining(width=1_000_000).config(29)


@pytest.mark.parametrize(("layers", "reduced"), [(2, (0, 1)), (6, (1, 5)), (16, (4, 15))])
def test_a_squeezeformer_halves_the_frame_rate_after_a_quarter_of_its_blocks(
    layers: int, reduced: tuple[int, int]
) -> None:
    config = SpeechTraining(layers=layers).config(29)
    assert isinstance(config, SqueezeformerConfig) and config.time_reduced == reduced
