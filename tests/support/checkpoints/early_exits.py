"""Early exits of small decoders, and their reference: a model of the first blocks with the same weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import msgspec

from intaglio.networks.early_exit import RECORD, EarlyExit


def save_early_exit(checkpoint: Path, folder: Path, layer: int | Literal["every"] = 1) -> Path:
    """A copy of `checkpoint` in `folder` with an exit after `layer` blocks, or after every block."""
    shutil.copytree(checkpoint, folder)
    (folder / RECORD).write_bytes(msgspec.json.encode(EarlyExit(layer)))
    return folder


def shortened(checkpoint: Path, layer: int) -> Any:
    """The float32 model of `transformers` with only the first `layer` blocks of `checkpoint`."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    config.num_hidden_layers = layer
    transformers.utils.logging.set_verbosity_error()
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint, config=config, dtype=torch.float32).eval()


def exit_logits(checkpoint: Path, layer: int, texts: list[list[int]]) -> list[Any]:
    """Logits [tokens, vocab] of each text, from one forward pass."""
    import torch

    model = shortened(checkpoint, layer)
    with torch.inference_mode():
        return [model(torch.tensor([text]), use_cache=False).logits[0].numpy() for text in texts]
