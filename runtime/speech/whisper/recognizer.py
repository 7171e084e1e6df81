"""A bundle of Whisper, opened: recordings to transcripts or translations, in segments with times."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.closing import Closing
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.speech.audio_file import AudioFile, Samples
from intaglio.runtime.speech.whisper.alignment import Aligner
from intaglio.runtime.speech.whisper.context import new_context
from intaglio.runtime.speech.whisper.log_mel import Features
from intaglio.runtime.speech.whisper.session import SpeechSession
from intaglio.runtime.speech.whisper.timed_segments import STRIDE, TimedTokens, cut
from intaglio.runtime.speech.whisper.token_rules import TokenRules
from intaglio.runtime.speech.whisper.window import Written, write_window
from intaglio.runtime.speech.whisper.words import split_words
from intaglio.runtime.speech.whisper_options import WhisperOptions, parts_of
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.targets import DEFAULT

SEED = 0  # of the samples at temperatures above 0: the same recording gets the same text


class WrittenWord(msgspec.Struct, frozen=True):
    """A word of a segment."""

    text: str  # without the space before it
    start: float  # seconds
    end: float  # seconds


class WrittenSegment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a transcript between two times; the last numbers are those of its window."""

    text: str
    start: float  # seconds
    end: float  # seconds
    tokens: list[int]
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    temperature: float
    words: list[WrittenWord] | None = None  # where they are asked for


class WhisperRecognizer(Closing):
    """An opened bundle that transcribes or translates recordings. A context manager; used by one thread at a time."""

    def __init__(
        self,
        bundle: Bundle,
        target: str = DEFAULT,
        threads: int | None = None,
        spinning: bool = True,
        options: WhisperOptions | None = None,
        max_seconds: float | None = None,
        beams: int = 1,
    ):
        """`threads` and `spinning`: see `open_engine`. `max_seconds` of a recording; longer ones are rejected.

        `beams`: texts of a window that are extended at a time; 1: it is written greedily.

        Raises `UsageError` for options that the model does not have, `BundleError` for another bundle.
        """
        self.bundle, self.options, self.max_seconds = bundle, options or WhisperOptions(), max_seconds
        self.encoder, self.transcriber = parts_of(bundle)
        self.options.check(bundle)
        self.sample_rate = self.transcriber.sample_rate
        self.window_seconds = self.transcriber.frames * self.transcriber.hop / self.sample_rate
        self.tokenizer = Tokenizer(bundle.path / TOKENIZER, ["input_ids"], None).backend
        self._opening = target, threads
        self._aligner: Aligner | None = None
        self.session = SpeechSession.open(bundle, target, beams, threads=threads, spinning=spinning)
        try:
            self.front_end = open_engine(bundle, target, threads, spinning=False, graph=self.transcriber.file)
        except BaseException:
            self.session.close()
            raise

    def close(self) -> None:
        """Release the engines; the recogniser is invalid afterwards."""
        self.session.close()
        self.front_end.close()
        if self._aligner is not None:
            self._aligner.close()

    @property
    def aligner(self) -> Aligner:
        """What finds the times of words, opened when it is first asked for."""
        if self._aligner is None:
            self._aligner = Aligner(self.bundle, *self._opening)
        return self._aligner

    def transcribe(self, path: str | Path) -> WhisperTranscription:
        """Write a recording of any length. Raises `UsageError` for an invalid or damaged file."""
        with AudioFile(path, self.sample_rate, self.max_seconds) as file:
            return self.transcribe_samples(file.blocks())

    def transcribe_samples(self, blocks: Iterable[Samples]) -> WhisperTranscription:
        """Write samples at the model's rate, which arrive in blocks."""
        transcription = self.begin(blocks)
        for _ in transcription:
            pass
        return transcription

    def begin(self, blocks: Iterable[Samples], options: WhisperOptions | None = None) -> WhisperTranscription:
        """Begin to write; several may be in progress, as each computes only when it is iterated.

        Raises `UsageError` for options that the model does not have.
        """
        chosen = options or self.options
        chosen.check(self.bundle)
        return WhisperTranscription(self, blocks, chosen)


