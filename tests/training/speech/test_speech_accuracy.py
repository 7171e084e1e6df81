"""The compared models of benchmarks/speech/accuracy.py have equal size, and its plot shows the similarities."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from covering import few

from benchmarks.speech.accuracy import conformer_like, parameters
from benchmarks.speech.frame_similarity import DISTANCES, frame_similarity, picture
from benchmarks.speech.word_error_difference import difference
from intaglio.networks.speech.checkpoint import write_checkpoint
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.training.speech.tokens import characters
from intaglio.training.speech.training_options import SpeechTraining


@pytest.mark.parametrize(("width", "layers"), few([(96, 6), (144, 2)], [(144, 2)]))
def test_networks_have_the_same_size(width: int, layers: int) -> None:
    squeezeformer = SpeechTraining(width=width, layers=layers)
    conformer = conformer_like(squeezeformer)
    assert conformer.architecture == "conformer-ctc" and conformer.layers == layers
    assert parameters(conformer) == pytest.approx(parameters(squeezeformer), rel=0.05)


def test_similarities_are_computed_from_the_block_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = SpeechTraining(width=16, layers=3, heads=2, channels=4).config(29)
    network = SpeechNetwork(config).eval()
    vocabulary = {"tokens": characters().vocabulary.tokens, "blank": 0, "word_mark": " "}
    write_checkpoint(tmp_path, config, network.state_dict(), vocabulary)
    random = np.random.default_rng(0)
    recordings = [random.normal(0, 0.1, size).astype(np.float32) for size in (16_000, 24_000)]
    found = frame_similarity(tmp_path, recordings)
    assert set(found) == set(DISTANCES) and all(len(each) == 3 for each in found.values())
    with torch.inference_mode():
        pairs = []
        for audio in recordings:
            features, frames = network.front_end(torch.from_numpy(audio)[None], torch.tensor([len(audio)]))  # type: ignore[misc]
            last = network.encoder(features, frames)[0][0].numpy()  # the output of the last block
            last /= np.linalg.norm(last, axis=1, keepdims=True)
            pairs += (last[2:] * last[:-2]).sum(1).tolist()
    assert found[2][-1] == pytest.approx(np.mean(pairs), abs=1e-5)


def test_plot_has_a_line_for_each_network_and_distance() -> None:
    found = {
        name: {distance: [0.1, -0.3, 0.9] for distance in DISTANCES} for name in ("squeezeformer", "conformer-ctc")
    }
    root = ET.fromstring(picture(found))  # noqa: S314
    lines = [each for each in root.iter() if each.get("class") in ("line ours", "line peer")]
    assert len([each for each in lines if " " in str(each.get("d"))[1:]]) >= 2 * len(DISTANCES)
    assert "block" in "".join(root.itertext())


def test_error_rate_difference_is_computed_over_all_words() -> None:
    references = ["one two three four", "five", "six seven eight nine ten"]
    first = ["one two three four", "five", "six seven eight nine"]
    second = ["one two three", "nine", "six seven eight nine ten ten"]
    found = difference(references, first, second)
    assert found.points == pytest.approx(100 * (3 - 1) / 10)
    assert found.low <= found.points <= found.high


def test_equal_transcripts_have_an_interval_of_zero() -> None:
    references = ["one two", "three four five"]
    assert difference(references, ["one", "three four five"], ["one", "three four five"]) == (0.0, 0.0, 0.0)


def test_confidence_interval_covers_the_true_difference() -> None:
    random = np.random.default_rng(0)
    references = [f"{number} a b c d e f g h i" for number in range(80)]
    rates = 0.2, 0.1
    covered = 0
    for seed in range(20):
        first, second = ([wrong(text, rate, random) for text in references] for rate in rates)
        found = difference(references, first, second, seed)
        covered += found.low <= 100 * (rates[1] - rates[0]) <= found.high
    assert covered >= 16  # 19 expected; 15 or fewer would mean a too narrow interval with 99.7 %


def test_bootstrap_resamples_sentences_instead_of_voices() -> None:
    references = ["one two three four", "five six seven eight"]
    first, second = ["one two three four", "five six seven"], ["one two three", "five six seven eight"]
    alone = difference(references, first, second)
    repeated = difference(50 * references, 50 * first, 50 * second)
    assert repeated.high - repeated.low == pytest.approx(alone.high - alone.low, rel=0.05)


def wrong(text: str, rate: float, random: np.random.Generator) -> str:
    """`text` with words replaced at random."""
    return " ".join("wrong" if random.random() < rate else word for word in text.split())
