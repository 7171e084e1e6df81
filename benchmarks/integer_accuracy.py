"""What does the integer-only encoder cost in accuracy, against the quantisers of ONNX Runtime and OpenVINO?

    python benchmarks/integer_accuracy.py [--only NAME ...] [--json]

The real MiniLM, calibrated on 64 paragraphs without training, judged by 160 other texts in batches of 8: the cosine
of each sentence embedding to the float32 model's, and Spearman's correlation of all 12720 pairwise similarities.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click
import msgspec
import numpy as np
import numpy.typing as npt
from contestants import BASE, CONTESTANTS, OURS, Process, Settings, opened, prepared, selected
from integer_encoder import exported
from texts import calibration_texts, evaluation_texts

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.text.tokenizer import Tokenizer

BATCH = 8
TARGETS = {"mean_cosine": 0.995, "minimum_cosine": 0.98, "spearman": 0.995}


class Accuracy(msgspec.Struct):
    """The similarity of a contestant's sentence embeddings to those of float32 ONNX Runtime."""

    contestant: str
    mean_cosine: float
    minimum_cosine: float
    spearman: float


def main() -> None:
    """Start the command line; processes that this one starts import the file without running it."""
    command(prog_name="integer_accuracy.py")


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
            embeddings = {name: embed(process, bundle) for name, process in processes.items()}
    expected = embeddings[BASE]
    found = [accuracy(name, actual, expected) for name, actual in embeddings.items() if name != BASE]
    if as_json:
        click.echo(msgspec.json.encode({"texts": len(expected), "accuracy": found}).decode())
    else:
        show(found)
    sys.exit(0 if list(embeddings) == names else 1)


def embed(process: Process, bundle: Path) -> npt.NDArray[np.float64]:
    """The unit sentence embeddings of all evaluation texts, float64 [texts, width]."""
    source = Bundle.open(bundle)
    index = [spec.name for spec in source.manifest.outputs].index("sentence_embedding")
    batches = Tokenizer.open(source).batches(evaluation_texts(), BATCH, truncate=True)
    vectors = np.concatenate(process.outputs([dict(batch) for batch in batches], index)).astype(np.float64)
    unit: npt.NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit


def accuracy(name: str, actual: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> Accuracy:
    """Compare unit embeddings [texts, width]."""
    cosines = np.sum(actual * expected, axis=-1)
    pairs = np.triu_indices(len(expected), 1)
    left, right = (np.argsort(np.argsort((unit @ unit.T)[pairs])) for unit in (actual, expected))  # no two are equal
    spearman = np.corrcoef(left, right)[0, 1]
    return Accuracy(name, float(cosines.mean()), float(cosines.min()), float(spearman))


def show(found: list[Accuracy]) -> None:
    """Print a line per contestant, and the targets of ours."""
    print(f"{'cosine to float32':32} {'mean':>9} {'minimum':>9} {'Spearman of similarities':>26}")
    for row in found:
        title = CONTESTANTS[row.contestant].title
        print(f"{title:32} {row.mean_cosine:9.5f} {row.minimum_cosine:9.5f} {row.spearman:26.5f}")
        if row.contestant == OURS:
            print(f"{'  at least':32} " + " ".join(f"{asked:9.5f}" for asked in TARGETS.values()))


if __name__ == "__main__":
    main()
