"""The recogniser of the package hama: its weights in our network give the results of its library."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from hama.asr import ASRModel

import intaglio
from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError
from intaglio.exporters import load_module
from intaglio.exporters.checkpoints.hama_container import MAGIC
from intaglio.runtime.speech.recognizer import SpeechRecognizer
from intaglio.samples.speech_samples import Recording, recordings

ASSETS = Path(str(resources.files("hama").joinpath("assets")))
CONTAINER = ASSETS / "asr_waveform.hama"
SAMPLES = recordings()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hama")
    intaglio.convert(CONTAINER, folder / "checkpoint")
    assert intaglio.export(folder / "checkpoint", folder / "bundle").passed
    return folder / "bundle"


@pytest.fixture(scope="module")
def recognizer(bundle: Path) -> Iterator[SpeechRecognizer]:
    with SpeechRecognizer(Bundle.open(bundle)) as opened:
        yield opened


@pytest.mark.parametrize(
    "recording",
    [*SAMPLES[:2], *(pytest.param(each, marks=pytest.mark.proof) for each in SAMPLES[2:])],
    ids=lambda recording: recording.name,
)
def test_transcripts_equal_the_library(recording: Recording, recognizer: SpeechRecognizer) -> None:
    """Features are rounded to float16. One halfway between two values is rounded up or down by the order of
    summation, so a few frames differ by more than the others."""
    library, samples = ASRModel(), recording.samples[None]
    feeds = {"waveform": samples, "waveform_lengths": np.array([samples.shape[1]])}
    expected, lengths = library.session.run(["log_probs", "out_lengths"], feeds)
    found, frames = recognizer.log_probs(samples, np.array([samples.shape[1]]))
    assert frames.tolist() == lengths.tolist()
    difference = np.abs(found - expected)
    assert (difference <= 1e-3).mean() >= 0.995
    assert difference.max() <= 2e-2
    reference = library._decode_single(expected[0], int(lengths[0]))
    transcript = recognizer.transcribe_samples([recording.samples])
    assert [token.text for token in transcript.tokens if token.text != "<wb>"] == reference.phonemes
    words = [word.replace(" ", "") for word in reference.word_phoneme_text.split(" | ")]
    assert [word.text for word in transcript.words] == words


def test_run_prints_word_timestamps(bundle: Path) -> None:
    path = Path(str(resources.files("intaglio.samples").joinpath("recordings", "sentence-5.flac")))
    (result,) = intaglio.run(bundle, [str(path)])
    assert result.transcript.split()[:2] == ["hi", "maɪt"]  # the recogniser might
    assert result.seconds == pytest.approx(3.29, abs=0.01)
    starts = [word.start for word in result.words]
    assert starts == sorted(starts) and result.words[-1].end <= result.seconds
    assert 0 < result.real_time_factor < 1


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another file": (lambda data: b"RIFF" + data[4:], "begins with"),
    "half of it": (lambda data: data[: len(data) // 2], "damaged"),
    "only its first bytes": (lambda data: data[:9], "damaged"),
    "a count beyond the file": (lambda data: data[:8] + struct.pack("<I", 2**31) + data[12:], "damaged"),
    "a tensor beyond the file": (lambda data: data[:30] + struct.pack("<Q", 2**60) + data[38:], "damaged"),
    "a dtype that is none": (lambda data: data[:20] + b"\x07" + data[21:], "dtype 7"),
    "a name that is no text": (lambda data: data[:14] + b"\xff\xff" + data[16:], "damaged"),
    "no tensors": (lambda data: MAGIC + struct.pack("<I", 0), "0 blocks"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_container_prints_one_line(name: str, tmp_path: Path) -> None:
    damage, reason = DAMAGES[name]
    path = tmp_path / "damaged.hama"
    path.write_bytes(damage(CONTAINER.read_bytes()))
    (tmp_path / "g2p_vocab.json").write_bytes((ASSETS / "g2p_vocab.json").read_bytes())
    with pytest.raises(SourceError, match=reason) as raised:
        intaglio.convert(path, tmp_path / "checkpoint")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "checkpoint").exists()


def test_other_networks_of_the_container_are_refused(tmp_path: Path) -> None:
    for name in ("encoder.hama", "decoder_step.hama", "p2g.hama"):
        with pytest.raises(SourceError, match=r"begins with|not the network of hama"):
            intaglio.convert(ASSETS / name, tmp_path / "checkpoint")


def test_missing_vocabulary_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "asr_waveform.hama"
    path.write_bytes(CONTAINER.read_bytes())
    with pytest.raises(SourceError, match=r"g2p_vocab\.json: no such file"):
        intaglio.convert(path, tmp_path / "checkpoint")


def test_network_is_exported_without_its_front_end(tmp_path: Path) -> None:
    """The float32 features are rounded to float16 in the graph."""
    intaglio.convert(CONTAINER, tmp_path / "checkpoint")
    assert intaglio.export(tmp_path / "checkpoint", tmp_path / "bundle", features=True).passed
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert [spec.name for spec in manifest.inputs] == ["features", "lengths"]
    network = load_module(manifest.source)
    samples = torch.from_numpy(SAMPLES[0].samples[None, :32000])
    lengths = torch.tensor([samples.shape[1]])
    features, frames = network.front_end(samples, lengths)
    expected, _ = network(samples, lengths)
    with intaglio.open_engine(tmp_path / "bundle") as engine:
        found = engine.run({"features": features.numpy(), "lengths": frames.numpy()})["log_probs"]
        zeros = engine.run({"features": 0 * features.numpy(), "lengths": frames.numpy()})["log_probs"]
    assert np.abs(found - expected.numpy()).max() <= 1e-3
    assert np.abs(zeros - expected.numpy()).max() > 1e-1
