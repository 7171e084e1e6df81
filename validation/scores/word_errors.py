"""Word and character error rates of a speech recogniser, on recordings whose texts are known.

Both texts are normalised: lower case, and every character that is no letter, digit or apostrophe is a space. So
"Don't stop -- it's 5 o'clock!" is "don't stop it's 5 o'clock". Numbers are not spelled out: write the texts as the
model does. Rates are over the whole list, in percent of its words, as jiwer counts them; they can exceed 100.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step, track
from intaglio.errors import UsageError
from intaglio.executors.executor import INLINE, Executor
from intaglio.executors.kept import kept
from intaglio.executors.shared_files import SharedBundle, SharedPath
from intaglio.extras import load
from intaglio.runtime.speech.audio_file import AudioFile
from intaglio.runtime.speech.recognizer import SpeechOptions
from intaglio.runtime.speech.recording_list import LISTS, Listed, recordings_of
from intaglio.runtime.speech.recordings.opening import Recognizer, open_recognizer
from intaglio.runtime.speech.transcript import real_time_factor
from intaglio.targets import DEFAULT
from intaglio.validation.comparison.compared_models import BASELINE

OPTION = "--wer"
WORST = 5  # recordings that are listed
MEASURES = ("wer", "cer")  # in percent
RISES = ("wer_rise", "cer_rise")  # in points: percent of this model less percent of the other
APOSTROPHES = re.compile("[\N{RIGHT SINGLE QUOTATION MARK}\N{MODIFIER LETTER APOSTROPHE}]")


class RecordingErrors(msgspec.Struct):
    """One recording: both texts, normalised, and their difference."""

    recording: str
    text: str  # of the list
    transcript: str
    words: int  # of the list's text
    errors: int  # words substituted, deleted and inserted


class Recognised(msgspec.Struct):
    """The errors of one model."""

    wer: float  # percent
    cer: float  # percent, of characters, spaces included
    substitutions: int  # words
    deletions: int
    insertions: int
    real_time_factor: float | None  # seconds of work per second of audio; None for work that was divided
    worst: list[RecordingErrors]  # with the most errors, at most `WORST`


class WordErrors(msgspec.Struct):
    """The result."""

    recordings: int
    seconds: float  # of audio
    words: int  # of the list's texts
    characters: int
    actual: Recognised
    expected: Recognised | None  # the other model

    @property
    def measured(self) -> dict[str, float]:
        """The results of `MEASURES`, and with another model of `RISES`, by name."""
        ours, theirs = self.actual, self.expected
        found = {"wer": ours.wer, "cer": ours.cer}
        if theirs is not None:
            found |= {"wer_rise": ours.wer - theirs.wer, "cer_rise": ours.cer - theirs.cer}
        return found


def normalised(text: str) -> str:
    """Return `text` in lower case, with apostrophes, without punctuation and symbols; words have one space between."""
    lower = APOSTROPHES.sub("'", unicodedata.normalize("NFC", text).lower())
    # L, M, N: letters, marks on them, digits
    kept = [each if each == "'" or unicodedata.category(each)[0] in "LMN" else " " for each in lower]
    return " ".join("".join(kept).split())


def word_errors(
    bundle: Bundle,
    path: Path,
    against: Bundle | None = None,
    target: str = DEFAULT,
    speech: SpeechOptions | None = None,
    executor: Executor = INLINE,
) -> WordErrors:
    """Transcribe the recordings of the list at `path` with `bundle` on `target`, and with `against` on "ort-cpu".

    The list is a .tsv or .jsonl file, see `recording_list`. Both models decode by `speech`, by default greedily.
    `executor` transcribes the recordings, with one model at a time. Raises `UsageError` for a list without texts, for
    recordings that cannot be read, and for a bundle that takes none; `MissingExtraError`.
    """
    load("jiwer")  # before the work
    listed = _listed(path)
    texts = [normalised(each.text or "") for each in listed]
    words = sum(len(text.split()) for text in texts)
    if not words:
        raise UsageError(f"{OPTION} {path}: its texts have no words. Write the transcript after each recording.")
    actual, seconds = _recognised(bundle, target, speech, listed, texts, executor)
    expected = None
    if against is not None:
        expected, _ = _recognised(against, BASELINE, speech, listed, texts, executor)
    return WordErrors(len(listed), round(seconds, 3), words, sum(map(len, texts)), actual, expected)


def _listed(path: Path) -> list[Listed]:
    if path.suffix not in LISTS:
        raise UsageError(
            f"{OPTION} {path}: expected a list, .tsv (recording, tab, text in a line) or .jsonl. Write one."
        )
    listed = recordings_of(path, OPTION)
    for number, each in enumerate(listed, 1):
        if each.text is None:
            raise UsageError(f"{OPTION} {path}: recording {number}, {each.path.name}, has no text. Add its transcript.")
    return listed


def _recognised(
    bundle: Bundle,
    target: str,
    speech: SpeechOptions | None,
    listed: Sequence[Listed],
    texts: Sequence[str],
    executor: Executor,
) -> tuple[Recognised, float]:
    """The errors of one model, and the seconds of audio."""
    speech, doing, work = speech or SpeechOptions(), f"transcribing with {bundle.path.name}", None
    if executor is INLINE:
        with step("opening the model"):
            recogniser = open_recognizer(bundle, target, options=speech)
        with recogniser:
            began = time.perf_counter()
            hypotheses = [_transcribed(recogniser, each.path) for each in track(listed, doing, len(listed))]
            work = time.perf_counter() - began
    else:
        model = None if speech.language_model is None else SharedPath.of(speech.language_model)
        shared = SharedBundle.of(bundle), target, replace(speech, language_model=None), model
        tasks = ((*shared, SharedPath.of(each.path)) for each in listed)
        hypotheses = [*track(executor.map(transcribe_in_worker, tasks), doing, len(listed))]
    seconds = sum((each.seconds for each in hypotheses), 0.0)
    factor = None if work is None else real_time_factor(work, seconds)
    return _errors(listed, texts, [each.text for each in hypotheses], factor), seconds


class Hypothesis(NamedTuple):
    """What was recognised in a recording."""

    text: str  # normalised
    seconds: float


def _transcribed(recogniser: Recognizer, path: Path) -> Hypothesis:
    with AudioFile(path, recogniser.sample_rate, recogniser.max_seconds) as file:
        transcript = recogniser.transcribe_samples(file.blocks())
    return Hypothesis(normalised(transcript.text), transcript.seconds)


def transcribe_in_worker(
    bundle: SharedBundle, target: str, speech: SpeechOptions, model: SharedPath | None, recording: SharedPath
) -> Hypothesis:
    """Transcribe `recording` by the recogniser of a worker, which stays open; `model`: the language model's file."""
    return _transcribed(kept(_open_shared, bundle, target, speech, model), recording.here())


