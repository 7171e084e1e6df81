"""`intaglio train align`."""

from __future__ import annotations

from typing import Any

import click

from intaglio.cli.options.choices import BUNDLE, DTYPE, PATH
from intaglio.cli.options.runtime import target_option, threads_option
from intaglio.cli.printing.results import force_option, json_option, print_json, print_table, say
from intaglio.cli.running.command import section, verb

EPILOG = """\b
Examples:
  intaglio export ./gpt2-xl -o gpt2-xl
  intaglio train align ./gpt2 -o ./gpt2-aligned --teacher gpt2-xl --data texts.txt
  intaglio train align ./t5-small -o ./t5-aligned --teacher t5-large --data prompts.jsonl --steps 2000 --json
  intaglio export ./gpt2-aligned -o aligned
  intaglio generate gpt2-xl --draft aligned --strategy bild "Once upon a time"
"""


@verb("align", epilog=EPILOG, short_help="Align a small (draft) model with the large (target) one.")
@click.argument("source", metavar="SMALL", type=PATH)
@click.option("-o", "--output", required=True, type=PATH, help="Output directory.")
@click.option("--teacher", required=True, type=BUNDLE, help="Bundle of the large model.")
@click.option(
    "--data",
    required=True,
    type=PATH,
    help='Prompts: JSON lines {"prompt": ...}, or UTF-8 text to cut into windows. A tenth is held out.',
)
@click.option("--prompt-tokens", default=64, help="Tokens per window of text.")
@click.option("-n", "--max-new-tokens", default=128, help="Maximum number of new tokens per prompt.")
@click.option("--texts", type=int, help="Use only the first prompts of --data.  [default: all]")
@section("Training")
@click.option("--steps", default=300, help="Steps of the optimiser.")
@click.option("--batch-size", default=8, help="Batch size, of training and of generation.")
@click.option("--learning-rate", default=2e-4, help="Learning rate of Adam.")
@click.option("--dtype", type=DTYPE, help="Dtype of the written weights.  [default: unchanged]")
@click.option("--seed", default=0, help="Random seed of the order of the texts.")
@target_option("Runtime for the large model")
@threads_option("CPU threads of the large model")
@force_option
@json_option
def align_command(as_json: bool, **options: Any) -> None:
    """Fine-tune the model in the directory SMALL on the large model's texts, so that more of its drafts are accepted.

    Both are causal language models, or both encoder-decoders, with the same tokenizer. The large model generates a text
    after each prompt, greedily; then the small one is trained on its tokens. The output can be exported like any other
    checkpoint.
    """
    from intaglio.training import align

    result = align(**options)
    if as_json:
        print_json(result)
        return
    rows = [
        ("before", result.loss_before, f"{result.agreement_before:.1%}"),
        ("after", result.loss, f"{result.agreement:.1%}"),
    ]
    print_table(f"On {result.held_out:,} held-out tokens", ["", "loss", "agreement"], rows)
    say(
        f"{result.checkpoint}: trained for {result.steps} steps on {result.texts:,} texts of {result.teacher}, "
        f"{result.tokens:,} tokens, in {result.seconds:.0f} s"
    )
