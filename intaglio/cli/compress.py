"""`intaglio compress`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from intaglio.cli.output import force_option, json_option, print_json, print_table, size

EPILOG = """\b
Examples:
  intaglio compress bundle -o canonical --recipe canonical
  intaglio compress minilm -o minilm-fp16 --recipe float16
  intaglio compress bundle -o mine --recipe mine.yaml
  intaglio compress minilm -o minilm-int8 --recipe int8-only --calibration texts.txt
\b
A recipe file lists passes in order:
  passes:
    - fold_constants
    - canonicalize
    - float16: {keep: [Softmax]}
\b
A pass that needs calibration data observes the activations on them:
  passes:
    - canonicalize
    - calibrate: {method: percentile, percentile: 99.99, samples: 128}
\b
Lookup tables for the weights of a decoder, placed where its loss is sensitive:
  intaglio compress gpt2 -o gpt2-lut --recipe lut --calibration text.txt
  intaglio compress gpt2 -o gpt2-lut --recipe lut-sparse --calibration text.txt --sensitivity gpt2.sensitivity
"""


@click.command("compress", epilog=EPILOG)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle to make.")
@click.option("--recipe", required=True, help="A recipe's name, or a YAML file.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Real inputs for the passes that observe activations: UTF-8, one text a line, or .npz arrays by input name.",
)
@click.option(
    "--sensitivity",
    type=click.Path(path_type=Path),
    help="For passes that go by it: a file of `intaglio sensitivity`. Without, it is made from --calibration.",
)
@click.option("--allow-float", is_flag=True, help="Leave in floating point what an integer-only recipe cannot take.")
@force_option
@json_option
def compress_command(
    bundle: Path,
    output: Path,
    recipe: str,
    calibration: Path | None,
    sensitivity: Path | None,
    allow_float: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Run the passes of a recipe on BUNDLE and write a new bundle.

    Each pass reports what it rewrote, and why it left the rest.
    """
    from intaglio.graph_passes import compress

    with _sensitivities(bundle, output, recipe, calibration, sensitivity, force) as (text, weights):
        result = compress(bundle, output, recipe, force, text, allow_float, weights)
    if as_json:
        print_json(result)
        return
    rows = []
    for record in result.passes:
        done = ", ".join(f"{number} {kind}" for kind, number in record.counts.items()) or "nothing"
        rows.append((record.name, done, "\n".join(record.reasons)))
    print_table(f"Recipe {result.recipe}", ["pass", "rewritten", "left, and why"], rows)
    for name in result.untouched:
        click.echo(f"{name}: taken over as it is; the recipe went over the decoder")
    click.echo(f"{result.bundle}: {size(result.bytes_before)} -> {size(result.bytes_after)}")


@contextmanager
def _sensitivities(
    bundle: Path, output: Path, recipe: str, calibration: Path | None, sensitivity: Path | None, force: bool
) -> Iterator[tuple[Path | None, Path | None]]:
    """What `compress` gets for the two options: missing sensitivities are made of the calibration text."""
    from intaglio.files import check_output_directory, sibling_directory
    from intaglio.graph_passes.contract import needs_calibration, needs_sensitivities
    from intaglio.graph_passes.recipes import load_recipe

    passes = load_recipe(recipe)[1]
    if calibration is None or sensitivity is not None or not any(map(needs_sensitivities, passes)):
        yield calibration, sensitivity
        return
    from intaglio.training import sensitivity as compute

    check_output_directory(output, force)
    with sibling_directory(output) as folder:
        compute(bundle, folder / "sensitivity", calibration)
        yield calibration if any(map(needs_calibration, passes)) else None, folder / "sensitivity"
