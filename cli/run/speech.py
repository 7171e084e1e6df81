"""`intaglio run` of a speech recogniser: its options, and its output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from intaglio.cli.options.choices import PATH
from intaglio.cli.printing.printable import printable
from intaglio.cli.printing.results import notice, print_json
from intaglio.cli.run.files import files_given
from intaglio.cli.running.command import gathered, group, section
from intaglio.errors import UsageError

if TYPE_CHECKING:
    from intaglio.bundle.modality_record import ModalityRecord
    from intaglio.runtime.speech.recognizer import SpeechOptions
    from intaglio.runtime.speech.streaming import StreamUpdate


@dataclass(frozen=True)
class SpeechFlags:
    """The speech options on the command line; None or False for those not given."""

    beam: int | None
    language_model: Path | None
    language_model_weight: float | None
    word_bonus: float | None
    max_seconds: float | None
    stream: bool
    language: str | None
    task: str | None
    timestamps: bool
    fallback: bool
    prompt: str | None
    condition_on_prev_tokens: bool | None
    word_timestamps: bool

    def refuse(self, bundle: Path) -> None:
        """Raise `UsageError` if one was given for a bundle that takes something else."""
        given = [each.name for each in fields(self) if getattr(self, each.name) not in (None, each.name == "fallback")]
        if given:
            option = f"--{given[0].replace('_', '-')}".replace("--fallback", "--no-fallback")
            raise UsageError(f"{option} is for speech recognisers, and {bundle} is none. Leave it out.")

    def options(self, with_times: bool = False) -> SpeechOptions:
        """The options of the recogniser, `with_times` of an encoder-decoder's segments.

        Raises `UsageError` for values out of range.
        """
        from intaglio.runtime.speech.recognizer import speech_options, with_whisper
        from intaglio.runtime.speech.whisper_options import GREEDY, Fallback, WhisperOptions

        options = speech_options(
            self.beam, self.language_model, self.language_model_weight, self.word_bonus, self.max_seconds
        )
        fallback = Fallback() if self.fallback else GREEDY
        given = self.language, self.task, self.timestamps or with_times, fallback, self.prompt or ""
        return with_whisper(options, WhisperOptions(*given, self.condition_on_prev_tokens, self.word_timestamps))


SPEECH = "Speech recognisers"
beam_options = group(
    SPEECH,
    click.option("--beam", type=int, help="Width of the beam search; without it, decoding is greedy."),
    click.option(
        "--language-model",
        type=PATH,
        help="ARPA file of word n-grams for the beam search (width 100, unless --beam is given).",
    ),
    click.option(
        "--language-model-weight", type=float, help="Weight of the language model's log-probabilities.  [default: 0.5]"
    ),
    click.option(
        "--word-bonus",
        type=float,
        help="Score of each word with a language model; higher for more and shorter words.  [default: 1.5]",
    ),
)


# The options of speech, which a command gets as `speech`.
speech_flags = gathered(
    "speech",
    SpeechFlags,
    section(SPEECH),
    beam_options,
    click.option("--max-seconds", type=float, help="Reject recordings longer than this."),
    click.option("--stream", is_flag=True, help="Transcribe raw 16-bit samples from standard input while they arrive."),
    click.option("--language", help="Whisper: code of the spoken language, such as en.  [default: detected]"),
    click.option("--task", help="Whisper: transcribe, or translate to English.  [default: the model's]"),
    click.option("--timestamps", is_flag=True, help="Whisper: show the time of each segment."),
    click.option("--word-timestamps", is_flag=True, help="Whisper: show the time of each word."),
    click.option(
        "--fallback/--no-fallback",
        show_default=False,
        default=True,
        help="Whisper: write a window again where its text repeats itself or is a guess, at other temperatures.",
    ),
    click.option("--prompt", help="Whisper: text before the recording, whose names and spellings it follows."),
    click.option(
        "--condition-on-prev-tokens/--no-condition-on-prev-tokens",
        default=None,
        help="Whisper: write each window after the text of earlier ones.  [default: the model's]",
    ),
)


def transcribe(
    bundle: Path,
    record: ModalityRecord,
    recordings: tuple[str, ...],
    file: Path | None,
    target: str,
    threads: int | None,
    flags: SpeechFlags,
    as_json: bool,
) -> None:
    """Transcribe recordings, or the audio on standard input, by a bundle whose manifest has this record."""
    from intaglio.bundle.bundle import Bundle, Transcriber
    from intaglio.runtime.speech.recordings.run_recordings import TranscribedSegments, run_recordings

    if flags.stream:
        if isinstance(record, Transcriber):
            raise UsageError(
                f"--stream: {bundle} is an encoder-decoder, which reads windows of many seconds at once. Give it a "
                "recording, or stream to a recogniser with a CTC head."
            )
        if recordings or file:
            raise UsageError("--stream reads standard input. Leave the recordings and --input out.")
        _stream(bundle, target, threads, flags.options(), as_json)
        return
    paths = files_given(record, recordings, file)
    opened = Bundle.open(bundle)
    with_times = as_json and isinstance(record, Transcriber)
    for result in run_recordings(opened, paths, target, flags.options(with_times), threads):
        if as_json:
            print_json(result)
            continue
        name = f"{result.text}: " if len(paths) > 1 else ""
        if (flags.timestamps or flags.word_timestamps) and isinstance(result, TranscribedSegments):
            for segment in result.segments:
                for part in (segment.words or ()) if flags.word_timestamps else [segment]:
                    times = f"[{part.start:7.2f} to {part.end:7.2f}]"
                    click.echo(printable(f"{name}{times} {part.text.strip()}"))
        else:
            click.echo(printable(f"{name}{result.transcript}"))


def _stream(bundle: Path, target: str, threads: int | None, options: SpeechOptions, as_json: bool) -> None:
    """Transcribe the audio on standard input; print words as they become final."""
    from intaglio.bundle.bundle import Bundle
    from intaglio.runtime.speech.audio_file import read_pcm
    from intaglio.runtime.speech.recognizer import SpeechRecognizer

    with SpeechRecognizer(Bundle.open(bundle), target, threads, options=options) as recognizer:
        stream = recognizer.stream()
        rate = recognizer.audio.sample_rate
        notice(f"listening: {rate} samples per second, latency {stream.latency:.2f} s")
        updates = (stream.feed(block) for block in read_pcm(sys.stdin.buffer, rate))
        for update in _then(updates, stream.flush):
            for word in update.words:
                if as_json:
                    print_json(word)
                else:
                    click.echo(printable(word.text) + " ", nl=False)
        if not as_json:
            click.echo()


def _then(updates: Iterator[StreamUpdate], last: Callable[[], StreamUpdate]) -> Iterator[StreamUpdate]:
    """The updates, and one more at the end, also if the input ends within a sample."""
    broken: UsageError | None = None
    try:
        yield from updates
    except UsageError as error:
        broken = error
    yield last()
    if broken is not None:
        raise broken
