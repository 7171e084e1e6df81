"""`intaglio train int8-only`."""

from __future__ import annotations

from typing import Any

import click

from intaglio.cli.options.choices import BUNDLE, BUNDLE_TO_WRITE, PATH
from intaglio.cli.printing.results import force_option, json_option, print_json, print_table, say
from intaglio.cli.running.command import section, verb

EPILOG = """\b
Examples:
  intaglio export ./all-MiniLM-L6-v2 -o minilm
  intaglio compress minilm -o minilm-int8 --recipe int8-only --calibration texts.txt
  intaglio train int8-only minilm-int8 -o minilm-tuned --teacher minilm --data more-texts.txt
  intaglio train int8-only minilm-int8 -o minilm-tuned --teacher minilm --data more-texts.txt --steps 1000 --json
"""


@verb("int8-only", epilog=EPILOG, short_help="Fine-tune the integer weights of an int8-only bundle.")
@click.argument("bundle", type=BUNDLE)
@click.option("-o", "--output", required=True, type=BUNDLE_TO_WRITE, help="Output bundle.")
@click.option(
    "--teacher", required=True, type=BUNDLE, help="The floating-point bundle that BUNDLE was compressed from."
)
@click.option(
    "--data",
    required=True,
    type=PATH,
    help="Real inputs: UTF-8 with one text per line, or .npz arrays by input name; no labels. A tenth is held out.",
)
@section("Training")
@click.option("--steps", default=200, help="Steps of the optimiser.")
@click.option("--batch-size", default=8, help="Texts per step.")
@click.option("--learning-rate", default=0.02, help="Learning rate of weights, in 8-bit units per step.")
@click.option("--bias-learning-rate", default=0.01, help="Learning rate of biases and norms, in the same units.")
@click.option("--max-tokens", default=128, help="Truncate longer texts.")
@click.option("--embeddings", is_flag=True, help="Train the embedding tables too.")
@click.option("--seed", default=0, help="Random seed of the order and of the held-out texts.")
@force_option
@json_option
def int8_only_command(as_json: bool, **options: Any) -> None:
    """Fine-tune the integer weights of BUNDLE, made with the recipe int8-only, to match its teacher's outputs.

    Weights, biases and normalisations are trained with the bundle's own integer arithmetic; scales do not change. The
    best state on the held-out texts is kept, which can be the initial one.
    """
    from intaglio.training import train_int8_only

    result = train_int8_only(**options)
    if as_json:
        print_json(result)
        return
    rows = [("before", result.loss_before), ("after", result.loss_after)]
    print_table(f"Distance to {result.teacher} on {result.held_out} held-out texts", ["", "loss"], rows)
    outputs = ", ".join(result.outputs)
    say(f"Loss measured on {outputs}; best state: step {result.best_step} of {result.steps}.")
    say(f"{result.bundle}: {result.changed:,} of {result.trained:,} integers changed, in {result.seconds:.0f} s")
