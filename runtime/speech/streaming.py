"""Transcribe audio while it arrives: words become final with a stated latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from intaglio.errors import UsageError
from intaglio.runtime.speech.audio_file import Samples
from intaglio.runtime.speech.ctc import Decoder
from intaglio.runtime.speech.transcript import Word, WordReader
from intaglio.runtime.speech.vocabulary import Vocabulary
from intaglio.runtime.speech.windows import AudioWindow, Model, WindowCutter, computed


@dataclass(frozen=True)
class StreamOptions:
    """The amount of audio per computation. Each sample is computed (left + chunk + right) / chunk times."""

    chunk: float = 1.0  # seconds between two computations
    left: float = 4.0  # seconds of context before the chunk
    right: float = 1.0  # seconds of context after it
    pause: float = 1.5  # seconds without a token after which a word is final

    def __post_init__(self) -> None:
        if not (0 < self.chunk < math.inf and 0 <= self.left < math.inf and 0 <= self.right < math.inf):
            raise UsageError(
                f"streaming with a chunk of {self.chunk:g} seconds, {self.left:g} before and {self.right:g} after it: "
                "expected a chunk above 0, and no context below 0."
            )
        if not self.pause > 0:
            raise UsageError(f"streaming with pauses of {self.pause:g} seconds, expected above 0.")


class StreamUpdate(NamedTuple):
    """The changes by the last samples."""

    words: list[Word]  # that became final
    partial: str  # text after all final words, not final yet


class StreamingTranscriber:
    """Takes samples in pieces of any length, and returns words as they become final.

    A sample is in the partial text at most `latency` seconds after it arrived, not counting the computation. A word is
    final when the next one begins, or a pause follows; a beam search also waits until all of its prefixes agree, but
    not longer than `max_open_frames`. The words are independent of the piece boundaries.
    """

    def __init__(
        self,
        model: Model,
        decoder: Decoder,
        vocabulary: Vocabulary,
        sample_rate: int,
        frame_samples: int,
        options: StreamOptions | None = None,
    ):
        options = options or StreamOptions()
        left, chunk, right = (
            math.ceil(seconds * sample_rate / frame_samples) for seconds in (options.left, options.chunk, options.right)
        )
        self._model = model
        self._decoder = decoder
        self._cutter = WindowCutter(frame_samples, left, chunk, right)
        self._words = WordReader(vocabulary, frame_samples / sample_rate)
        self._sample_rate = sample_rate
        self._samples = 0
        self._frames = 0  # decoded
        self._spoken = 0  # of them, those up to the last final token
        self._pause = options.pause * sample_rate / frame_samples  # frames
        self.latency = self._cutter.delay / sample_rate  # seconds: the chunk and the context after it

    def feed(self, samples: Samples) -> StreamUpdate:
        """Take the next samples."""
        self._samples += len(samples)
        words = [word for window in self._cutter.push(samples) for word in self._final(window)]
        return StreamUpdate(words, self._words.preview(self._decoder.pending()))

    def flush(self) -> StreamUpdate:
        """Return the last words, at the end of the audio; nothing may be fed afterwards."""
        self._words.seconds = self._samples / self._sample_rate
        words = [word for window in self._cutter.finish() for word in self._final(window)]
        return StreamUpdate(words + self._words.add(self._decoder.finish()) + self._words.close(), "")

    def _final(self, window: AudioWindow) -> list[Word]:
        """The words that this window made final."""
        words: list[Word] = []
        for log_probs in computed(self._model, [window]):
            tokens = self._decoder.advance(log_probs)
            words += self._words.add(tokens)
            self._frames += len(log_probs)
            if tokens:
                self._spoken = tokens[-1].last + 1
        if self._frames - self._spoken >= self._pause and not self._decoder.pending():
            words += self._words.close()
        return words
