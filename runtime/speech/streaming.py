"""Transcribe audio while it arrives: words become final with a stated latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from intaglio.errors import UsageError
from intaglio.runtime.speech.audio_file import Samples
from intaglio.runtime.speech.ctc import Decoder, Token
from intaglio.runtime.speech.transcript import Word, WordReader
from intaglio.runtime.speech.vocabulary import Vocabulary
from intaglio.runtime.speech.windows import Model, Window, WindowCutter, computed


@dataclass(frozen=True)
class StreamOptions:
    """How much audio the model sees at a time. Each sample is computed (left + chunk + right) / chunk times."""

    chunk: float = 1.0  # seconds between two computations
    left: float = 4.0  # seconds of context before the chunk
    right: float = 1.0  # seconds of context after it

    def __post_init__(self) -> None:
        if not (0 < self.chunk < math.inf and 0 <= self.left < math.inf and 0 <= self.right < math.inf):
            raise UsageError(
                f"streaming with a chunk of {self.chunk:g} seconds, {self.left:g} before and {self.right:g} after it: "
                "expected a chunk above 0, and no context below 0."
            )


class StreamUpdate(NamedTuple):
    """What the last samples changed."""

    words: list[Word]  # that became final
    partial: str  # text after all final words, as it looks now


class StreamingTranscriber:
    """Takes samples in pieces of any length, and returns words as they become final.

    A sample is transcribed at most `latency` seconds after it arrived, not counting the computation. With a greedy
    decoder a word is final when the next one begins; with a beam search also when all prefixes of the beam agree. How
    the samples are cut into pieces changes nothing of the words.
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
        self.latency = self._cutter.delay / sample_rate  # seconds: the chunk and the context after it

    def feed(self, samples: Samples) -> StreamUpdate:
        """Take the next samples."""
        self._samples += len(samples)
        words = self._words.add(self._decoded(self._cutter.push(samples)))
        return StreamUpdate(words, self._words.preview(self._decoder.pending()))

    def flush(self) -> StreamUpdate:
        """Return the last words, at the end of the audio; nothing may be fed afterwards."""
        self._words.seconds = self._samples / self._sample_rate
        tokens = self._decoded(self._cutter.finish()) + self._decoder.finish()
        return StreamUpdate(self._words.add(tokens) + self._words.close(), "")

    def _decoded(self, windows: list[Window]) -> list[Token]:
        """The tokens that these windows made final."""
        found = []
        for window in windows:
            for log_probs in computed(self._model, [window]):
                found += self._decoder.advance(log_probs)
        return found
