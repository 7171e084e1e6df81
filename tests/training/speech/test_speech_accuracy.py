"""What benchmarks/speech_accuracy.py compares is comparable, and its picture shows what the networks compute."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from frame_similarity import DISTANCES, frame_similarity, picture
from speech_accuracy import conformer_like, parameters

from intaglio.speech.checkpoint import write_checkpoint
from intaglio.speech.network import SpeechNetwork
from intaglio.training.speech.tokens import characters
from intaglio.training.speech.training_options import SpeechTraining


@pytest.mark.parametrize(("width", "layers"), [(96, 6), (144, 2)])
def test_the_networks_have_the_same_size(width: int, layers: int) -> None:
    squeezeformer = SpeechTraining(width=width, layers=layers)
    conformer = conformer_like(squeezeformer)
    assert conformer.architecture == "conformer-ctc" and conformer.layers == layers
    assert parameters(conformer) == pytest.approx(parameters(squeezeformer), rel=0.05)


def test_similarities_are_those_of_the_blocks_outputs(tmp_path: Path) -> None:
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
            last = network.encoder(features, frames)[0][0].numpy()  # the last block's output
            last /= np.linalg.norm(last, axis=1, keepdims=True)
            pairs += (last[2:] * last[:-2]).sum(1).tolist()
    assert found[2][-1] == pytest.approx(np.mean(pairs), abs=1e-5)


def test_the_picture_has_a_line_for_each_network_and_distance() -> None:
    found = {
        name: {distance: [0.1, -0.3, 0.9] for distance in DISTANCES} for name in ("squeezeformer", "conformer-ctc")
    }
    root = ET.fromstring(picture(found))  # noqa: S314
    lines = [each for each in root.iter() if each.get("class") in ("line ours", "line peer")]
    assert len([each for each in lines if " " in str(each.get("d"))[1:]]) >= 2 * len(DISTANCES)
    assert "block" in "".join(root.itertext())
