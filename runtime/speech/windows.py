"""Long recordings in overlapping windows; each frame is taken from a window with context on both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.display import progress
from intaglio.errors import EngineError, UsageError
from intaglio.runtime.speech.audio_file import Samples
from intaglio.runtime.speech.ctc import LogProbs

MOST_FRAMES = 1500  # of a window, 30 seconds of frames of 20 ms: the memory of attention grows with their square
ALIGNMENT = 2  # frames; windows begin at multiples, as a network that halves the time inside sees frames in pairs

# audio float32 [batch, samples], lengths int64 [batch]
# -> log_probs float [batch, frames, vocabulary], output_lengths int64 [batch]
Model = Callable[[Samples, npt.NDArray[np.int64]], tuple[npt.NDArray[Any], npt.NDArray[Any]]]


class AudioWindow(NamedTuple):
    """A part of a recording, and which of its frames count; the others are context."""

    samples: Samples
    first: int  # frame of the window
    stop: int | None  # frame after the last that counts; None: all that there are


class WindowCutter:
    """Cuts a recording that arrives in blocks into windows of `left` + `chunk` + `right` frames, each `chunk` further.

    A window's frames count from `left` to `left` + `chunk`; those of the first one from 0, those of the last one to its
    end. The first one has no left context: it ends after its chunk and the right context, or is as long as the others
    if `full_first`. The last one begins early enough to be as long as the others, if the recording is. Lengths are
    rounded up to multiples of `ALIGNMENT`. The windows depend on the recording alone, not on its blocks. Holds at most
    the samples of two windows and a block.
    """

    def __init__(self, frame_samples: int, left: int, chunk: int, right: int, full_first: bool = False):
        self._frame_samples = frame_samples
        self._left, self._chunk, self._right = (-(-frames // ALIGNMENT) * ALIGNMENT for frames in (left, chunk, right))
        self._step = self._chunk + self._left * full_first  # frames that the next window counts
        self._blocks: list[Samples] = []
        self._begin = 0  # samples of the recording that have been dropped
        self._end = 0  # samples of the recording that have arrived
        self._next = 0  # first frame that has not been in a window where it counts

    @property
    def delay(self) -> int:
        """Samples after which a sample's frame has been in a window, of any but a full first one."""
        return (self._chunk + self._right) * self._frame_samples

    def push(self, samples: Samples) -> list[AudioWindow]:
        """Take the next samples; return the windows that are complete, and not the last."""
        self._blocks.append(samples)
        self._end += len(samples)
        windows = []
        while self._end > (stop := self._next + self._step + self._right) * self._frame_samples:
            begin = max(0, self._next - self._left)
            first = self._next - begin
            windows.append(AudioWindow(self._cut(begin, stop * self._frame_samples), first, first + self._step))
            self._next += self._step
            self._step = self._chunk
            self._drop(max(0, self._next - self._left - self._chunk))
        return windows

    def finish(self) -> list[AudioWindow]:
        """Return the last window, at the end of the recording; none if there are no samples left."""
        length = (self._left + self._chunk + self._right) * self._frame_samples
        frames = math.ceil(max(0, self._end - length) / self._frame_samples / ALIGNMENT) * ALIGNMENT
        if frames * self._frame_samples >= self._end:
            return []
        return [AudioWindow(self._cut(frames, self._end), self._next - frames, None)]

    def _cut(self, frame: int, end: int) -> Samples:
        """The samples from a frame up to the sample `end`."""
        self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0][frame * self._frame_samples - self._begin : end - self._begin]

    def _drop(self, frame: int) -> None:
        """Drop the samples before a frame."""
        begin = frame * self._frame_samples
        self._blocks = [self._blocks[0][begin - self._begin :].copy()]
        self._begin = begin


@dataclass(frozen=True)
class WindowOptions:
    """How a long recording is cut."""

    seconds: float = 30.0  # of a window; a recording that is not longer is computed as a whole
    overlap: float = 4.0  # seconds that neighbouring windows share; half is context of the one, half of the other
    batch_size: int = 1  # windows computed together

    def __post_init__(self) -> None:
        if not (0 < self.overlap < self.seconds < math.inf):
            raise UsageError(
                f"windows of {self.seconds:g} seconds with an overlap of {self.overlap:g}: expected an overlap above 0 "
                "and below the window."
            )
        if self.batch_size < 1:
            raise UsageError(f"windows: batch size {self.batch_size}, expected at least 1.")

    def cutter(self, sample_rate: int, frame_samples: int) -> WindowCutter:
        """A cutter of these windows. Raises `UsageError` if the overlap leaves no frame of a window to take."""
        total, half = (math.ceil(seconds * sample_rate / frame_samples) for seconds in (self.seconds, self.overlap / 2))
        if total > MOST_FRAMES:
            total, half = MOST_FRAMES, half * MOST_FRAMES // total
        half = -(-half // ALIGNMENT) * ALIGNMENT
        if total - 2 * half < ALIGNMENT:
            raise UsageError(
                f"windows of {self.seconds:g} seconds with an overlap of {self.overlap:g}: expected a difference of at "
                f"least {3 * ALIGNMENT} frames of {frame_samples / sample_rate:g} seconds."
            )
        return WindowCutter(frame_samples, half, (total - 2 * half) // ALIGNMENT * ALIGNMENT, half, full_first=True)


def recording_log_probs(
    model: Model, blocks: Iterable[Samples], cutter: WindowCutter, batch_size: int = 1, samples: int | None = None
) -> Iterator[LogProbs]:
    """Yield the log-probabilities [frames, vocabulary] of a recording of any length, in pieces and in order.

    `samples` is its length for the bar that shows the progress; without it, nothing is shown. For a model whose output
    frame depends on no more than half an overlap of samples around it, the result equals that of the whole recording.
    Raises `EngineError` if the model gives fewer frames than its windows have.
    """
    waiting: list[AudioWindow] = []
    with progress.fraction("transcribing") if samples else nullcontext(lambda part: None) as show:
        arrived = 0
        for block in blocks:
            waiting += cutter.push(block)
            arrived += len(block)
            while len(waiting) >= batch_size:
                yield from computed(model, waiting[:batch_size])
                del waiting[:batch_size]
            if samples:
                show(min(1.0, arrived / samples))
        waiting += cutter.finish()
        while waiting:
            yield from computed(model, waiting[:batch_size])
            del waiting[:batch_size]


def computed(model: Model, windows: Sequence[AudioWindow]) -> Iterator[LogProbs]:
    """Compute windows as one batch, padded with zeros; yield the log-probabilities of those frames that count."""
    lengths = np.array([len(window.samples) for window in windows], np.int64)
    audio = np.zeros((len(windows), int(lengths.max())), np.float32)
    for samples, window in zip(audio, windows, strict=True):
        samples[: len(window.samples)] = window.samples
    log_probs, output_lengths = model(audio, lengths)
    for row, (window, frames) in enumerate(zip(windows, output_lengths.tolist(), strict=True)):
        if frames < (window.stop or 0):
            raise EngineError(
                f"the model gave {frames} frames for {lengths[row]} samples, expected at least {window.stop}. "
                "Correct frame_samples in the bundle's manifest: re-export it."
            )
        yield log_probs[row, window.first : frames if window.stop is None else window.stop]