class WhisperTranscription:
    """Iterate over it for the segments of each window; the first iteration reads the whole recording."""

    def __init__(self, recognizer: WhisperRecognizer, blocks: Iterable[Samples], options: WhisperOptions):
        self._recognizer, self._blocks, self._options = recognizer, blocks, options
        transcriber = recognizer.transcriber
        self.task = options.task or transcriber.task
        self.language = options.language or transcriber.language
        self.segments: list[WrittenSegment] = []
        self.seconds = 0.0  # of audio
        self.decoding_seconds = 0.0  # in the decoder, with all temperatures
        self.finished = False
        self._context = new_context(recognizer.bundle, recognizer.tokenizer, options)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(segment.text for segment in self.segments).strip()

    def __iter__(self) -> Iterator[list[WrittenSegment]]:
        found = self._recognizer
        features = Features(found.front_end, found.transcriber, self._blocks)
        self.seconds = features.seconds
        size = found.transcriber.frames
        timestamps = self._options.timestamps or self._options.word_timestamps or features.frames > size
        (end,) = found.session.decoder.eos_token_ids
        rules = TokenRules(found.encoder, found.transcriber, end, timestamps)
        random = np.random.default_rng(SEED)
        first = 0
        while first < features.content:
            found.session.encode(features.window(first))
            if self.language is None and found.encoder.languages:
                self.language = self._detected()
            prompt = self._prompt(timestamps)
            context = self._context.tokens()
            began = time.perf_counter()
            written = write_window(
                found.session, found.transcriber, context, prompt, rules, self._options.fallback, random
            )
            self.decoding_seconds += time.perf_counter() - began
            frames = min(size, features.frames - first)
            if written.is_silence(self._options.fallback):
                self._context.add(written, [])
                first += frames
                continue
            parts, step = cut(written.tokens, rules.first_time, frames)
            self._context.add(written, [part.tokens for part in parts])
            ends = list[int]()
            if self._options.word_timestamps:
                ends = found.aligner.ends(found.session, [*context, *prompt], written.tokens, features.content - first)
            segments = [self._segment(part, first, written, rules.first_time, ends) for part in parts]
            self.segments += segments
            first += step
            self.finished = first >= features.content
            yield segments
        self.finished = True

    def _detected(self) -> str:
        """The likeliest language of the window."""
        session, languages = self._recognizer.session, self._recognizer.encoder.languages
        logits = session.append_first([self._recognizer.encoder.decoder_start_token_id], 1)
        return max(languages, key=lambda code: float(logits[-1, languages[code]]))

    def _prompt(self, timestamps: bool) -> list[int]:
        """The tokens that a text begins with: start, language, task, and that it has no times."""
        encoder, transcriber = self._recognizer.encoder, self._recognizer.transcriber
        prompt = [encoder.decoder_start_token_id]
        if self.language is not None and encoder.languages:
            prompt.append(encoder.languages[self.language])
        if transcriber.tasks:
            prompt.append(transcriber.tasks[self.task])
        return prompt if timestamps else [*prompt, transcriber.no_timestamps]

    def _segment(
        self, part: TimedTokens, first: int, written: Written, first_time: int, ends: Sequence[int]
    ) -> WrittenSegment:
        """A part of a window that begins at the frame `first`; `ends` of all of its tokens, for times of words."""
        recognizer = self._recognizer
        start, end = self._time(first, part.start), self._time(first, part.end)
        text = recognizer.tokenizer.decode([token for token in part.tokens if token < first_time])
        return WrittenSegment(
            text,
            start,
            end,
            part.tokens,
            round(written.log_prob, 6),
            round(written.compression_ratio, 4),
            round(written.no_speech, 6),
            written.temperature,
            self._words(part, first, ends) if ends else None,
        )

    def _time(self, first: int, position: int) -> float:
        """The seconds of a position of the encoder in the window that begins at the frame `first`."""
        transcriber = self._recognizer.transcriber
        step = transcriber.hop / transcriber.sample_rate
        return round(min((first + position * STRIDE) * step, self.seconds), 3)

    def _words(self, part: TimedTokens, first: int, ends: Sequence[int]) -> list[WrittenWord]:
        """The words of a part; a token begins where the one before it ends."""
        (end,) = self._recognizer.session.decoder.eos_token_ids
        numbered = [(number, token) for number, token in enumerate(part.tokens, part.before) if token < end]
        starts = [0, *ends]
        return [
            WrittenWord(
                word.text.strip(),
                self._time(first, starts[numbered[word.first][0]]),
                self._time(first, ends[numbered[word.end - 1][0]]),
            )
            for word in split_words(self._recognizer.tokenizer, [token for _, token in numbered], self.language)
            if word.text.strip()
        ]
