"""The front end: its definition, and independent rows of a batch."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from speech_networks import FRONT_ENDS
from transformers.audio_utils import mel_filter_bank

from intaglio.networks.speech.configuration import FrontEnd
from intaglio.networks.speech.constants import DEVIATION_EPSILON
from intaglio.networks.speech.front_end import LogMel
from intaglio.networks.speech.spectrum import mel_filters
from intaglio.samples.speech_samples import recordings


@pytest.mark.parametrize(("rate", "size", "mels"), [(16000, 512, 80), (16000, 400, 40), (8000, 256, 64)])
def test_filters_equal_slaney(rate: int, size: int, mels: int) -> None:
    expected = mel_filter_bank(size // 2 + 1, mels, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(rate, size, mels).T, expected, atol=1e-8)


def by_fourier_transform(config: FrontEnd, samples: torch.Tensor) -> torch.Tensor:
    """The features of one recording [frames, mels], from torch's Fourier transform in float64."""
    x = samples.double()
    x = torch.cat([x[:1], x[1:] - config.preemphasis * x[:-1]])
    window = torch.hann_window(config.window, periodic=config.periodic_window, dtype=torch.float64)
    mode = "reflect" if config.padding == "reflect" else "constant"
    spectrum = torch.stft(
        x, config.fft_size, config.hop, config.window, window, pad_mode=mode, return_complex=True
    ).abs()
    filters = mel_filter_bank(
        config.fft_size // 2 + 1, config.mels, 0.0, config.sample_rate / 2, config.sample_rate, "slaney", "slaney"
    )
    bands = torch.from_numpy(filters).T @ spectrum.square()
    logs = (bands + config.floor if config.guard == "add" else bands.clamp(min=config.floor)).log()
    logs = logs if config.last_frame else logs[:, : len(samples) // config.hop]
    if config.normalize:
        logs = (logs - logs.mean(1, keepdim=True)) / (logs.std(1, keepdim=True) + 1e-5)
    return logs.T


@pytest.mark.parametrize("config", FRONT_ENDS.values(), ids=FRONT_ENDS)
def test_features_of_real_speech_equal_the_definition(config: FrontEnd) -> None:
    samples = torch.from_numpy(recordings()[1].samples)
    features, frames = LogMel(config)(samples[None], torch.tensor([len(samples)]))
    expected = by_fourier_transform(config, samples)
    assert frames.tolist() == [len(expected)]
    assert (features[0] - expected).abs().max() <= 1e-4 * expected.abs().max()


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=4), st.sampled_from(sorted(FRONT_ENDS)), st.integers(0, 99))
def test_padding_does_not_change_a_row(lengths: list[int], name: str, seed: int) -> None:
    config = FRONT_ENDS[name]
    random, size = np.random.default_rng(seed), max(*lengths, config.window)
    front_end = LogMel(config)
    audio = torch.from_numpy(random.normal(0, 0.1, (len(lengths), size)).astype(np.float32))
    features, frames = front_end(audio, torch.tensor(lengths))
    logs, _ = LogMel(msgspec.structs.replace(config, normalize=False))(audio, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone = torch.zeros(1, max(length, config.window))
        alone[0, :length] = audio[row, :length]
        expected, count = front_end(alone, torch.tensor([length]))
        assert frames[row] == count[0]
        difference = (features[row, : count[0]] - expected[0, : count[0]]).abs()
        if config.normalize and count[0] > 1:  # divides by a deviation, which is tiny if two frames are nearly equal
            difference *= logs[row, : count[0]].std(0) + DEVIATION_EPSILON
        assert not count[0] or difference.max() <= 5e-5
        assert not features[row, count[0] :].any()
