"""Make a corpus of synthesised English speech, on which `intaglio train speech` trains a recogniser.

    python examples/make_speech_corpus.py -o corpus

espeak-ng (a program of its own: apt install espeak-ng) speaks sentences of Intaglio's and of Python's documentation,
strings of digits, numbers and commands. Whole voices, an accent, and sentences are held out for validation and for the
test; these do not depend on the number of utterances to train on, of which 1,450 make an hour. Recordings of people in
installed packages, or in packages unpacked into a folder (--recordings), are added to test on.

The folder has recordings (FLAC, 16 kHz) and utterances.jsonl, the list of their texts, parts, kinds and voices.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import soundfile
from speech_corpus.planning import CorpusOptions, Utterance, plan
from speech_corpus.recordings import found, read
from speech_corpus.synthesis import SAMPLE_RATE, Synthesiser

from intaglio import IntaglioError, atomic_directory, check_output_directory

LIST = "utterances.jsonl"
AT_A_TIME = 256  # utterances that are spoken before they are written
SCALE = 2**15  # of a sample of 16 bits

Samples = npt.NDArray[np.float32]  # -1 to 1, at `SAMPLE_RATE`


@dataclass(frozen=True)
class Made:
    """What was made."""

    utterances: int
    hours: float  # of the train part
    unknown_words: float  # share of the words of the test part that no utterance for training has


def make(
    output: Path,
    options: CorpusOptions,
    recordings: Sequence[Path] = (),
    threads: int | None = None,
    force: bool = False,
) -> Made:
    """Make the corpus `output`. Raises `UsageError`, `EngineError` or `StorageError`; nothing is left there then."""
    check_output_directory(output, force, LIST)
    synthesiser, utterances = Synthesiser(), plan(options)
    synthesiser.check({each.voice for each in utterances})
    samples = 0
    with atomic_directory(output, force, LIST) as folder, (folder / LIST).open("w", encoding="utf-8") as lines:
        (folder / "recordings").mkdir()
        for number, (audio, text, labels) in enumerate(contents(utterances, synthesiser, recordings, threads)):
            name = f"recordings/{number:06}.flac"
            soundfile.write(folder / name, to_int16(audio), SAMPLE_RATE, format="FLAC", subtype="PCM_16")
            lines.write(json.dumps({"audio_filepath": name, "text": text, **labels}) + "\n")
            samples += len(audio) if labels["part"] == "train" else 0
    return Made(len(utterances), samples / SAMPLE_RATE / 3600, unknown_words(utterances))


def contents(
    utterances: Sequence[Utterance], synthesiser: Synthesiser, folders: Sequence[Path], threads: int | None
) -> Iterator[tuple[Samples, str, dict[str, str]]]:
    """Samples, text and labels of all recordings, in order: `utterances`, as each is spoken, then those of people."""
    with ThreadPoolExecutor(threads) as pool, click.progressbar(length=len(utterances), file=sys.stderr) as bar:
        for first in range(0, len(utterances), AT_A_TIME):
            batch = utterances[first : first + AT_A_TIME]
            for each, audio in zip(batch, pool.map(synthesiser.speak, batch), strict=True):
                yield audio, each.text, {"part": each.part, "kind": each.kind, "voice": each.voice}
            bar.update(len(batch))
    for recordings, place in found(folders):
        if recordings.name != "librivox":  # Intaglio has these
            for recording in read(recordings, place):
                yield recording.samples, recording.text, {"part": "recordings", "kind": recording.name}


def unknown_words(utterances: Sequence[Utterance]) -> float:
    """The share of the words of the test part that no utterance for training has."""
    known = {word for each in utterances if each.part == "train" for word in each.text.split()}
    words = [word for each in utterances if each.part == "test" for word in each.text.split()]
    return sum(word not in known for word in words) / len(words)


def to_int16(audio: Samples) -> npt.NDArray[np.int16]:
    """Samples of -1 to 1 as 16 bits, rounded; what lies beyond is clipped."""
    return np.clip(np.round(audio * SCALE), -SCALE, SCALE - 1).astype("<i2")


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to make.")
@click.option("--utterances", default=CorpusOptions.train, show_default=True, help="Utterances to train on.")
@click.option(
    "--held-out", default=CorpusOptions.test, show_default=True, help="For validation; same number for testing."
)
@click.option("--seed", default=0, show_default=True, help="Random seed of sentences and voices.")
@click.option(
    "--recordings",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Folder where packages with real recordings were unpacked (dpkg -x), to test on. Repeatable.",
)
@click.option("--threads", type=int, help="Number of threads.  [default: a few per processor]")
@click.option("--force", is_flag=True, help="Replace the folder if it is a corpus.")
def command(
    output: Path, utterances: int, held_out: int, seed: int, recordings: tuple[Path, ...], threads: int, force: bool
) -> None:
    """Make the corpus, and print its size."""
    try:
        made = make(output, CorpusOptions(utterances, held_out, held_out, seed), recordings, threads, force)
    except IntaglioError as error:
        raise click.UsageError(str(error)) from error
    click.echo(
        f"{output}: {made.utterances:,} utterances, {made.hours:.1f} hours to train on; "
        f"{made.unknown_words:.1%} of the words of the test are not among them"
    )


if __name__ == "__main__":
    command()
