"""Recordings of a few samples, which are shorter than a frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sound_files import RATE, write_sound

import intaglio
from intaglio.errors import UsageError
from intaglio.runtime.speech.windows import MOST_FRAMES, WindowOptions


@pytest.mark.parametrize("samples", [1, 2, 7, 159, 160, 399, 400])
@pytest.mark.parametrize("options", [{}, {"beam": 4}], ids=["greedy", "beam"])
def test_recording_of_a_few_samples_is_transcribed(
    samples: int, options: dict[str, Any], recogniser: Path, tmp_path: Path
) -> None:
    path = write_sound(tmp_path / "short.wav", np.full(samples, 0.1, np.float32))
    (result,) = intaglio.run(recogniser, [str(path)], **options)
    assert result.seconds == round(samples / RATE, 3) and result.real_time_factor >= 0


def test_resampled_recording_of_a_few_samples_is_transcribed(recogniser: Path, tmp_path: Path) -> None:
    path = write_sound(tmp_path / "short.wav", np.full(2, 0.1, np.float32), rate=96_000)
    assert len(list(intaglio.run(recogniser, [str(path)]))) == 1


def test_empty_recording_is_a_one_line_error(recogniser: Path, tmp_path: Path) -> None:
    path = write_sound(tmp_path / "empty.wav", np.zeros(0, np.float32))
    with pytest.raises(UsageError, match="has no samples"):
        list(intaglio.run(recogniser, [str(path)]))


def test_recordings_of_a_few_samples_are_compared(recogniser: Path, tmp_path: Path) -> None:
    for samples in (1, 399):
        write_sound(tmp_path / f"{samples}.wav", np.full(samples, 0.1, np.float32))
    (tmp_path / "list.tsv").write_text("1.wav\ta\n399.wav\tb\n")
    for data in (tmp_path / "1.wav", tmp_path / "list.tsv"):
        result = intaglio.validate(recogniser, against="reference", data=data, report=tmp_path / "report")
        assert result.passed
    measured = intaglio.validate(recogniser, wer=tmp_path / "list.tsv", report=tmp_path / "report")
    assert measured.recordings == 2


@pytest.mark.parametrize("frame_samples", [1, 28, 320, 640, 40_000])
def test_window_size_in_frames_is_bounded(frame_samples: int) -> None:
    """A hop of 7 samples makes 17,000 frames of 30 seconds, whose attention takes gigabytes."""
    if frame_samples > RATE * 3:
        return
    cutter = WindowOptions().cutter(RATE, frame_samples)
    windows = [*cutter.push(np.zeros(40 * RATE, np.float32)), *cutter.finish()]
    longest = max(len(window.samples) for window in windows) / frame_samples
    assert 10 * RATE / frame_samples <= longest or longest == MOST_FRAMES
    assert longest <= max(MOST_FRAMES, 1)
