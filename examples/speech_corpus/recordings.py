"""Real recordings with their text, which packages of Debian and PyPI carry: to test on, never to train on.

`SETS` lists them. A set is used if its package is installed, or unpacked into a folder that is named. To add one, add a
line and, if its texts are stored in another way, a function.
"""

from __future__ import annotations

import gzip
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from intaglio import UsageError
from intaglio.training import spoken
from speech_corpus.synthesis import SAMPLE_RATE

Listed = Iterator[tuple[Path, str]]  # audio files and their reference transcripts


class Recording(NamedTuple):
    """A real recording."""

    samples: npt.NDArray[np.float32]  # [samples], -1 to 1, 16 kHz
    text: str  # lower-case words separated by single spaces
    name: str  # of its set
    path: Path


@dataclass(frozen=True)
class RecordingSet:
    """Recordings that come with a package."""

    name: str
    package: str  # and the versions that were read
    terms: str  # its licence
    folder: str  # below the root, or below the folder of Python's packages
    files: Callable[[Path], Listed]  # the folder to its files and texts


def read(recordings: RecordingSet, place: Path) -> Iterator[Recording]:
    """The recordings of a set in `place`, in a fixed order; those without words are left out. Raises `UsageError`."""
    for path, text in recordings.files(place / recordings.folder):
        if path.is_file() and spoken(text):
            yield Recording(_samples(path), spoken(text), recordings.name, path)


def found(folders: Sequence[Path] = ()) -> Iterator[tuple[RecordingSet, Path]]:
    """The sets that are there, each with its place: one of `folders`, the root, or that of Python's packages.

    `folders`: where packages were unpacked, such as the DIR of `dpkg -x PACKAGE DIR`.
    """
    places = (*folders, Path("/"), Path(sysconfig.get_paths()["purelib"]))
    for recordings in SETS:
        for place in places:
            if next(recordings.files(place / recordings.folder), None):
                yield recordings, place
                break


def paired(folder: Path) -> Listed:
    """Every NAME.wav, .flac or .ogg that has its text in NAME.txt beside it."""
    for path in sorted(folder.glob("*.txt")):
        for suffix in (".wav", ".flac", ".ogg"):
            if (sound := path.with_suffix(suffix)).is_file():
                yield sound, path.read_text(encoding="utf-8")


def _sphinx(folder: Path) -> Listed:
    """CMU Sphinx' transcripts: lines of "<s> words </s> (NAME)"."""
    for path in sorted(folder.glob("*transcription")):
        for text, name in re.findall(r"<s>(.*?)</s>\s*\((.*)\)", path.read_text(encoding="utf-8")):
            yield folder / f"{name}.wav", text


def _sphinx_phrases(folder: Path) -> Listed:
    """Recordings without transcripts in the package: the texts come from their grammars, or were transcribed by ear."""
    yield from (
        (folder / name, text)
        for name, text in (
            ("goforward.raw", "go forward ten meters"),
            ("numbers.raw", "thirty three four six ninety two"),
            ("something.raw", "go somewhere and do something"),
            ("tidigits/dhd.2934z.raw", "two nine three four zero"),
        )
        if (folder / name).is_file()
    )


def _asterisk(folder: Path, wanted: str) -> Listed:
    """The prompts of a telephone exchange whose names match `wanted`. Their texts are a package of their own."""
    texts = folder.parents[2] / "doc" / "asterisk-core-sounds-en" / "core-sounds-en.txt.gz"
    if not texts.is_file():
        return
    for line in gzip.decompress(texts.read_bytes()).decode().splitlines():
        name, _, text = line.partition(":")
        # Stage directions, keys such as "*", and abbreviations such as "PBX", of which the spoken words are not known.
        if re.fullmatch(wanted, name) and not re.search(r"[][()<>*#]|[A-Z]{2}|\d[A-Z]", text):
            text = re.sub(r"\w+", lambda word: _MISSPELLED.get(word[0].lower(), word[0]), text)
            yield folder / f"{name}.wav", text


_MISSPELLED = {
    "fourtieth": "fortieth",
    "indentified": "identified",
    "represenatives": "representatives",
    "umute": "unmute",
    "witheld": "withheld",
}


def _asterisk_digits(folder: Path) -> Listed:
    return _asterisk(folder, r"digits/(\d+|hundred|thousand|million)")


def _asterisk_phrases(folder: Path) -> Listed:
    return _asterisk(folder, r"(?!spy-|vm-Cust)[^/]+|(dictate|followme)/.*|digits/(day|mon|h)-.*")


SPHINX = "usr/share/pocketsphinx/test/data"
ASTERISK = "usr/share/asterisk/sounds/en_US_f_Allison"
SPHINX_PACKAGE = "Debian pocketsphinx-testdata 0.8+5prealpha+1-15"
ASTERISK_PACKAGES = "Debian asterisk-core-sounds-en-wav and asterisk-core-sounds-en 1.6.1-1"

SETS = (
    RecordingSet("librivox", SPHINX_PACKAGE, "BSD-2-Clause", f"{SPHINX}/librivox", _sphinx),
    RecordingSet("cards", SPHINX_PACKAGE, "BSD-2-Clause", f"{SPHINX}/cards", _sphinx),
    RecordingSet("sphinx-phrases", SPHINX_PACKAGE, "BSD-2-Clause", SPHINX, _sphinx_phrases),
    RecordingSet("asterisk-digits", ASTERISK_PACKAGES, "CC-BY-SA-3.0", ASTERISK, _asterisk_digits),
    RecordingSet("asterisk-phrases", ASTERISK_PACKAGES, "CC-BY-SA-3.0", ASTERISK, _asterisk_phrases),
    RecordingSet("audioeval", "PyPI pytest-audioeval 0.1.3", "MIT", "pytest_audioeval/samples/audio/en", paired),
)


def _samples(path: Path) -> npt.NDArray[np.float32]:
    """The samples of a file, channels averaged, at 16 kHz; a file .raw is int16 at 16 kHz already."""
    if path.suffix == ".raw":
        return np.fromfile(path, "<i2").astype(np.float32) / np.float32(2**15)
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, soundfile.LibsndfileError) as error:
        raise UsageError(f"recording {path}: cannot be read ({error}). Install its package again.") from error
    resampled: npt.NDArray[np.float32] = soxr.resample(samples.mean(axis=1), rate, SAMPLE_RATE)
    return resampled
