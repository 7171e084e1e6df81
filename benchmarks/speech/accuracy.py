"""How accurate are Squeezeformer and Conformer-CTC of equal size after equal training, and what do they cost?

    python -m benchmarks.speech.accuracy --folder checkpoints --corpus corpus --more more [--steps 9000] [--minutes 60]
        [--threads 1] [--ablations] [--json] [--picture docs/pictures/frame-similarity.svg]

Tables like the thesis' 5.3 and 5.4, on the corpora of `python examples/make_speech_corpus.py -o corpus` and of
`python examples/make_speech_corpus.py -o more --utterances 4 --held-out 2000`. The folder has a checkpoint for each
network: squeezeformer, conformer-ctc, and with --ablations no-skip and so on. One that is there is taken, another one
is trained; all with the same corpus, learning rates and seed, and the same steps, or with --minutes the same time. The
Conformer-CTC is as wide as it has to be for about the same number of parameters.

WER: test, sentences and voices that were held out; mixed, the same with noise, rooms and other speeds; LibriVox, five
sentences read by a person; more, 2,000 other utterances of held-out sentences and voices, transcribed by ONNX Runtime.
On these, the difference of every network from the first has a 95 % interval. Operations of the products are counted for
30 s (2 for a multiply-add), without the front end. Throughput: inputs of 30 s a second in ONNX Runtime, one at a time;
the networks take turns, the best round counts.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click
import msgspec
import numpy as np
import torch

import intaglio
from benchmarks.speech.frame_similarity import frame_similarity, picture
from benchmarks.speech.graph_operations import operations
from benchmarks.speech.speed import RATE, processor, timed
from benchmarks.speech.word_error_difference import Difference, difference
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step, track
from intaglio.errors import GraphError
from intaglio.files.atomic import atomic_write
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.speech.recognizer import SpeechRecognizer
from intaglio.training import TrainedSpeech, train_speech
from intaglio.training.speech.corpus import Corpus
from intaglio.training.speech.results import RESULTS, Evaluation
from intaglio.training.speech.tokens import characters
from intaglio.training.speech.train_speech import READING
from intaglio.training.speech.training_options import ABLATIONS, SpeechTraining
from intaglio.training.speech.word_errors import word_errors

SECONDS = 30  # of audio
ROUNDS = 5
PICTURED = 100  # utterances of the larger test part for the picture


class Row(msgspec.Struct):
    """One network; a network that diverged has no numbers."""

    name: str
    parameters: int = 0
    steps: int = 0
    validation_wer: float | None = None  # percent
    test_wer: float | None = None
    mixed_wer: float | None = None
    librivox_wer: float | None = None
    more_wer: float | None = None
    difference: Difference | None = None  # points of `more_wer`, from the first network's
    gflops: float = 0.0
    throughput: float = 0.0  # inputs of 30 s a second
    note: str = ""


class Results(msgspec.Struct):
    """All networks."""

    processor: str
    threads: int
    rows: list[Row]
    ablations: list[Row]


def parameters(options: SpeechTraining) -> int:
    """The number of weights of a network."""
    config = options.config(options.pieces or len(characters().vocabulary))
    with torch.device("meta"):
        return sum(each.numel() for each in SpeechNetwork(config, front_end=False).parameters())


def conformer_like(options: SpeechTraining) -> SpeechTraining:
    """A Conformer-CTC with about as many parameters as the Squeezeformer of `options`."""
    wanted = parameters(options)
    multiple = options.heads if options.heads % 2 == 0 else 2 * options.heads
    widths = range(multiple, 2 * options.width, multiple)
    made = [replace(options, architecture="conformer-ctc", width=width) for width in widths]
    return min(made, key=lambda each: abs(parameters(each) - wanted))


def trained(path: Path, options: SpeechTraining, corpus: Path, threads: int) -> TrainedSpeech | str:
    """The results of the checkpoint at `path`, which is trained if it is not there; or why there is none."""
    if not (path / RESULTS).is_file():
        click.echo(f"training {path.name}: {parameters(options):,} parameters", err=True)
        try:
            return train_speech(corpus, path, options, threads=threads, report=print_evaluation)
        except GraphError as error:
            return str(error)
    return msgspec.json.decode((path / RESULTS).read_bytes(), type=TrainedSpeech)


def print_evaluation(evaluation: Evaluation) -> None:
    """Print a line while a network is trained."""
    click.echo(f"  step {evaluation.step}: loss {evaluation.loss:.3f}, WER {evaluation.wer:.1f} %", err=True)


def measured(folder: Path, found: dict[str, TrainedSpeech | str], more: Corpus, threads: int) -> list[Row]:
    """A row for each network; `more` is transcribed by one after the other, then their engines take turns."""
    samples = SECONDS * RATE
    audio = np.random.default_rng(0).normal(0, 0.1, (1, samples)).astype(np.float32)
    feeds = {"audio": audio, "lengths": np.array([samples])}
    rows = {name: Row(name, note=each) if isinstance(each, str) else row_of(name, each) for name, each in found.items()}
    spoken = more.part("test")
    texts, transcripts = [each.text for each in spoken], dict[str, list[str]]()
    with scratch_directory("speech") as scratch, ExitStack() as opened:
        engines = {}
        for name, each in found.items():
            if isinstance(each, str):
                continue
            with step(f"exporting {name}"):
                intaglio.export(folder / name, scratch / name, check=False)
            counts = operations(Bundle.open(scratch / name).model_path, feeds)
            products = sum(count for module, count in counts.items() if module != "front_end")
            rows[name].gflops = round(products / 1e9, 2)
            recognizer = opened.enter_context(SpeechRecognizer(Bundle.open(scratch / name), threads=threads))
            transcripts[name] = [
                recognizer.transcribe_samples([more.audio(utterance)]).text
                for utterance in track(spoken, f"transcribing with {name}", len(spoken))
            ]
            rows[name].more_wer = round(word_errors(texts, transcripts[name]).wer, 2)
            rows[name].difference = difference(texts, next(iter(transcripts.values())), transcripts[name])
            engines[name] = recognizer.engine
        times: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(ROUNDS):
            for name, engine in engines.items():
                times[name].append(timed(lambda engine=engine: engine.run(feeds)))
    for name, seconds in times.items():
        rows[name].throughput = round(1 / min(seconds), 2)
    return list(rows.values())


def row_of(name: str, result: TrainedSpeech) -> Row:
    """What training measured."""
    errors = result.errors
    rates = (result.validation_wer, errors.test.wer, errors.mixed.wer, errors.recordings[READING].wer)
    return Row(name, result.parameters, result.steps, *(round(rate, 2) for rate in rates))


def between(found: Difference) -> str:
    """A difference and its interval."""
    return f"{found.points:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def show(title: str, rows: list[Row]) -> None:
    """Print a table."""
    click.echo(f"\n{title}")
    click.echo(
        f"{'':16}{'M par.':>8}{'steps':>8}{'valid.':>8}{'test':>8}{'mixed':>8}{'LibriVox':>10}{'more':>8}"
        f"{'difference':>24}{'GFLOP':>8}{'30 s/s':>8}"
    )
    for row in rows:
        if row.test_wer is None or row.difference is None:
            click.echo(f"{row.name:16}  {row.note}")
            continue
        click.echo(
            f"{row.name:16}{row.parameters / 1e6:8.2f}{row.steps:8}{row.validation_wer:8.1f}{row.test_wer:8.1f}"
            f"{row.mixed_wer:8.1f}{row.librivox_wer:10.1f}{row.more_wer:8.1f}{between(row.difference):>24}"
            f"{row.gflops:8.1f}{row.throughput:8.2f}"
        )


@click.command()
@click.option("--folder", required=True, type=click.Path(path_type=Path), help="Of the checkpoints.")
@click.option("--steps", default=SpeechTraining.steps, show_default=True)
@click.option("--minutes", type=float, help="End each training after this time, if the steps take longer.")
@click.option("--corpus", required=True, type=click.Path(path_type=Path), help="To train and test on.")
@click.option("--more", required=True, type=click.Path(path_type=Path), help="The corpus with the larger test part.")
@click.option("--width", default=SpeechTraining.width, show_default=True, help="Of the Squeezeformer.")
@click.option("--layers", default=SpeechTraining.layers, show_default=True)
@click.option(
    "--warm-up", default=SpeechTraining.warm_up, show_default=True, help="Steps to the highest learning rate."
)
@click.option("--hold", default=SpeechTraining.hold, show_default=True, help="Steps at the highest learning rate.")
@click.option("--ablations", is_flag=True, help="Also the networks of table 5.4.")
@click.option("--picture", "drawing", type=click.Path(path_type=Path), help="Draw figure 5.3 into this SVG file.")
@click.option("--threads", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(
    folder: Path,
    steps: int,
    minutes: float | None,
    corpus: Path,
    more: Path,
    width: int,
    layers: int,
    warm_up: int,
    hold: int,
    ablations: bool,
    drawing: Path | None,
    threads: int,
    as_json: bool,
) -> None:
    """Train the missing networks, and print the tables."""
    folder.mkdir(exist_ok=True)
    base = SpeechTraining(width=width, layers=layers, steps=steps, warm_up=warm_up, hold=hold, minutes=minutes)
    wanted = {"squeezeformer": base, "conformer-ctc": conformer_like(base)}
    if ablations:
        wanted |= {name: replace(base, ablation=name) for name in ABLATIONS}
    found = {name: trained(folder / name, options, corpus, threads) for name, options in wanted.items()}
    larger = Corpus(more)
    rows = measured(folder, found, larger, threads)
    if drawing is not None:
        recordings = [larger.audio(each) for each in larger.part("test")[:PICTURED]]
        labels = {"Squeezeformer": "squeezeformer", "Conformer-CTC": "conformer-ctc"}
        trained_ones = {label: name for label, name in labels.items() if not isinstance(found[name], str)}
        compared = {label: frame_similarity(folder / name, recordings) for label, name in trained_ones.items()}
        atomic_write(drawing, picture(compared).encode())
    ablated = [row for row in rows if row.name in ABLATIONS]
    results = Results(processor(), threads, [row for row in rows if row not in ablated], ablated)
    if as_json:
        sys.stdout.write(msgspec.json.encode(results).decode() + "\n")
        return
    click.echo(f"{results.processor}, {threads} threads")
    show("Word error rates in percent (as in table 5.3)", results.rows)
    if ablations:
        show("Ablations of the Squeezeformer (as in table 5.4)", results.ablations)


if __name__ == "__main__":
    main()
