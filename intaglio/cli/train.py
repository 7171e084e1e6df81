"""`intaglio train`: one sub-command per method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from intaglio.cli.output import force_option, json_option, print_json, print_table
from intaglio.errors import UsageError

if TYPE_CHECKING:
    from intaglio.training import TrainedDrafts

EPILOG = """\b
Examples:
  intaglio train int8-only minilm-int8 -o minilm-tuned --teacher minilm --data texts.txt
  intaglio train prune ./gpt2 -o ./gpt2-pruned --data texts.txt --fraction 0.5
  intaglio train hidden-transfer ./gpt2 -o ./gpt2-drafting --data texts.txt
"""

INT8_ONLY_EPILOG = """\b
Examples:
  intaglio export ./all-MiniLM-L6-v2 -o minilm
  intaglio compress minilm -o minilm-int8 --recipe int8-only --calibration texts.txt
  intaglio train int8-only minilm-int8 -o minilm-tuned --teacher minilm --data more-texts.txt
  intaglio train int8-only minilm-int8 -o minilm-tuned --teacher minilm --data more-texts.txt --steps 1000 --json
"""

PRUNE_EPILOG = """\b
Examples:
  intaglio train prune ./gpt2 -o ./gpt2-half --data texts.txt --fraction 0.5
  intaglio train prune ./gpt2 -o ./gpt2-slim --data texts.txt --by rows --fraction 0.25 --schedule separate
  intaglio export ./gpt2-slim -o slim
