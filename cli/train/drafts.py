"""`intaglio train hidden-transfer` and `intaglio train medusa`: a model that drafts its own next tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from intaglio.cli.options.choices import PATH, OneOf
from intaglio.cli.printing.results import force_option, json_option, print_json, print_table, say
from intaglio.cli.running.command import group, section, verb
from intaglio.errors import UsageError

if TYPE_CHECKING:
    from intaglio.training import TrainedDrafts


HIDDEN_TRANSFER_EPILOG = """\b
Examples:
  intaglio train hidden-transfer ./gpt2 -o ./gpt2-drafting --data texts.txt
  intaglio train hidden-transfer ./gpt2 -o ./gpt2-drafting --data texts.txt --steps-ahead 2 --layers 6,8 --steps 2000
  intaglio export ./gpt2-drafting -o drafting
"""

MEDUSA_EPILOG = """\b
Examples:
  intaglio train medusa ./gpt2 -o ./gpt2-medusa --data texts.txt
  intaglio export ./gpt2-medusa -o medusa
"""


# The arguments and options that both kinds of drafts share.
draft_options = group(
    "Options",
    click.argument("source", type=PATH),
    click.option("-o", "--output", required=True, type=PATH, help="Output directory."),
    click.option(
        "--data",
        required=True,
        type=PATH,
        help="UTF-8 text or the output of generate --json, best the model's own texts. A tenth is held out.",
    ),
    click.option("--steps-ahead", default=3, help="Tokens to draft after the next one."),
    group(
        "Training",
        click.option("--steps", default=300, help="Steps of the optimiser for each step ahead."),
        click.option("--batch-size", default=8, help="Windows of text per step."),
        click.option("--max-tokens", default=128, help="Tokens per window."),
        click.option("--learning-rate", default=2e-3, help="Peak learning rate of Adam."),
        click.option("--seed", default=0, help="Random seed of the order of the windows."),
        click.option(
            "--precision",
            type=OneOf(["float32", "bfloat16"]),
            default="float32",
            help="Precision of matrix products; bfloat16 is twice as fast with AMX or AVX512-BF16, else far slower.",
        ),
    ),
    force_option,
    json_option,
)


@verb(
    "hidden-transfer",
    epilog=HIDDEN_TRANSFER_EPILOG,
    short_help="Train drafts from pseudo hidden states in middle layers.",
)
@draft_options
@section("Training")
@click.option("--layers", help="Block (from 0) before which each step ahead is computed, e.g. 6,7,9.")
def hidden_transfer_command(layers: str | None, as_json: bool, **options: Any) -> None:
    """Train projections with which the causal language model in the directory SOURCE drafts tokens itself.

    In a middle layer, the hidden states of a token are projected to pseudo hidden states of the tokens after it, which
    run through the remaining layers. The model's own weights do not change. The output can be exported like any other
    checkpoint; its graph then returns drafts besides the logits.
    """
    from intaglio.training import train_hidden_transfer

    chosen = None if layers is None else _numbers(layers, "--layers")
    _print_drafts(train_hidden_transfer(layers=chosen, **options), as_json)


@verb("medusa", epilog=MEDUSA_EPILOG, short_help="Train Medusa heads on the last layer, for comparison.")
@draft_options
def medusa_command(as_json: bool, **options: Any) -> None:
    """Train Medusa heads with which the causal language model in the directory SOURCE drafts tokens itself.

    For each step ahead, a residual block x + SiLU(x·W) on the last hidden states precedes the model's own head. The
    model's own weights do not change. Loss, data and number of trained parameters equal those of hidden-transfer.
    """
    from intaglio.training import train_medusa

    _print_drafts(train_medusa(**options), as_json)


def _numbers(text: str, option: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdecimal() for part in parts):
        raise UsageError(f"{option} {text!r}: expected comma-separated whole numbers, e.g. 6,7,9.")
    return [int(part) for part in parts]


def _print_drafts(result: TrainedDrafts, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    columns = ["step", "layer", "KL before", "KL", "top 1", "top 3"]
    rows = [
        (f"+{ahead}", "last" if step.layer is None else step.layer, step.kl_divergence_before, step.kl_divergence,
         f"{step.top1:.1%}", f"{step.top3:.1%}")
        for ahead, step in enumerate(result.steps, 1)
    ]  # fmt: skip
    print_table(f"Agreement with the model on {result.held_out:,} held-out tokens", columns, rows)
    say(f"{result.checkpoint}: {result.parameters:,} parameters of drafts, in {result.seconds:.0f} s")
