"""Train a LoRA adapter for a decoder on a text, with peft: one to try `--adapter` with.

    python examples/train_adapter.py examples/language_models/large --text TEXT -o my-lora

It changes all products of the layers, with rank 8, which takes a minute on a CPU for the model above.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import click
import peft
import torch
import transformers

WINDOW = 128  # tokens
BATCH = 8


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--text", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True, help="UTF-8.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option("--steps", default=60, show_default=True, type=click.IntRange(min=1))
@click.option("--rank", default=8, show_default=True, type=click.IntRange(min=1))
def command(checkpoint: Path, text: Path, output: Path, steps: int, rank: int) -> None:
    """Train, print the loss of the first and of the last ten steps, and save."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    tokens = torch.tensor(tokenizer(text.read_text(encoding="utf-8"), verbose=False)["input_ids"])
    if len(tokens) <= WINDOW:
        raise click.ClickException(f"{text}: {len(tokens)} tokens, expected more than {WINDOW}. Give more text.")
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    trained = peft.get_peft_model(model, settings)
    optimizer = torch.optim.AdamW([each for each in trained.parameters() if each.requires_grad], lr=1e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(tokens) - WINDOW, (BATCH,))
        rows = torch.stack([tokens[start : start + WINDOW] for start in starts])
        loss = trained(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    click.echo(f"loss: {mean(losses[:10]):.3f}, then {mean(losses[-10:]):.3f}")
    trained.save_pretrained(output)
    click.echo(f"{output}: an adapter of rank {rank}")


if __name__ == "__main__":
    command(prog_name="train_adapter.py")