"""

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


@click.group("train", epilog=EPILOG)
def train_command() -> None:
    """Fine-tune: what a compression method made, a checkpoint that is pruned on the way, or drafts for a checkpoint."""


@train_command.command("int8-only", epilog=INT8_ONLY_EPILOG, short_help="What the recipe int8-only made: its integers.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle to make.")
@click.option(
    "--teacher", required=True, type=click.Path(path_type=Path), help="The floating-point bundle BUNDLE was made from."
)
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="Real inputs, without labels: UTF-8, one text a line, or .npz arrays by input name. A tenth is held out.",
)
@click.option("--steps", default=200, show_default=True, help="Steps of the optimiser.")
@click.option("--batch-size", default=8, show_default=True, help="Texts per step.")
@click.option(
    "--learning-rate", default=0.02, show_default=True, help="Of weights: units of their 8 bits that a step moves."
)
@click.option(
    "--bias-learning-rate", default=0.01, show_default=True, help="Of biases and normalisations, in like units."
)
@click.option("--max-tokens", default=128, show_default=True, help="Where longer texts are cut.")
@click.option("--embeddings", is_flag=True, help="Train the embedding tables too.")
@click.option("--seed", default=0, show_default=True, help="Of the order of the texts, and of which are held out.")
@force_option
@json_option
def int8_only_command(
    bundle: Path,
    output: Path,
    teacher: Path,
    data: Path,
    steps: int,
    batch_size: int,
    learning_rate: float,
    bias_learning_rate: float,
    max_tokens: int,
    embeddings: bool,
    seed: int,
    force: bool,
    as_json: bool,
) -> None:
    """Fine-tune the integers of BUNDLE, which the recipe int8-only made, to give what its teacher gives.

    Weights, biases and normalisations are trained with the integer arithmetic that the bundle runs with; scales stay.
    Of the states evaluated on held-out texts the best is kept, the one given among them.
    """
    from intaglio.training import train_int8_only

    result = train_int8_only(
        bundle, output, teacher, data, steps, batch_size, learning_rate, bias_learning_rate, max_tokens, embeddings,
        seed, force,
    )  # fmt: skip
    if as_json:
        print_json(result)
        return
    rows = [("before", result.loss_before), ("after", result.loss_after)]
    print_table(f"Distance to {result.teacher} on {result.held_out} held-out texts", ["", "loss"], rows)
    outputs = ", ".join(result.outputs)
    click.echo(f"The loss is of {outputs}; the best state is that of step {result.best_step} of {result.steps}.")
    click.echo(f"{result.bundle}: {result.changed:,} of {result.trained:,} integers changed, in {result.seconds:.0f} s")


@train_command.command("prune", epilog=PRUNE_EPILOG, short_help="A decoder's checkpoint, while weights are pruned.")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to make.")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="UTF-8 text. A tenth is held out.")
@click.option("--fraction", default=0.5, show_default=True, help="Of each layer, what is pruned in the end.")
@click.option(
    "--by",
    type=click.Choice(["magnitude", "rows"]),
    default="magnitude",
    show_default=True,
    help="Single weights become 0, or hidden channels of the feed-forward networks are removed.",
)
@click.option(
    "--schedule",
    type=click.Choice(["separate", "linear", "cubic"]),
    default="cubic",
    show_default=True,
    help="Prune before each stage; or before every step, evenly, or fast at first.",
)
@click.option("--stages", default=5, show_default=True, help="Stages of pruning, after one without.")
@click.option("--steps", default=100, show_default=True, help="Steps of the optimiser in each stage.")
@click.option("--batch-size", default=8, show_default=True, help="Windows of text per step.")
@click.option("--max-tokens", default=256, show_default=True, help="Tokens of a window.")
@click.option("--learning-rate", default=1e-4, show_default=True, help="Of Adam.")
@click.option("--multiple", default=32, show_default=True, help="By rows: a multiple of so many channels stays.")
@click.option(
    "--dtype", type=click.Choice(["float32", "float16"]), help="Of the weights written; by default as they were."
)
@click.option("--seed", default=0, show_default=True, help="Of the order of the windows.")
@json_option
def prune_command(
    source: Path,
    output: Path,
    data: Path,
    fraction: float,
    by: Literal["magnitude", "rows"],
    schedule: Literal["separate", "linear", "cubic"],
    stages: int,
    steps: int,
    batch_size: int,
    max_tokens: int,
    learning_rate: float,
    multiple: int,
    dtype: Literal["float32", "float16"] | None,
    seed: int,
    as_json: bool,
) -> None:
    """Fine-tune the causal language model in the folder SOURCE on text, and prune it on the way.

    The folder that is made can be exported like any other. Weights that became 0 stay in it; channels that were
    removed are gone from its matrices.
    """
    from intaglio.training import prune

    result = prune(
        source, output, data, fraction, by, schedule, stages, steps, batch_size, max_tokens, learning_rate, multiple,
        dtype, seed,
    )  # fmt: skip
    if as_json:
        print_json(result)
        return
    rows: list[tuple[str, float, float]] = [("as it was", 0.0, result.loss_before)]
    rows += [(f"stage {number}", stage.fraction, stage.loss) for number, stage in enumerate(result.stages)]
    print_table(f"Loss on {result.held_out:,} held-out tokens", ["", "pruned", "loss"], rows)
    click.echo(
        f"{result.checkpoint}: {result.parameters_before:,} -> {result.parameters:,} parameters, "
        f"{result.zeros:,} of them pruned to 0, in {result.seconds:.0f} s"
    )


def draft_options(command: Callable[..., None]) -> Callable[..., None]:
    """The arguments and options that both kinds of drafts have."""
    options = [
        click.argument("source", type=click.Path(path_type=Path)),
        click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to make."),
        click.option("--data", required=True, type=click.Path(path_type=Path), help="UTF-8 text. A tenth is held out."),
        click.option(
            "--steps-ahead", default=3, show_default=True, help="Tokens that are drafted, after the next one."
        ),
        click.option("--steps", default=300, show_default=True, help="Steps of the optimiser for each step ahead."),
        click.option("--batch-size", default=8, show_default=True, help="Windows of text per step."),
        click.option("--max-tokens", default=128, show_default=True, help="Tokens of a window."),
        click.option("--learning-rate", default=2e-3, show_default=True, help="Of Adam, at its highest."),
        click.option("--seed", default=0, show_default=True, help="Of the order of the windows."),
        json_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@train_command.command(
    "hidden-transfer", epilog=HIDDEN_TRANSFER_EPILOG, short_help="Drafts from pseudo hidden states in middle layers."
)
@draft_options
@click.option("--layers", help="The block, from 0, that each step ahead stands before, such as 6,7,9.")
def hidden_transfer_command(
    source: Path,
    output: Path,
    data: Path,
    steps_ahead: int,
    layers: str | None,
    steps: int,
    batch_size: int,
    max_tokens: int,
    learning_rate: float,
    seed: int,
    as_json: bool,
) -> None:
    """Train projections with which the causal language model in the folder SOURCE drafts tokens itself.

    In a middle layer the hidden states of a token become pseudo hidden states of the tokens after it, which go through
    the remaining layers. The model's own weights stay as they are. The folder that is made can be exported like any
    other; its graph then gives drafts besides the logits.
    """
    from intaglio.training import train_hidden_transfer

    chosen = None if layers is None else _numbers(layers, "--layers")
    result = train_hidden_transfer(
        source, output, data, steps_ahead, chosen, steps, batch_size, max_tokens, learning_rate, seed
    )
    _print_drafts(result, as_json)


@train_command.command("medusa", epilog=MEDUSA_EPILOG, short_help="Drafts from heads on the last layer, to compare.")
@draft_options
def medusa_command(
    source: Path,
    output: Path,
    data: Path,
    steps_ahead: int,
    steps: int,
    batch_size: int,
    max_tokens: int,
    learning_rate: float,
    seed: int,
    as_json: bool,
) -> None:
    """Train Medusa heads with which the causal language model in the folder SOURCE drafts tokens itself.

    For each step ahead a residual block, x + SiLU(x·W) of the last hidden states, before the model's own head. The
    model's own weights stay as they are. Loss, text and numbers that are trained are those of hidden-transfer.
    """
    from intaglio.training import train_medusa

    result = train_medusa(source, output, data, steps_ahead, steps, batch_size, max_tokens, learning_rate, seed)
    _print_drafts(result, as_json)


def _numbers(text: str, option: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdecimal() for part in parts):
        raise UsageError(f"{option} {text!r}: expected whole numbers with commas between them, such as 6,7,9.")
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
    click.echo(f"{result.checkpoint}: {result.parameters:,} parameters of drafts, in {result.seconds:.0f} s")