@contextmanager
def _open_shared(
    bundle: SharedBundle, target: str, speech: SpeechOptions, model: SharedPath | None
) -> Iterator[Recognizer]:
    if model is not None:
        speech = replace(speech, language_model=model.here())
    with open_recognizer(bundle.open(), target, options=speech) as recogniser:
        yield recogniser


def _errors(listed: Sequence[Listed], texts: Sequence[str], found: Sequence[str], factor: float | None) -> Recognised:
    jiwer = load("jiwer")
    substitutions = deletions = insertions = characters = 0
    recordings = []
    for each, text, transcript in zip(listed, texts, found, strict=True):
        words = jiwer.process_words(text, transcript)
        letters = jiwer.process_characters(text, transcript)
        substitutions += words.substitutions
        deletions += words.deletions
        insertions += words.insertions
        characters += letters.substitutions + letters.deletions + letters.insertions
        errors = words.substitutions + words.deletions + words.insertions
        recordings.append(RecordingErrors(str(each.path), text, transcript, len(text.split()), errors))
    recordings.sort(key=lambda each: -each.errors)
    total = sum(each.words for each in recordings)
    return Recognised(
        wer=100 * (substitutions + deletions + insertions) / total,
        cer=100 * characters / sum(map(len, texts)),
        substitutions=substitutions,
        deletions=deletions,
        insertions=insertions,
        real_time_factor=None if factor is None else round(factor, 5),
        worst=[each for each in recordings[:WORST] if each.errors],
    )
