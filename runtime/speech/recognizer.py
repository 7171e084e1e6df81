"""A bundle that takes audio, opened: recordings to transcripts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Audio, Bundle
from intaglio.errors import BundleError, EngineError, UsageError
from intaglio.runtime.engines.engine import EngineRunner
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.speech.audio_file import AudioFile, Samples
from intaglio.runtime.speech.beam_search import BeamDecoder, CtcBeamOptions
from intaglio.runtime.speech.ctc import Decoder, GreedyDecoder, LogProbs
from intaglio.runtime.speech.ngram_model import NgramModel
from intaglio.runtime.speech.streaming import StreamingTranscriber, StreamOptions
from intaglio.runtime.speech.transcript import Transcript
from intaglio.runtime.speech.transcription import CountedBlocks, Transcription
from intaglio.runtime.speech.vocabulary import VOCABULARY, read_vocabulary
from intaglio.runtime.speech.whisper_options import WhisperOptions
from intaglio.runtime.speech.windows import WindowOptions, recording_log_probs
from intaglio.targets import DEFAULT

AUDIO, LENGTHS = "audio", "lengths"
LOG_PROBS, OUTPUT_LENGTHS = "log_probs", "output_lengths"


@dataclass(frozen=True)
class SpeechOptions:
    """How recordings are cut and decoded."""

    beam: CtcBeamOptions | None = None  # None: greedy decoding
    language_model: str | Path | None = None  # an ARPA file of words, for a beam search
    windows: WindowOptions = field(default_factory=WindowOptions)
    max_seconds: float | None = None  # of a recording; longer ones are rejected
    whisper: WhisperOptions | None = None  # of an encoder-decoder; the others, but max_seconds, are of a CTC head

    def __post_init__(self) -> None:
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise UsageError(f"max seconds {self.max_seconds}: expected more than 0.")
        if self.language_model is not None and self.beam is None:
            raise UsageError("a language model needs a beam search. Add a beam, or leave the language model out.")


def speech_options(
    beam: int | None = None,
    language_model: str | Path | None = None,
    language_model_weight: float | None = None,
    word_bonus: float | None = None,
    max_seconds: float | None = None,
) -> SpeechOptions:
    """The speech options of the verb `run`. Raises `UsageError` for one that is out of range or has no effect."""
    given = {"width": beam, "alpha": language_model_weight, "beta": word_bonus}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if language_model is None:
        for option, value in (("--language-model-weight", language_model_weight), ("--word-bonus", word_bonus)):
            if value is not None:
                raise UsageError(
                    f"{option} {value} is for a language model. Add --language-model FILE, or leave it out."
                )
        if beam is None:
            return SpeechOptions(max_seconds=max_seconds)
    return SpeechOptions(CtcBeamOptions(**changed), language_model, max_seconds=max_seconds)


def with_whisper(options: SpeechOptions, whisper: WhisperOptions) -> SpeechOptions:
    """`options` with those of the verb `run` for an encoder-decoder, unless they are the defaults."""
    return options if whisper == WhisperOptions() else replace(options, whisper=whisper)


class SpeechRecognizer(EngineRunner):
    """An opened bundle that transcribes recordings. A context manager; used by one thread at a time."""

    def __init__(
        self,
        bundle: Bundle,
        target: str = DEFAULT,
        threads: int | None = None,
        spinning: bool = True,
        options: SpeechOptions | None = None,
    ):
        """`threads` and `spinning`: see `open_engine`. Raises `UsageError` for a bundle that takes no recordings."""
        self.audio = audio_of(bundle)
        self.options = options or SpeechOptions()
        self.vocabulary = read_vocabulary(bundle.path / VOCABULARY)
        _check_width(bundle, len(self.vocabulary))
        language_model = self.options.language_model
        self._language_model = NgramModel.open(language_model) if language_model is not None else None
        self._shortest = bundle.manifest.axes["samples"].minimum if "samples" in bundle.manifest.axes else 1
        self.engine = open_engine(bundle, target, threads, spinning)
        self.sample_rate, self.max_seconds = self.audio.sample_rate, self.options.max_seconds
        self.window_seconds = self.options.windows.seconds

    def transcribe(self, path: str | Path) -> Transcript:
        """Transcribe a recording of any length. Raises `UsageError` for an invalid or damaged file."""
        with AudioFile(path, self.audio.sample_rate, self.options.max_seconds) as file:
            samples = None if file.seconds is None else int(file.seconds * self.audio.sample_rate)
            return self.transcribe_samples(file.blocks(), samples)

    def transcribe_samples(self, blocks: Iterable[Samples], samples: int | None = None) -> Transcript:
        """Transcribe samples at the model's rate, which arrive in blocks; `samples`: how many, to show the progress."""
        transcription = self.begin(blocks, samples)
        for _ in transcription:
            pass
        return transcription.transcript()

    def begin(self, blocks: Iterable[Samples], samples: int | None = None) -> Transcription:
        """Begin to transcribe; several may be in progress, as each computes only when it is iterated."""
        windows = self.options.windows
        cutter = windows.cutter(self.audio.sample_rate, self.audio.frame_samples)
        counted = CountedBlocks(blocks)
        log_probs = recording_log_probs(self._scores, counted, cutter, windows.batch_size, samples)
        return Transcription(
            log_probs, self.decoder(), self.vocabulary, counted, self.audio.sample_rate, self.audio.frame_samples
        )

    def stream(self, options: StreamOptions | None = None) -> StreamingTranscriber:
        """A transcriber of samples that arrive; it uses this engine."""
        audio = self.audio
        return StreamingTranscriber(
            self._scores, self.decoder(), self.vocabulary, audio.sample_rate, audio.frame_samples, options
        )

    def decoder(self) -> Decoder:
        """A new decoder for one recording."""
        if self.options.beam is None:
            return GreedyDecoder(self.vocabulary.blank, len(self.vocabulary))
        return BeamDecoder(self.vocabulary, self.options.beam, self._language_model)

    def log_probs(self, audio: Samples, lengths: npt.NDArray[np.int64]) -> tuple[LogProbs, npt.NDArray[Any]]:
        """Run `audio` float32 [batch, samples] of `lengths` [batch]; log_probs [batch, frames, vocabulary], frames.

        Raises `EngineError` for outputs that do not match the manifest.
        """
        if (missing := self._shortest - audio.shape[1]) > 0:  # a click; the row's length stays
            audio = np.pad(audio, ((0, 0), (0, missing)))
        outputs = self.engine.run({AUDIO: audio, LENGTHS: lengths})
        log_probs, frames = outputs[LOG_PROBS], outputs[OUTPUT_LENGTHS]
        width = len(self.vocabulary)
        if log_probs.ndim != 3 or log_probs.shape[::2] != (len(audio), width) or frames.shape != (len(audio),):
            raise EngineError(
                f"got log_probs {list(log_probs.shape)} and output_lengths {list(frames.shape)}, expected "
                f"[{len(audio)}, frames, {width}] and [{len(audio)}]. Re-export the bundle."
            )
        return log_probs.astype(np.float32, copy=False), frames

    def _scores(self, audio: Samples, lengths: npt.NDArray[np.int64]) -> tuple[LogProbs, npt.NDArray[Any]]:
        """The scores to decode: `log_probs`, with the vocabulary's bias of the blank."""
        log_probs, frames = self.log_probs(audio, lengths)
        if self.vocabulary.blank_bias:
            log_probs = log_probs.copy()
            log_probs[..., self.vocabulary.blank] += self.vocabulary.blank_bias
        return log_probs, frames


def audio_of(bundle: Bundle) -> Audio:
    """The manifest's entry. Raises `UsageError` for a bundle that does not take recordings."""
    audio = bundle.manifest.audio
    if audio is None:
        raise UsageError(f"bundle {bundle.path}: does not take recordings. Use one of a speech recogniser.")
    if audio.features:
        raise UsageError(
            f"bundle {bundle.path}: takes features, which are computed elsewhere, and no recordings. "
            "Give arrays in an .npz file, or export it without --features."
        )
    return audio


def _check_width(bundle: Bundle, tokens: int) -> None:
    """Raise `BundleError` unless the graph's outputs match the vocabulary."""
    shapes = {spec.name: spec.shape for spec in bundle.manifest.outputs}
    if missing := [name for name in (LOG_PROBS, OUTPUT_LENGTHS) if name not in shapes]:
        raise BundleError(f"bundle {bundle.path}: no output {missing[0]}. Re-export the bundle.")
    widths = [length for length in shapes[LOG_PROBS][-1:] if isinstance(length, int)]
    if widths and widths[0] != tokens:
        raise BundleError(
            f"bundle {bundle.path}: log_probs of {widths[0]} tokens, {VOCABULARY} has {tokens}. Re-export the bundle."
        )
