"""Recordings: every format and rate gives the same signal, in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from sound_files import RATE, tone, write_sound

from intaglio.errors import UsageError
from intaglio.runtime.speech.audio_file import AudioFile, read_audio


@pytest.mark.parametrize(
    ("kind", "subtype", "error"),
    [
        ("WAV", "PCM_U8", 1 / 128),
        ("WAV", "PCM_16", 1 / 32768),
        ("WAV", "PCM_24", 1e-6),
        ("WAV", "PCM_32", 1e-6),
        ("WAV", "FLOAT", 0),
        ("WAV", "DOUBLE", 0),
        ("WAVEX", "PCM_16", 1 / 32768),
        ("RF64", "PCM_16", 1 / 32768),
        ("FLAC", "PCM_16", 1 / 32768),
        ("OGG", "VORBIS", 0.05),
        ("OGG", "OPUS", 0.05),
    ],
)
def test_every_format_decodes_to_the_signal(tmp_path: Path, kind: str, subtype: str, error: float) -> None:
    signal = tone()
    found = read_audio(write_sound(tmp_path / "recording", signal, subtype=subtype, kind=kind), RATE)
    assert found.dtype == np.float32 and found.shape == signal.shape
    assert np.abs(found - signal)[:-400].max() <= error  # Opus fades out


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_resampling_has_no_seams_between_blocks(tmp_path: Path, rate: int) -> None:
    path = write_sound(tmp_path / "recording.wav", tone(3.0, rate), rate, "FLOAT")
    found = read_audio(path, RATE)
    assert len(found) == 3 * RATE
    assert np.abs(found - tone(3.0))[200:-200].max() < 2e-3
    for block_seconds in (0.01, 0.37, 100.0):
        with AudioFile(path, RATE) as file:
            assert np.array_equal(np.concatenate(list(file.blocks(block_seconds))), found)


def test_stereo_is_averaged(tmp_path: Path) -> None:
    left, right = tone(), tone(frequency=600.0)
    path = write_sound(tmp_path / "stereo.wav", np.stack([left, right], axis=1), subtype="FLOAT")
    assert np.allclose(read_audio(path, RATE), (left + right) / 2, atol=1e-7)


def test_length_is_known_before_reading(tmp_path: Path) -> None:
    with AudioFile(write_sound(tmp_path / "recording.wav", tone(2.5, 44_100), 44_100), RATE) as file:
        assert file.seconds == pytest.approx(2.5)


def test_long_recording_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """10 minutes of stereo at 48 kHz are 220 MB as floats."""
    path = write_sound(tmp_path / "long.flac", np.zeros((600 * 48_000, 2), np.int16), 48_000, kind="FLAC")
    tracemalloc.start()
    with AudioFile(path, RATE) as file:
        seconds = sum(len(block) for block in file.blocks()) / RATE
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds == 600
    assert peak < 4 << 20


def test_wav_written_to_a_pipe_is_read(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "piped.wav", tone())
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = b"\xff" * 4
    path.write_bytes(data)
    assert len(read_audio(path, RATE)) == RATE


def test_chunks_before_the_samples_are_skipped(tmp_path: Path) -> None:
    """One of odd length is followed by a zero."""
    path = write_sound(tmp_path / "chunks.wav", tone())
    data = path.read_bytes()
    path.write_bytes(data[:36] + b"note" + struct.pack("<I", 3) + b"abc\0" + data[36:])
    assert len(read_audio(path, RATE)) == RATE
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UsageError, match="truncated: states 32000 bytes of samples, and holds 31990"):
        read_audio(path, RATE)


def test_too_long_recording_is_rejected_before_reading(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "long.wav", tone(3.0))
    assert len(read_audio(path, RATE, max_seconds=3)) == 3 * RATE
    with (
        pytest.raises(UsageError, match=r"3.0 seconds, expected at most 2. Raise --max-seconds, or split it"),
        AudioFile(path, RATE, max_seconds=2),
    ):
        pass


def test_recording_of_unknown_length_is_stopped_at_the_limit(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "piped.flac", tone(5.0), kind="FLAC")
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    path.write_bytes(data)
    assert len(read_audio(path, RATE)) == 5 * RATE
    with AudioFile(path, RATE, max_seconds=2, option="--limit") as file:
        assert file.seconds is None
        with pytest.raises(UsageError, match=r"expected at most 2. Raise --limit"):
            list(file.blocks())
