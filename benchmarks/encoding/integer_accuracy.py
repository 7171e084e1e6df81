"""What does the integer-only encoder cost in accuracy, against the quantisers of ONNX Runtime and OpenVINO?

    python -m benchmarks.encoding.integer_accuracy [--only NAME ...] [--json]

The real MiniLM, calibrated on 64 paragraphs without training, judged in batches of 8 by 160 other texts of the same
subject, and by 200 short sentences of others: the cosine of each sentence embedding to the float32 model's, and
Spearman's correlation of all pairwise similarities.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.encoding.integer_encoder import exported
from benchmarks.shared.contestants import BASE, CONTESTANTS, OURS, Process, Settings, opened, prepared, selected
from benchmarks.shared.texts import calibration_texts, evaluation_texts, short_sentences
from intaglio.bundle.bundle import Bundle
from intaglio.runtime.text.tokenizer import Tokenizer

BATCH = 8
SIMILAR, SHORT = "similar texts", "short sentences"
TARGETS = {SIMILAR: (0.9974, 0.9906, 0.9974), SHORT: (0.997, 0.985, 0.997)}  # as the columns of `Accuracy`


class Accuracy(msgspec.Struct):
    """The similarity of a contestant's sentence embeddings to those of float32 ONNX Runtime."""

    contestant: str
    texts: str
    mean_cosine: float
    minimum_cosine: float
    spearman: float


def main() -> None:
    """Start the command line; processes that this one starts import the file without running it."""
    command(prog_name="python -m benchmarks.encoding.integer_accuracy")


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(CONTESTANTS)),
    help="Contestants, besides ort-float32.",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the peers' models here for later runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(only: tuple[str, ...], folder: Path | None, as_json: bool) -> None:
    """Calibrate, judge and print."""
    names = selected(only)
    with tempfile.TemporaryDirectory() as temporary:
        place = (folder or Path(temporary)) / "minilm"
        bundle = exported("minilm", place)
        models = prepared(names, bundle, place, calibration_texts())
        with opened(models, bundle, Settings()) as processes:
            found = [
                row
                for kind, texts in ((SIMILAR, evaluation_texts()), (SHORT, short_sentences()))
                for row in compared(kind, texts, processes, bundle)
            ]
            complete = list(processes) == names
    if as_json:
        click.echo(msgspec.json.encode({"accuracy": found}).decode())
    else:
        show(found)
    sys.exit(0 if complete else 1)


def compared(kind: str, texts: list[str], processes: Mapping[str, Process], bundle: Path) -> list[Accuracy]:
    """The accuracy of every contestant on texts of a kind."""
    embeddings = {name: embed(process, bundle, texts) for name, process in processes.items()}
    expected = embeddings[BASE]
    return [accuracy(name, kind, actual, expected) for name, actual in embeddings.items() if name != BASE]


def embed(process: Process, bundle: Path, texts: list[str]) -> npt.NDArray[np.float64]:
    """The unit sentence embeddings of `texts`, float64 [texts, width]."""
    source = Bundle.open(bundle)
    index = [spec.name for spec in source.manifest.outputs].index("sentence_embedding")
    batches = Tokenizer.open(source).batches(texts, BATCH, truncate=True)
    vectors = np.concatenate(process.outputs([dict(batch) for batch in batches], index)).astype(np.float64)
    unit: npt.NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit


def accuracy(name: str, kind: str, actual: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> Accuracy:
    """Compare unit embeddings [texts, width]."""
    cosines = np.sum(actual * expected, axis=-1)
    pairs = np.triu_indices(len(expected), 1)
    left, right = (np.argsort(np.argsort((unit @ unit.T)[pairs])) for unit in (actual, expected))  # no two are equal
    spearman = np.corrcoef(left, right)[0, 1]
    return Accuracy(name, kind, float(cosines.mean()), float(cosines.min()), float(spearman))


def show(found: list[Accuracy]) -> None:
    """Print a line per contestant and kind of texts, and the targets of ours."""
    print(f"{'cosine to float32':50} {'mean':>9} {'minimum':>9} {'Spearman of similarities':>26}")
    for row in found:
        title = f"{CONTESTANTS[row.contestant].title}, {row.texts}"
        print(f"{title:50} {row.mean_cosine:9.5f} {row.minimum_cosine:9.5f} {row.spearman:26.5f}")
        if row.contestant == OURS:
            mean, minimum, spearman = TARGETS[row.texts]
            print(f"{'  at least':50} {mean:9.5f} {minimum:9.5f} {spearman:26.5f}")


if __name__ == "__main__":
    main()
