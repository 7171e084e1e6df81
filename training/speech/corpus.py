"""A corpus to train a speech recogniser on: a list of recordings, each with its text and its part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError
from intaglio.runtime.speech.audio_file import AudioFile, read_audio
from intaglio.runtime.speech.recording_list import recordings_of
from intaglio.samples.speech_samples import SAMPLE_RATE
from intaglio.training.speech.spoken_words import spoken

Part = Literal["train", "validation", "test", "recordings"]
PARTS: tuple[Part, ...] = get_args(Part)
NEEDED = PARTS[:3]  # recordings of people, to test on, may be missing

LIST = "utterances.jsonl"  # in a folder


class Utterance(NamedTuple):
    """A recording in a corpus."""

    path: Path
    part: Part
    kind: str  # of the sentence; of a recording to test on, the name of its set
    voice: str
    text: str  # lower-case words separated by single spaces
    seconds: float


class Corpus:
    """Recordings that a list names, in its order. They are read when they are used, however many hours they are."""

    def __init__(self, path: str | Path):
        """`path`: a list that `recordings_of` reads, or a folder with one that is called `LIST`.

        Lines state the "part", by default "train", and may state "kind" and "voice", by which errors are grouped.
        Raises `UsageError` for a list or a recording that cannot be read, a text without words, and a missing part.
        """
        self._list = Path(path) / LIST if Path(path).is_dir() else Path(path)
        self.utterances = list(self._read())
        for part in NEEDED:
            if not self.part(part):
                raise UsageError(f'corpus {self._list}: no line has "part": "{part}". Mark some recordings with it.')

    def part(self, part: Part) -> list[Utterance]:
        """The utterances for training, for validation or for the test, or the recordings of people."""
        return [each for each in self.utterances if each.part == part]

    def audio(self, utterance: Utterance) -> npt.NDArray[np.float32]:
        """The samples of an utterance, float32 [samples], -1 to 1, 16 kHz. Raises `UsageError` for damaged ones."""
        return read_audio(utterance.path, SAMPLE_RATE)

    def hours(self, part: Part) -> float:
        """How long the utterances of a part are together."""
        return sum(each.seconds for each in self.part(part)) / 3600

    def _read(self) -> Iterator[Utterance]:
        for number, (path, text, name, kind, voice) in enumerate(recordings_of(self._list, "corpus"), 1):
            line = f"corpus {self._list}, recording {number}"
            part = next((each for each in PARTS if each == name), None)
            if part is None:
                raise UsageError(f"{line}: part {name!r}, expected one of {', '.join(PARTS)}.")
            if not (words := spoken(text or "")):
                raise UsageError(f"{line}: text {text!r} has no words. Write down the words of {path.name}.")
            with AudioFile(path, SAMPLE_RATE) as file:
                yield Utterance(path, part, kind, voice, words, file.seconds or 0.0)
