"""What do compression and decoding do to the word errors of a trained recogniser?

    python -m benchmarks.speech.recipes CHECKPOINT CORPUS [--threads 2] [--json]

For a checkpoint of `intaglio train speech`: the test part of its corpus (sentences and voices that were held out) is
transcribed in ONNX Runtime by the exported bundle and by what each recipe makes of it, greedily; and by the exported
bundle with a beam search and a 3-gram model of the sentences that were trained on. `int8-qdq` is calibrated on
utterances of the training part. The target is the word error rate of int8-qdq, at most a point above the exported one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import soundfile

import intaglio
from benchmarks.speech.speed import processor
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import track
from intaglio.graph_passes import compress
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.speech.ngram_estimate import estimate
from intaglio.runtime.speech.recognizer import SpeechOptions, SpeechRecognizer, speech_options
from intaglio.samples.speech_samples import SAMPLE_RATE
from intaglio.training.speech.corpus import Corpus, Utterance
from intaglio.training.speech.word_errors import word_errors

TARGET = 1.0  # points of WER that int8-qdq may add
RECIPES = ("fold", "float16", "int8-weights", "int8-qdq")
CALIBRATED = 64  # utterances
BEAM = 50


class Row(msgspec.Struct):
    """One bundle and one way to decode."""

    name: str
    wer: float  # percent
    megabytes: float  # of the model's file and its weights
    real_time_factor: float


class Result(msgspec.Struct):
    """All of them, on this machine."""

    processor: str
    threads: int
    utterances: int
    words: int
    rows: list[Row]


def transcribed(
    bundle: Path,
    name: str,
    corpus: Corpus,
    spoken: Sequence[Utterance],
    threads: int,
    options: SpeechOptions | None = None,
) -> Row:
    """Transcribe the utterances, one at a time."""
    transcripts = []
    with SpeechRecognizer(Bundle.open(bundle), threads=threads, options=options) as recognizer:
        began = time.perf_counter()
        for utterance in track(spoken, name, len(spoken)):
            transcripts.append(recognizer.transcribe_samples([corpus.audio(utterance)]).text)
        seconds = time.perf_counter() - began
    errors = word_errors([each.text for each in spoken], transcripts)
    size = sum(path.stat().st_size for path in bundle.glob("model.onnx*")) / 1e6
    audio = sum(each.seconds for each in spoken)
    return Row(name, round(errors.wer, 2), round(size, 2), round(seconds / audio, 5))


def measured(checkpoint: Path, path: Path, threads: int) -> Result:
    """Export, compress and transcribe."""
    corpus = Corpus(path)
    spoken, learned = corpus.part("test"), corpus.part("train")
    with scratch_directory("speech-recipes") as folder:
        exported, recordings = folder / "exported", folder / "calibration"
        intaglio.export(checkpoint, exported, check=False)
        recordings.mkdir()
        for number, utterance in enumerate(learned[:CALIBRATED]):
            soundfile.write(recordings / f"{number}.flac", corpus.audio(utterance), SAMPLE_RATE)
        rows = [transcribed(exported, "exported", corpus, spoken, threads)]
        for recipe in RECIPES:
            compress(exported, folder / recipe, recipe, calibration=recordings if recipe == "int8-qdq" else None)
            rows.append(transcribed(folder / recipe, recipe, corpus, spoken, threads))
        text, model = folder / "sentences", folder / "words.arpa"
        text.write_text("\n".join(sorted({each.text for each in learned})) + "\n")
        estimate(text, model, 3)
        for bundle in (exported, folder / "int8-qdq"):
            name = f"{bundle.name}, beam, 3-gram"
            rows.append(transcribed(bundle, name, corpus, spoken, threads, speech_options(BEAM, model)))
    words = sum(len(each.text.split()) for each in spoken)
    return Result(processor(), threads, len(spoken), words, rows)


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True))
@click.argument("corpus", type=click.Path(path_type=Path, exists=True))
@click.option("--threads", default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(checkpoint: Path, corpus: Path, threads: int, as_json: bool) -> None:
    """Measure and print."""
    result = measured(checkpoint, corpus, threads)
    if as_json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        return
    click.echo(f"{result.processor}; {threads} threads; {result.utterances} utterances, {result.words} words")
    click.echo(f"{'':24}{'WER %':>8}{'MB':>8}{'seconds per second':>20}")
    for row in result.rows:
        click.echo(f"{row.name:24}{row.wer:8.2f}{row.megabytes:8.2f}{row.real_time_factor:20.4f}")
    wers = {row.name: row.wer for row in result.rows}
    rise = wers["int8-qdq"] - wers["exported"]
    click.echo(f"int8-qdq adds {rise:.2f} points; target {TARGET}: {'reached' if rise <= TARGET else 'missed'}")


if __name__ == "__main__":
    main()
