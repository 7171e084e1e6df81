"""`intaglio train early-exit`."""

from __future__ import annotations

from typing import Any

import click

from intaglio.cli.options.choices import PATH
from intaglio.cli.printing.results import force_option, json_option, print_json, print_table, say
from intaglio.cli.running.command import section, verb

EPILOG = """\b
Examples:
  intaglio train early-exit ./gpt2 -o ./gpt2-exit --data texts.txt
  intaglio train early-exit ./gpt2 -o ./gpt2-exit --data texts.txt --layer 2 --steps 5000
  intaglio export ./gpt2-exit -o gpt2-exit
  intaglio generate gpt2-exit --early-exit --strategy bild "Once upon a time"
  intaglio train early-exit ./gpt2 -o ./gpt2-exits --data texts.txt --every-layer
  intaglio export ./gpt2-exits -o gpt2-exits
  intaglio generate gpt2-exits --strategy calm "Once upon a time"
"""


@verb("early-exit", epilog=EPILOG, short_help="Train a decoder to predict at an early exit too.")
@click.argument("source", type=PATH)
@click.option("-o", "--output", required=True, type=PATH, help="Output directory.")
@click.option("--data", required=True, type=PATH, help="UTF-8 text. A tenth is held out.")
@click.option("--layer", type=int, help="Blocks before the exit.  [default: a quarter of them]")
@click.option("--every-layer", is_flag=True, help="Add an exit after every block, for generate --strategy calm.")
@section("Training")
@click.option("--steps", default=500, help="Steps of the optimiser.")
@click.option("--batch-size", default=8, help="Windows of text per step.")
@click.option("--max-tokens", default=128, help="Tokens per window.")
@click.option("--learning-rate", default=1e-4, help="Learning rate of Adam.")
@click.option("--seed", default=0, help="Random seed of the order of the windows.")
@force_option
@json_option
def early_exit_command(as_json: bool, **options: Any) -> None:
    """Fine-tune the causal language model in the directory SOURCE to predict after its first blocks too.

    The first blocks can then draft for the whole model. Both exits share the final norm and the head; the mean of their
    losses is minimised. With --every-layer each token can exit after as many blocks as it needs. The output can be
    exported like any other checkpoint.
    """
    from intaglio.training import train_early_exit

    result = train_early_exit(**options)
    if as_json:
        print_json(result)
        return
    *early, last = result.exits
    rows: list[tuple[str, str | float, str | float]] = []
    for each in early:
        rows.append((f"after {each.layer} of {result.layers} blocks: loss", each.loss_before, each.loss))
        rows.append(("agreement with the whole model", f"{each.agreement_before:.1%}", f"{each.agreement:.1%}"))
    rows.append(("whole model: loss", last.loss_before, last.loss))
    print_table(f"Predictions on {result.held_out:,} held-out tokens", ["", "before", "after"], rows)
    say(f"{result.checkpoint}: trained on {result.tokens:,} tokens in {result.seconds:.0f} s")
