"""`intaglio train`: one sub-command per method, in a file of its own."""

from __future__ import annotations

import click

from intaglio.cli.running.command import VerbGroup
from intaglio.cli.train.align import align_command
from intaglio.cli.train.drafts import hidden_transfer_command, medusa_command
from intaglio.cli.train.early_exit import early_exit_command
from intaglio.cli.train.int8_only import int8_only_command
from intaglio.cli.train.ngram import ngram_command
from intaglio.cli.train.prune import prune_command
from intaglio.cli.train.speech import speech_command

EPILOG = """\b
Examples:
  intaglio train int8-only minilm-int8 -o minilm-tuned --teacher minilm --data texts.txt
  intaglio train prune ./gpt2 -o ./gpt2-pruned --data texts.txt --fraction 0.5
  intaglio train align ./gpt2 -o ./gpt2-aligned --teacher gpt2-xl --data prompts.jsonl
  intaglio train hidden-transfer ./gpt2 -o ./gpt2-drafting --data texts.txt
  intaglio train early-exit ./gpt2 -o ./gpt2-exit --data texts.txt
  intaglio train speech corpus -o ./squeezeformer --minutes 60
"""

METHODS = [
    int8_only_command,
    prune_command,
    align_command,
    early_exit_command,
    hidden_transfer_command,
    medusa_command,
    speech_command,
    ngram_command,
]


@click.group("train", cls=VerbGroup, epilog=EPILOG, commands=METHODS)
def train_command() -> None:
    """Fine-tune a compressed bundle, a draft model, or a checkpoint while it is pruned; train a speech recogniser."""
