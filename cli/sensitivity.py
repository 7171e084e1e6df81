"""`intaglio sensitivity`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from intaglio.cli.options.choices import BUNDLE, PATH
from intaglio.cli.options.executor import executor_option
from intaglio.cli.printing.results import json_option, print_json, say, size
from intaglio.cli.running.command import verb

EPILOG = """\b
Examples:
  intaglio export ./checkpoint -o gpt2
  intaglio sensitivity gpt2 --calibration text.txt -o gpt2.sensitivity
  intaglio compress gpt2 -o gpt2-lut --recipe lut --calibration text.txt --sensitivity gpt2.sensitivity
"""


@verb("sensitivity", epilog=EPILOG)
@click.argument("bundle", type=BUNDLE)
@click.option("-o", "--output", required=True, type=PATH, help="Output file.")
@click.option("--calibration", required=True, type=PATH, help="UTF-8 text, like the text the model is used on.")
@click.option("--samples", default=100, help="Maximum number of text windows.")
@click.option("--tokens", default=512, help="Tokens per window, up to the model's maximum.")
@click.option("--threads", type=int, help="Threads of torch.  [default: torch's own]")
@executor_option
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@json_option
def sensitivity_command(output: Path, as_json: bool, **options: Any) -> None:
    """Measure how sensitive the loss of the decoder in BUNDLE is to each of its weights.

    The sensitivity is the mean squared gradient over the text, the diagonal of the Fisher information. Recipes use it
    to decide which weights to keep precise. The file is as large as the weights in float32.
    """
    from intaglio.training.gradients.sensitivity import sensitivity

    result = sensitivity(output=output, **options)
    if as_json:
        print_json(result)
        return
    say(
        f"{result.file}: {size(output.stat().st_size)}, {result.weights} matrices; {result.tokens:,} tokens in "
        f"{result.samples} windows, loss {result.loss:.3f} nats per token, in {result.seconds:.0f} s"
    )
