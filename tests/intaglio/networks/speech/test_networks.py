"""The networks in torch: sizes, positions, and independent rows of a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from speech_networks import NETWORKS, random_network

from benchmarks.speech.sizes import CONFORMERS, SQUEEZEFORMERS, conformer_of, squeezeformer_of
from intaglio.networks.speech.modules import relative_positions, shifted
from intaglio.networks.speech.network import SpeechNetwork


@pytest.mark.parametrize("size", [*SQUEEZEFORMERS, *(f"conformer {name}" for name in CONFORMERS)])
def test_parameter_counts_equal_the_papers(size: str) -> None:
    """Thesis, table 5.2."""
    name = size.removeprefix("conformer ")
    config, shape = (
        (conformer_of(name), CONFORMERS[name]) if size != name else (squeezeformer_of(name), SQUEEZEFORMERS[name])
    )
    with torch.device("meta"):
        network = SpeechNetwork(config, front_end=False)
    assert abs(sum(parameter.numel() for parameter in network.parameters()) / 1e6 - shape.millions) <= 0.1


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 9), st.integers(0, 99))
def test_position_score_depends_on_the_key_distance(frames: int, seed: int) -> None:
    scores = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 3, frames, 2 * frames + 1)))
    found = shifted(scores)
    for query in range(frames):
        for key in range(frames):  # column c is the distance frames - c
            assert torch.equal(found[..., query, key], scores[..., query, frames - (query - key)])
    assert found.data_ptr() == scores[..., 0, frames:].data_ptr()  # a view


def test_positions_are_sinusoids_of_the_distances() -> None:
    positions = relative_positions(3, 4, torch.zeros(()))
    assert positions.shape == (1, 7, 4)
    distances = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0])
    torch.testing.assert_close(positions[0, :, 0], distances.sin())
    torch.testing.assert_close(positions[0, :, 3], (distances / 100).cos())


@pytest.mark.parametrize("name", NETWORKS)
def test_row_of_a_padded_batch_equals_the_single_row(name: str) -> None:
    network = random_network(NETWORKS[name])
    random = np.random.default_rng(0)
    lengths = [9000, 6111, 3000]
    audio = torch.from_numpy(random.normal(0, 0.1, (3, 9000)).astype(np.float32))  # values beyond the row are not 0
    log_probs, frames = network(audio, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone, count = network(audio[row : row + 1, :length], torch.tensor([length]))
        assert count[0] == frames[row] == alone.shape[1]
        assert (alone[0] - log_probs[row, : count[0]]).abs().max() <= (0.05 if "stored" in name else 2e-5)
