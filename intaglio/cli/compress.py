"""`intaglio compress`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from intaglio.cli.output import counted, force_option, json_option, percent, print_json, print_table, size

if TYPE_CHECKING:
    from intaglio.compression import Compressed
    from intaglio.graph_passes.weight_share import LeftWeight

NOTICEABLE = 0.1  # part of the linear layers' weights: when more is left unasked, that deserves a warning
NAMED = 3  # weights that a line names, the largest

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
A function of your own over onnx-graphsurgeon, in my_changes.py beside the recipe; it runs with --allow-code:
  passes:
    - surgeon: my_changes:rewrite
\b
Lookup tables for the weights of a decoder, placed where its loss is sensitive:
  intaglio compress gpt2 -o gpt2-lut --recipe lut --calibration text.txt
  intaglio compress gpt2 -o gpt2-sparse --recipe lut-sparse --calibration text.txt --sensitivity gpt2.sensitivity
\b
Weights of a decoder in groups, with fewer bits than the recipe has:
  intaglio compress gpt2 -o gpt2-3-bits --recipe gptq --calibration text.txt --bits 3 --group-size 64
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
@click.option("--bits", type=int, help="Of a weight, for the passes that have the option: 2, 3, 4, and in groups 8.")
@click.option("--group-size", type=int, help="Weights of a group, for the passes that have it: a multiple of 32, or 0.")
@click.option("--threads", type=int, help="The most that the passes take. By default all processors.")
@click.option("--allow-float", is_flag=True, help="Leave in floating point what an integer-only recipe cannot take.")
@click.option("--allow-code", is_flag=True, help="Run the functions of your own that the recipe names (surgeon: ...).")
@force_option
@json_option
def compress_command(
    bundle: Path,
    output: Path,
    recipe: str,
    calibration: Path | None,
    sensitivity: Path | None,
    bits: int | None,
    group_size: int | None,
    threads: int | None,
    allow_float: bool,
    allow_code: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Run the passes of a recipe on BUNDLE and write a new bundle.

    Each pass reports what it rewrote, and why it left the rest; at the end stands how much of the weights is
    compressed, where that is what the recipe does.
    """
    from intaglio.compression import compress

    result = compress(
        bundle,
        output,
        recipe,
        force=force,
        calibration=calibration,
        allow_float=allow_float,
        sensitivity=sensitivity,
        bits=bits,
        group_size=group_size,
        threads=threads,
        allow_code=allow_code,
    )
    _warn_of_what_is_left(result)
    if as_json:
        print_json(result)
        return
    rows = [(record.name, counted(record.counts), "\n".join(record.reasons)) for record in result.passes]
    print_table(f"Recipe {result.recipe}", ["pass", "rewritten", "left, and why"], rows)
    for name in result.untouched:
        click.echo(f"{name}: taken over as it is; the recipe went over the decoder")
    if result.share_compressed is not None:
        left = f"; left: {_named(result.left)}" if result.left else ""
        click.echo(f"{percent(result.share_compressed)} of the weights are compressed{left}")
    click.echo(f"{result.bundle}: {size(result.bytes_before)} -> {size(result.bytes_after)}")


def _warn_of_what_is_left(result: Compressed) -> None:
    """Say on standard error that much of the linear layers' weights is left although no option asked for it."""
    if result.left_unasked is None or result.left_unasked <= NOTICEABLE:
        return
    left = [weight for weight in result.left if weight.kind != "table" and not weight.asked]
    takes_tied = any("tied" in record.options for record in result.passes)
    tied = " A recipe file with tied: true compresses a copy of a tied one."
    click.echo(
        f"warning: recipe {result.recipe} left {percent(result.left_unasked)} of the weights of linear layers as they "
        f"were: {_named(left)}.{tied if takes_tied and left[0].kind == 'tied' else ''}",
        err=True,
    )


def _named(weights: list[LeftWeight]) -> str:
    """The largest of `weights` by name, and how many more there are."""
    kinds = {"layer": "", "tied": " (tied to the embeddings)", "table": " (a table)"}
    names = [weight.name + (" (as asked)" if weight.asked else kinds[weight.kind]) for weight in weights[:NAMED]]
    more = [f"{len(weights) - NAMED} more"] if len(weights) > NAMED else []
    return ", ".join(names + more)
