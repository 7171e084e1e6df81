"""Recordings as inputs of comparison and calibration: loading, padding, and masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from speech_networks import random_network, squeezeformer, write_checkpoint

import intaglio
from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.networks.speech.configuration import FrontEnd
from intaglio.runtime.modalities.audio import LONGEST, padded
from intaglio.runtime.modalities.table import modality_of, real_positions
from intaglio.runtime.speech.recording_list import recordings_of
from intaglio.samples.speech_samples import recordings


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("modality")
    front_end = FrontEnd(mels=20, sample_rate=8000, window=200, hop=80, fft_size=256)
    checkpoint = write_checkpoint(folder / "checkpoint", random_network(squeezeformer(front_end=front_end)))
    intaglio.export(checkpoint, folder / "bundle", check=False)
    return Bundle.open(folder / "bundle")


def write(folder: Path, **samples: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Path:
    folder.mkdir()
    for name, each in samples.items():
        soundfile.write(folder / f"{name}.wav", each, 8000)
    return folder


def test_shipped_recordings_have_the_models_rate(bundle: Bundle) -> None:
    feeds, used = modality_of(bundle.manifest).load(bundle, None, 4, 3)
    assert [batch["lengths"].tolist() for batch in feeds] == [
        [len(each.samples) // 2 for each in recordings()[:3]],
        [len(recordings()[3].samples) // 2],
    ]
    assert (used.samples, used.available, used.batches) == (4, 5, 2)
    assert feeds[0]["audio"].shape == (3, max(feeds[0]["lengths"]))


def test_calibration_does_not_pad(bundle: Bundle, tmp_path: Path) -> None:
    folder = write(tmp_path / "all", a=np.zeros(4000, np.float32), b=np.ones(2000, np.float32) / 2)
    feeds, used = modality_of(bundle.manifest).calibration(bundle, folder, 8, 8)
    assert [batch["audio"].shape for batch in feeds] == [(1, 4000), (1, 2000)]
    assert used.samples == 2


def test_long_recording_is_truncated_for_comparison(bundle: Bundle, tmp_path: Path) -> None:
    folder = write(tmp_path / "long", a=np.zeros(int(8000 * (LONGEST + 5)), np.float32))
    (feeds,), _ = modality_of(bundle.manifest).load(bundle, folder / "a.wav", 1, 1)
    assert feeds["audio"].shape == (1, 8000 * LONGEST)


def test_arrays_are_used_unchanged(bundle: Bundle, tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", audio=np.zeros((2, 500), np.float32), lengths=np.array([500, 300]))
    (feeds,), used = modality_of(bundle.manifest).load(bundle, tmp_path / "arrays.npz", 8, 8)
    assert feeds["lengths"].tolist() == [500, 300] and used.samples == 2


def test_frames_beyond_a_row_are_not_compared() -> None:
    outputs = {"log_probs": np.zeros((2, 4, 5), np.float32), "output_lengths": np.array([4, 1])}
    mask = real_positions(padded([np.zeros(4, np.float32), np.zeros(1, np.float32)]), outputs)
    assert mask is not None and mask.tolist() == [[True] * 4, [True, False, False, False]]
    assert real_positions({"x": np.zeros(2)}, {"y": np.zeros(2)}) is None


def test_lists_have_relative_paths_and_texts(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    tsv = tmp_path / "list.tsv"
    tsv.write_text("a.wav\tone two\n\nsub/b.flac\n")
    assert [(each.path, each.text) for each in recordings_of(tsv, "--input")] == [
        (tmp_path / "a.wav", "one two"),
        (tmp_path / "sub/b.flac", None),
    ]
    jsonl = tmp_path / "list.jsonl"
    jsonl.write_text('{"audio_filepath": "a.wav", "text": "one", "duration": 1.5}\n')
    assert recordings_of(jsonl, "--input")[0].text == "one"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("list.tsv", "", "no lines"),
        ("list.tsv", "/etc/passwd\tx", "line 1"),
        ("list.tsv", "a.wav\n../b.wav", "line 2"),
        ("list.jsonl", "{", "line 1"),
        ("list.jsonl", '{"text": "x"}', "audio_filepath"),
        ("list.jsonl", "[" * 100_000, "line 1"),
        ("list.tsv", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_damaged_list_is_a_one_line_error(name: str, content: str | bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=reason) as raised:
        recordings_of(path, "--input")
    assert "\n" not in str(raised.value)


def test_empty_folder_error_lists_the_formats(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(UsageError, match=r"has no recordings \(\.wav"):
        recordings_of(tmp_path, "--input")


def test_feature_bundle_needs_arrays(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", random_network(squeezeformer()))
    intaglio.export(checkpoint, tmp_path / "bundle", check=False, features=True)
    opened = Bundle.open(tmp_path / "bundle")
    with pytest.raises(UsageError, match="takes features"):
        modality_of(opened.manifest).load(opened, None, 1, 1)
