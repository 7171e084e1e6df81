"""A recording that is being transcribed, window by window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from intaglio.runtime.speech.audio_file import Samples
from intaglio.runtime.speech.ctc import Decoder, LogProbs, Token
from intaglio.runtime.speech.transcript import Transcript, Word, WordReader, transcript
from intaglio.runtime.speech.vocabulary import Vocabulary


class CountedBlocks:
    """Blocks of samples, and how many samples have been read."""

    def __init__(self, blocks: Iterable[Samples]):
        self._blocks = blocks
        self.samples = 0

    def __iter__(self) -> Iterator[Samples]:
        for block in self._blocks:
            self.samples += len(block)
            yield block


class Transcription:
    """Iterate over it for the words that became final; then ask for the transcript.

    Each iteration computes one window, or one batch of them; the last one only returns the last words.
    """

    def __init__(
        self,
        log_probs: Iterator[LogProbs],
        decoder: Decoder,
        vocabulary: Vocabulary,
        blocks: CountedBlocks,
        sample_rate: int,
        frame_samples: int,
    ):
        """`log_probs` computes those of `blocks`, in order."""
        self._log_probs, self._decoder, self._blocks = log_probs, decoder, blocks
        self._sample_rate = sample_rate
        self.vocabulary = vocabulary
        self.frame_seconds = frame_samples / sample_rate
        self.tokens: list[Token] = []  # that became final
        self.finished = False  # all words have been returned

    @property
    def seconds(self) -> float:
        """Seconds of audio that have been read."""
        return self._blocks.samples / self._sample_rate

    def __iter__(self) -> Iterator[list[Word]]:
        words = WordReader(self.vocabulary, self.frame_seconds)
        for log_probs in self._log_probs:
            tokens = self._decoder.advance(log_probs)
            self.tokens += tokens
            yield words.add(tokens)
        words.seconds = self.seconds
        last = self._decoder.finish()
        self.tokens += last
        self.finished = True
        yield words.add(last) + words.close()

    def transcript(self) -> Transcript:
        """The transcript of all tokens so far."""
        return transcript(self.tokens, self.vocabulary, self.frame_seconds, self.seconds)
