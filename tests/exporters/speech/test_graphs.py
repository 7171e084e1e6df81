"""The graphs of speech recognisers against the torch networks, for every option."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from covering import few
from speech_networks import NETWORKS, conformer, random_network, squeezeformer, write_checkpoint

import intaglio
from intaglio.bundle.bundle import Bundle
from intaglio.runtime.engines.opening import open_engine

LENGTHS = [9000, 6111, 3000]
FLIPPED = 0.05  # log-probability that changes if a feature rounds to the other neighbouring float16 value


def audio_of(rate: int = 16000) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(0).normal(0, 0.1, (3, LENGTHS[0])).astype(np.float32)


@pytest.mark.parametrize("name", NETWORKS)
def test_batched_graph_equals_the_network_on_single_rows(name: str, tmp_path: Path) -> None:
    network = random_network(NETWORKS[name])
    intaglio.export(write_checkpoint(tmp_path / "checkpoint", network), tmp_path / "bundle", check=False)
    bound = FLIPPED if "stored" in name else 2e-5
    with open_engine(tmp_path / "bundle") as engine:
        audio = audio_of()
        batch = engine.run({"audio": audio, "lengths": np.array(LENGTHS)})
        for row, length in enumerate(LENGTHS):
            alone = audio[row : row + 1, :length]
            expected, frames = network(torch.from_numpy(alone), torch.tensor([length]))
            count = int(frames[0])
            assert batch["output_lengths"][row] == count
            assert np.abs(batch["log_probs"][row, :count] - expected[0].numpy()).max() <= bound
            single = engine.run({"audio": alone, "lengths": np.array([length])})
            assert single["log_probs"].shape == tuple(expected.shape)
            assert np.abs(single["log_probs"] - expected.numpy()).max() <= bound


@pytest.mark.parametrize("samples", few([400, 401, 639, 640, 1279], [400, 1279]))
def test_shortest_recordings_give_frames(samples: int, tmp_path: Path) -> None:
    network = random_network(squeezeformer())
    intaglio.export(write_checkpoint(tmp_path / "checkpoint", network), tmp_path / "bundle", check=False)
    audio = audio_of()[:1, :samples]
    expected, frames = network(torch.from_numpy(audio), torch.tensor([samples]))
    with open_engine(tmp_path / "bundle") as engine:
        found = engine.run({"audio": audio, "lengths": np.array([samples])})
    assert found["output_lengths"] == frames.numpy()
    np.testing.assert_allclose(found["log_probs"], expected.numpy(), atol=2e-5)


def test_feature_graph_is_the_audio_graph_without_front_end(tmp_path: Path) -> None:
    network = random_network(squeezeformer())
    checkpoint = write_checkpoint(tmp_path / "checkpoint", network)
    result = intaglio.export(checkpoint, tmp_path / "bundle", features=True)
    assert result.passed
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert [spec.name for spec in manifest.inputs] == ["features", "lengths"]
    assert manifest.audio is not None and manifest.audio.features == 20
    assert network.front_end is not None
    features, frames = network.front_end(torch.from_numpy(audio_of()), torch.tensor(LENGTHS))
    expected, _ = network(torch.from_numpy(audio_of()), torch.tensor(LENGTHS))
    with open_engine(tmp_path / "bundle") as engine:
        found = engine.run({"features": features.numpy(), "lengths": frames.numpy()})
    assert np.abs(found["log_probs"][0] - expected[0].numpy()).max() <= 2e-5


@pytest.mark.covering(1)
@pytest.mark.parametrize("config", [squeezeformer(), conformer()], ids=lambda config: config.model_type)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_export_passes_its_check_on_real_speech(config: object, dtype: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", random_network(config))  # type: ignore[arg-type]
    result = intaglio.export(checkpoint, tmp_path / "bundle", dtype)
    assert result.passed, result.outputs
    assert intaglio.validate(tmp_path / "bundle").passed
