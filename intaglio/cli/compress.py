"""`intaglio compress`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from intaglio.cli.output import counted, force_option, json_option, percent, print_json, print_table, size

if TYPE_CHECKING:
    from intaglio.compression import Compressed
    from intaglio.graph_passes.weight_share import LeftWeight

NOTICEABLE = 0.1  # fraction of the linear layers' weights; warn when more is left uncompressed without an option for it
NAMED = 3  # largest weights named in a line

EPILOG = """\b
Examples:
  intaglio compress bundle -o canonical --recipe canonical
  intaglio compress minilm -o minilm-fp16 --recipe float16
  intaglio compress bundle -o mine --recipe mine.yaml
  intaglio compress minilm -o minilm-int8 --recipe int8-only --calibration texts.txt
  intaglio compress recogniser -o recogniser-int8 --recipe int8-qdq --calibration recordings/
\b
A recipe file lists passes in order:
  passes:
    - fold_constants
    - canonicalize
    - float16: {keep: [Softmax]}
\b
A pass that observes activations needs --calibration:
  passes:
    - canonicalize
    - calibrate: {method: percentile, percentile: 99.99, samples: 128}
\b
Your own function using onnx-graphsurgeon, in my_changes.py next to the recipe; it needs --allow-code:
  passes:
    - surgeon: my_changes:rewrite
\b
Lookup tables for a decoder's weights, weighted by the sensitivity of its loss:
  intaglio compress gpt2 -o gpt2-lut --recipe lut --calibration text.txt
  intaglio compress gpt2 -o gpt2-sparse --recipe lut-sparse --calibration text.txt --sensitivity gpt2.sensitivity
\b
Group-wise quantisation of a decoder, with fewer bits than the recipe's default:
  intaglio compress gpt2 -o gpt2-3-bits --recipe gptq --calibration text.txt --bits 3 --group-size 64
"""


@click.command("compress", epilog=EPILOG)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle to make.")
@click.option("--recipe", required=True, help="Name of a recipe, or a YAML file.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Real inputs to observe activations on: a UTF-8 file with one text per line, a folder or list of recordings, "
    "or .npz arrays by input name.",
)
@click.option(
    "--sensitivity",
    type=click.Path(path_type=Path),
    help="File made by `intaglio sensitivity`, for the recipes that need it.  [default: computed from --calibration]",
)
@click.option(
    "--bits", type=int, help="Bits per weight, for the passes with this option: 2, 3 or 4; with groups also 8."
)
@click.option(
    "--group-size", type=int, help="Weights per group, for the passes with this option: a multiple of 32, or 0."
)
@click.option("--threads", type=int, help="Maximum number of threads.  [default: all processors]")
@click.option("--allow-float", is_flag=True, help="Keep in floating point what an integer-only recipe cannot convert.")
@click.option("--allow-code", is_flag=True, help="Allow the recipe to run your own functions (surgeon: ...).")
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

    Each pass reports what it rewrote, and why it left the rest. Recipes that compress weights end with the compressed
    fraction of the weights.
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
        click.echo(f"{name}: copied unchanged; the recipe applies to the decoder")
    if result.share_compressed is not None:
        left = f"; left: {_named(result.left)}" if result.left else ""
        click.echo(f"{percent(result.share_compressed)} of the weights are compressed{left}")
    click.echo(f"{result.bundle}: {size(result.bytes_before)} -> {size(result.bytes_after)}")


def _warn_of_what_is_left(result: Compressed) -> None:
    """Warn on standard error when many weights of linear layers are left although no option asked for it."""
    if result.left_unasked is None or result.left_unasked <= NOTICEABLE:
        return
    left = [weight for weight in result.left if weight.kind != "table" and not weight.asked]
    takes_tied = any("tied" in record.options for record in result.passes)
    tied = " To compress a copy of a tied weight, set tied: true in a recipe file."
    click.echo(
        f"warning: recipe {result.recipe} left {percent(result.left_unasked)} of the weights of linear layers "
        f"uncompressed: {_named(left)}.{tied if takes_tied and left[0].kind == 'tied' else ''}",
        err=True,
    )


def _named(weights: list[LeftWeight]) -> str:
    """The largest of `weights` by name, and how many more there are."""
    kinds = {"layer": "", "tied": " (tied to the embeddings)", "table": " (a table)"}
    names = [weight.name + (" (as asked)" if weight.asked else kinds[weight.kind]) for weight in weights[:NAMED]]
    more = [f"{len(weights) - NAMED} more"] if len(weights) > NAMED else []
    return ", ".join(names + more)
