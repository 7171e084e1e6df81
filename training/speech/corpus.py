"""A corpus of synthesised speech: choosing the texts, synthesising them once, and reading them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.display.progress import track
from intaglio.errors import UsageError
from intaglio.files.atomic import atomic_directory
from intaglio.files.hashes import cache_directory
from intaglio.files.input_files import decode, read_bytes, text_lines
from intaglio.processes.threads import in_parallel, usable_threads
from intaglio.training.speech.sentences import KINDS, Kind, Part, part_of, sentences
from intaglio.training.speech.synthesis import SAMPLE_RATE, Synthesiser
from intaglio.training.speech.voices import PITCH, VOICES, WORDS_PER_MINUTE

Samples = npt.NDArray[np.float32]

INDEX, SAMPLES = "utterances.jsonl", "samples.i16"  # the files of a corpus
FORMAT = 1  # part of a corpus's key: increased when the same plan is spoken or stored in another way
SCALE = 2**15  # of a sample of 16 bits
SHARES: dict[Kind, float] = {"digits": 0.1, "numbers": 0.06, "commands": 0.14}  # of the utterances; the rest is prose
AT_A_TIME = 256  # utterances spoken before they are written


class Utterance(msgspec.Struct, frozen=True):
    """A sentence, who speaks it and how."""

    part: Part
    kind: Kind
    text: str  # lower-case words separated by single spaces
    voice: str  # as espeak-ng takes it, "en-us+f3"
    words_per_minute: int
    pitch: int  # 0 to 99


class Spoken(Utterance, frozen=True):
    """An utterance in a corpus."""

    start: int  # its first sample in the file of samples
    samples: int  # at 16 kHz


@dataclass(frozen=True)
class CorpusOptions:
    """How many utterances are spoken. About 1,450 make an hour."""

    train: int = 28000
    validation: int = 400
    test: int = 400
    seed: int = 0

    def counts(self) -> dict[Part, int]:
        """The number of utterances of each part."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def __post_init__(self) -> None:
        for part, count in self.counts().items():
            if count < len(KINDS):
                raise UsageError(f"{part} utterances {count}: expected at least {len(KINDS)}.")


class Corpus:
    """Synthesised speech in a directory: `samples.i16` (int16, little endian, mono, 16 kHz) and its index.

    The samples are mapped, not read: a corpus of many hours takes no memory until it is used.
    """

    def __init__(self, path: Path):
        """Raises `UsageError` for a directory that is not a corpus, or a damaged one."""
        self.path = path
        try:
            lines = text_lines(decode(read_bytes(path / INDEX)))
            self.utterances = [msgspec.json.decode(line, type=Spoken) for line in lines]
            self._samples: npt.NDArray[np.int16] = np.memmap(path / SAMPLES, "<i2", "r")
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise UsageError(
                f"corpus {path}: cannot be read ({error}). Delete it; it will be synthesised again."
            ) from error
        expected = self.utterances[-1].start + self.utterances[-1].samples if self.utterances else 0
        if len(self._samples) != expected:
            raise UsageError(
                f"corpus {path}: {SAMPLES} has {len(self._samples)} samples, expected {expected}. "
                "Delete it; it will be synthesised again."
            )

    def part(self, part: Part) -> list[Spoken]:
        """The utterances for training, validation or the test."""
        return [each for each in self.utterances if each.part == part]

    def audio(self, utterance: Spoken) -> Samples:
        """The samples of an utterance, float32 [samples], -1 to 1, 16 kHz."""
        taken = self._samples[utterance.start : utterance.start + utterance.samples]
        return taken.astype(np.float32) / np.float32(SCALE)

    def hours(self, part: Part) -> float:
        """How long the utterances of a part are together."""
        return sum(each.samples for each in self.part(part)) / SAMPLE_RATE / 3600

    def unknown_words(self, part: Part) -> float:
        """The share of the words of a part that no utterance for training has."""
        known = {word for each in self.part("train") for word in each.text.split()}
        words = [word for each in self.part(part) for word in each.text.split()]
        return sum(word not in known for word in words) / max(1, len(words))


def plan(options: CorpusOptions) -> list[Utterance]:
    """The texts to speak: the same for the same options. Parts have neither sentences nor voices in common.

    A part does not depend on the sizes of the others, so that two trainings can be compared.
    """
    return [
        utterance
        for number, (part, count) in enumerate(options.counts().items())
        for utterance in _plan_part(part, count, np.random.default_rng([options.seed, number]))
    ]


def synthesise(options: CorpusOptions, folder: Path | None = None, threads: int | None = None) -> Corpus:
    """The corpus of `options`, spoken by espeak-ng the first time and kept in `folder`, by default the cache.

    `threads`: how many espeak-ng speak at the same time. Raises `UsageError` without espeak-ng.
    """
    synthesiser = Synthesiser()
    utterances = plan(options)
    key = msgspec.json.encode([FORMAT, SAMPLE_RATE, synthesiser.version, utterances])
    folder = folder or cache_directory() / "speech"
    path = folder / hashlib.sha256(key).hexdigest()[:16]
    if not path.exists():
        synthesiser.check({each.voice for each in utterances})
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_directory(path) as temporary:
            _speak(utterances, synthesiser, temporary, threads or usable_threads())
    return Corpus(path)


def _plan_part(part: Part, count: int, random: np.random.Generator) -> list[Utterance]:
    """`count` utterances of a part, their kinds as `SHARES` says; a sentence repeats once all were spoken."""
    texts: list[tuple[Kind, str]] = []
    wanted = {kind: max(1, round(count * share)) for kind, share in SHARES.items()}
    for kind in KINDS:
        found = [sentence for sentence in sentences(kind) if part_of(sentence) == part]
        number = wanted[kind] if kind in wanted else count - sum(wanted.values())
        rounds = [random.permutation(found) for _ in range(-(-number // len(found)))]
        texts += [(kind, str(text)) for text in np.concatenate(rounds)[:number]]
    order = random.permutation(len(texts))
    return [
        Utterance(
            part,
            kind,
            text,
            voice=VOICES[part].draw(random),
            words_per_minute=int(random.integers(*WORDS_PER_MINUTE, endpoint=True)),
            pitch=int(random.integers(*PITCH, endpoint=True)),
        )
        for kind, text in (texts[index] for index in order)
    ]


def _speak(utterances: Sequence[Utterance], synthesiser: Synthesiser, directory: Path, threads: int) -> None:
    """Write the files of a corpus."""
    start = 0
    with (directory / SAMPLES).open("wb") as samples, (directory / INDEX).open("wb") as index:
        for first in track(range(0, len(utterances), AT_A_TIME), "espeak-ng is speaking"):
            batch = utterances[first : first + AT_A_TIME]
            for each, audio in zip(batch, in_parallel(synthesiser.speak, batch, threads), strict=True):
                samples.write(to_int16(audio).tobytes())
                spoken = Spoken(**msgspec.structs.asdict(each), start=start, samples=len(audio))
                index.write(msgspec.json.encode(spoken) + b"\n")
                start += len(audio)


def to_int16(audio: Samples) -> npt.NDArray[np.int16]:
    """Samples of -1 to 1 as 16 bits, rounded; what lies beyond is clipped."""
    return np.clip(np.round(audio * SCALE), -SCALE, SCALE - 1).astype("<i2")
