"""`intaglio train prune`."""

from __future__ import annotations

from typing import Any

import click

from intaglio.cli.options.choices import DTYPE, PATH, OneOf
from intaglio.cli.printing.results import force_option, json_option, print_json, print_table, say
from intaglio.cli.running.command import section, verb

EPILOG = """\b
Examples:
  intaglio train prune ./gpt2 -o ./gpt2-half --data texts.txt --fraction 0.5
  intaglio train prune ./gpt2 -o ./gpt2-slim --data texts.txt --by rows --fraction 0.25 --schedule separate
  intaglio export ./gpt2-slim -o slim
"""


@verb("prune", epilog=EPILOG, short_help="Fine-tune a decoder's checkpoint and prune it while it trains.")
@click.argument("source", type=PATH)
@click.option("-o", "--output", required=True, type=PATH, help="Output directory.")
@click.option("--data", required=True, type=PATH, help="UTF-8 text. A tenth is held out.")
@click.option("--fraction", default=0.5, help="Final pruned fraction of each layer.")
@click.option(
    "--by",
    type=OneOf(["magnitude", "rows"]),
    default="magnitude",
    help="magnitude: set single weights to 0; rows: remove hidden channels of the feed-forward networks.",
)
@click.option(
    "--schedule",
    type=OneOf(["separate", "linear", "cubic"]),
    default="cubic",
    help="separate: prune before each stage; linear, cubic: before every step, evenly or faster at first.",
)
@section("Training")
@click.option("--stages", default=5, help="Pruning stages, after one stage without pruning.")
@click.option("--steps", default=100, help="Steps of the optimiser in each stage.")
@click.option("--batch-size", default=8, help="Windows of text per step.")
@click.option("--max-tokens", default=256, help="Tokens per window.")
@click.option("--learning-rate", default=1e-4, help="Learning rate of Adam.")
@click.option("--multiple", default=32, help="With --by rows: keep a multiple of this number of channels.")
@click.option("--dtype", type=DTYPE, help="Dtype of the written weights.  [default: unchanged]")
@click.option("--seed", default=0, help="Random seed of the order of the windows.")
@force_option
@json_option
def prune_command(as_json: bool, **options: Any) -> None:
    """Fine-tune the causal language model in the directory SOURCE on text, and prune it on the way.

    The output can be exported like any other checkpoint. Weights pruned to 0 stay in its matrices; pruned channels are
    removed from them.
    """
    from intaglio.training import prune

    result = prune(**options)
    if as_json:
        print_json(result)
        return
    rows: list[tuple[str, float, float]] = [("before", 0.0, result.loss_before)]
    rows += [(f"stage {number}", stage.fraction, stage.loss) for number, stage in enumerate(result.stages)]
    print_table(f"Loss on {result.held_out:,} held-out tokens", ["", "pruned", "loss"], rows)
    say(
        f"{result.checkpoint}: {result.parameters_before:,} -> {result.parameters:,} parameters, "
        f"{result.zeros:,} of them pruned to 0, in {result.seconds:.0f} s"
    )
