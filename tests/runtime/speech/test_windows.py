"""Windows of a long recording equal the full result, if the model's context is within the overlap."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from local_models import FRAME, RATE, LocalModel, recording

from intaglio.errors import EngineError, UsageError
from intaglio.runtime.speech.audio_file import Samples
from intaglio.runtime.speech.windows import ALIGNMENT, WindowCutter, WindowOptions, recording_log_probs


def pieces(samples: Samples, cuts: list[int]) -> list[Samples]:
    """The samples cut at these places."""
    places = [0, *sorted(min(cut, len(samples)) for cut in cuts), len(samples)]
    return [samples[start:stop] for start, stop in itertools.pairwise(places)]


def in_windows(model: LocalModel, blocks: list[Samples], options: WindowOptions) -> np.ndarray:
    found = recording_log_probs(model, blocks, options.cutter(RATE, FRAME), options.batch_size)
    return np.concatenate([*found, np.zeros((0, model.tokens))])


def whole(model: LocalModel, samples: Samples) -> np.ndarray:
    return model(samples[None], np.array([len(samples)]))[0][0]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 1500),
    st.lists(st.integers(0, 1500), max_size=8),
    st.integers(10, 40),
    st.integers(1, 3),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 1),
)
def test_windows_equal_the_whole_recording(
    length: int, cuts: list[int], frames: int, half: int, batch_size: int, pairs: bool, more: int
) -> None:
    samples = recording(length)
    model = LocalModel(reach=half * FRAME, more=more, pairs=pairs)
    options = WindowOptions(frames * FRAME / RATE, 2 * half * FRAME / RATE, batch_size)
    assert np.array_equal(in_windows(model, pieces(samples, cuts), options), whole(model, samples))


def test_context_beyond_the_overlap_changes_the_result() -> None:
    samples, model = recording(1500), LocalModel(reach=5 * FRAME)
    assert not np.array_equal(in_windows(model, [samples], WindowOptions(2.0, 0.4)), whole(model, samples))


def lengths_of(samples: Samples, options: WindowOptions) -> list[int]:
    cutter = options.cutter(RATE, FRAME)
    windows = [*cutter.push(samples), *cutter.finish()]
    return [len(window.samples) for window in windows]


def test_recording_within_a_window_is_computed_once() -> None:
    assert lengths_of(recording(200), WindowOptions(2.0, 0.4)) == [200]
    assert lengths_of(recording(7), WindowOptions(2.0, 0.4)) == [7]
    assert lengths_of(recording(0), WindowOptions(2.0, 0.4)) == []


def test_windows_of_a_long_recording_have_similar_lengths() -> None:
    """A short last one would be computed with less context than its neighbours."""
    for length in range(201, 700):
        lengths = lengths_of(recording(length), WindowOptions(2.0, 0.4))
        assert lengths[:-1] == [200] * (len(lengths) - 1)
        assert 200 - ALIGNMENT * FRAME < lengths[-1] <= 200


def test_hours_of_audio_are_cut_in_bounded_memory() -> None:
    """At any time, at most the samples of two windows and a block are held."""
    cutter = WindowOptions(30, 4).cutter(RATE, FRAME)
    held = []
    for _ in range(3 * 3600):
        cutter.push(np.zeros(RATE, np.float32))
        held.append(sum(block.base.size if block.base is not None else block.size for block in cutter._blocks))
    assert max(held) <= (2 * 30 + 1) * RATE


def test_windows_are_computed_in_batches_as_the_recording_arrives() -> None:
    arrived, batches = [], []

    def blocks() -> Iterator[Samples]:
        for second in range(20):
            arrived.append(second)
            yield recording(RATE, second)

    def model(audio: Samples, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        batches.append((len(audio), len(arrived)))
        return LocalModel(reach=5)(audio, lengths)

    list(recording_log_probs(model, blocks(), WindowOptions(2.0, 0.4).cutter(RATE, FRAME), 3))
    assert [rows for rows, _ in batches] == [3, 3, 3, 3, 1]
    assert [seconds for _, seconds in batches] == [6, 11, 15, 20, 20]


class Terminal:
    """Standard error that is a terminal, and keeps what is written."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    blocks = [recording(RATE)] * 20
    list(recording_log_probs(LocalModel(5), blocks, WindowOptions(2.0, 0.4).cutter(RATE, FRAME), 1, 20 * RATE))
    assert "transcribing" in terminal.text and "100%" in terminal.text


def test_too_few_frames_raise_engine_error() -> None:
    def model(audio: Samples, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log_probs, frames = LocalModel(5)(audio, lengths)
        return log_probs[:, ::2], frames // 2

    with pytest.raises(
        EngineError, match=r"gave 10 frames for 200 samples, expected at least 18.*re-export"
    ) as refused:
        list(recording_log_probs(model, [recording(500)], WindowOptions(2.0, 0.4).cutter(RATE, FRAME)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0.0}, "windows of 0 seconds with an overlap of 4: expected an overlap above 0"),
        ({"seconds": 4.0}, "windows of 4 seconds with an overlap of 4"),
        ({"overlap": 0.0}, "with an overlap of 0"),
        ({"overlap": float("nan")}, "with an overlap of nan"),
        ({"seconds": float("inf")}, "windows of inf seconds"),
        ({"batch_size": 0}, "batch size 0"),
    ],
)
def test_invalid_options_raise_usage_error(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WindowOptions(**options)  # type: ignore[arg-type]


def test_overlap_that_leaves_no_frame_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"expected a difference of at least 6 frames of 0.1 seconds"):
        WindowOptions(0.5, 0.45).cutter(RATE, FRAME)


def test_windows_begin_at_aligned_frames() -> None:
    cutter = WindowCutter(FRAME, left=3, chunk=3, right=1)
    windows = cutter.push(recording(500))
    assert {len(window.samples) // FRAME for window in windows[1:]} == {4 + 4 + 2}
    assert all(window.first % ALIGNMENT == 0 for window in windows)
