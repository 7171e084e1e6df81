"""`intaglio compress`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from intaglio.cli.options.choices import BUNDLE, BUNDLE_TO_WRITE, PATH, RecipeName
from intaglio.cli.options.executor import executor_option
from intaglio.cli.printing.results import (
    counted,
    force_option,
    json_option,
    notice,
    number_of,
    percent,
    print_json,
    print_table,
    say,
    shortened,
    size,
)
from intaglio.cli.running.command import Verb, section, verb
from intaglio.display.verbosity import is_quiet, is_verbose

if TYPE_CHECKING:
    from intaglio.bundle.bundle import PassRecord
    from intaglio.compression import Compressed
    from intaglio.graph_passes.weight_share import LeftWeight

NOTICEABLE = 0.1  # fraction of the linear layers' weights; warn when more is left uncompressed without an option for it
REASONS = 4  # reasons of a pass that are printed, without --verbose
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
\b
Both graphs of an encoder-decoder, one after the other:
  intaglio compress whisper -o whisper-half --recipe int8-weights
  intaglio compress whisper-half -o whisper-int8 --recipe int8-weights --graph encoder.onnx
"""


class ListsRecipes(Verb):
    """A command whose help lists the recipes."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the recipes, then the options."""
        from intaglio.graph_passes.recipes.recipes import RECIPES

        with formatter.section("Recipes (* needs --calibration; more: intaglio recipes)"):
            formatter.write_dl([(name, each.does + " *" * bool(each.needs)) for name, each in RECIPES.items()])
        super().format_options(ctx, formatter)


@verb("compress", cls=ListsRecipes, epilog=EPILOG)
@click.argument("bundle", type=BUNDLE)
@click.option("-o", "--output", required=True, type=BUNDLE_TO_WRITE, help="The bundle to make.")
@click.option("--recipe", required=True, type=RecipeName(), help="A recipe below, or a YAML file with one.")
@section("Data of the passes")
@click.option(
    "--calibration",
    type=PATH,
    help="Real inputs to observe activations on: a UTF-8 file with one text per line, a folder or list of recordings, "
    "or .npz arrays by input name.",
)
@click.option(
    "--sensitivity",
    type=PATH,
    help="File from `intaglio sensitivity`, for the recipes that need it.  [default: computed from --calibration]",
)
@section("Options of the passes")
@click.option(
    "--bits", type=int, help="Bits per weight, for the passes with this option: 2, 3 or 4; with groups also 5, 6, 8."
)
@click.option(
    "--group-size", type=int, help="Weights per group, for the passes with this option: a multiple of 32, or 0."
)
@click.option(
    "--allow-float", is_flag=True, help="Keep operators in floating point that an integer-only recipe cannot convert."
)
@click.option("--threads", type=int, help="Maximum number of threads.  [default: all processors]")
@executor_option
@click.option(
    "--resume", is_flag=True, help="Keep finished layers beside OUTPUT, and go on from those of a run that ended early."
)
@click.option(
    "--graph",
    default="model.onnx",
    help="ONNX file of the bundle to change: of an encoder-decoder the decoder, or encoder.onnx.",
)
@click.option("--allow-code", is_flag=True, help="Allow the recipe to run your own functions (surgeon: ...).")
@force_option
@json_option
def compress_command(graph: str, as_json: bool, **options: Any) -> None:
    """Run the passes of a recipe on BUNDLE and write a new bundle.

    Each pass reports what it rewrote, and why it left the rest. Recipes that compress weights end with the compressed
    fraction of the weights.
    """
    from intaglio.compression import compress

    result = compress(graph=graph, **options)
    _warn_of_what_is_left(result)
    if as_json:
        print_json(result)
        return
    if not is_quiet():
        _show(result, graph)
    say(f"{result.bundle}: {size(result.bytes_before)} -> {size(result.bytes_after)}")


def _show(result: Compressed, graph: str) -> None:
    """Print what each pass did, and what share of the weights is compressed."""
    shown = result.passes if is_verbose() else _noteworthy(result.passes)
    rows = [(record.name, counted(record.counts), "\n".join(shortened(record.reasons, REASONS))) for record in shown]
    print_table(f"Recipe {result.recipe}", ["pass", "rewritten", "left, and why"], rows)
    if hidden := [record.name for record in result.passes if record not in shown]:
        say(f"Found nothing to do: {', '.join(hidden)} (reasons: --verbose).")
    if result.resumed:
        say(f"Found {number_of(result.resumed, 'layers')} of an earlier run.")
    for name in result.untouched:
        say(f"{name}: copied unchanged; the recipe applies to {graph}")
    if result.share_compressed is not None:
        left = f"; left: {_named(result.left)}" if result.left else ""
        say(f"{percent(result.share_compressed)} of the weights are compressed{left}")


def _noteworthy(passes: Sequence[PassRecord]) -> list[PassRecord]:
    """The passes that rewrote something, and those that were there to change the numbers and say why they did not.

    If none of the latter changed any, they are all noteworthy.
    """
    from intaglio.bundle.effect import Effect
    from intaglio.validation.comparison.changes import effect_of

    changing = [record for record in passes if effect_of(record) is not Effect.EXACT]
    changed = any(record.counts for record in changing)
    return [record for record in passes if record.counts or (record in changing and (record.reasons or not changed))]


def _warn_of_what_is_left(result: Compressed) -> None:
    """Warn on standard error when many weights of linear layers are left although no option asked for it."""
    if result.left_unasked is None or result.left_unasked <= NOTICEABLE:
        return
    left = [weight for weight in result.left if weight.kind != "table" and not weight.asked]
    takes_tied = any("tied" in record.options for record in result.passes)
    tied = " To compress a copy of a tied weight, set tied: true in a recipe file."
    notice(
        f"warning: recipe {result.recipe} left {percent(result.left_unasked)} of the weights of linear layers "
        f"uncompressed: {_named(left)}.{tied if takes_tied and left[0].kind == 'tied' else ''}"
    )


def _named(weights: list[LeftWeight]) -> str:
    """The largest of `weights` by name, and how many more there are."""
    kinds = {"layer": "", "tied": " (tied to the embeddings)", "table": " (a table)"}
    names = [weight.name + (" (as asked)" if weight.asked else kinds[weight.kind]) for weight in weights[:NAMED]]
    more = [f"{len(weights) - NAMED} more"] if len(weights) > NAMED else []
    return ", ".join(names + more)
