"""The gradients of a checkpoint by autograd in `transformers`: what sensitivities are compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def squared_gradients(checkpoint: Path, text: str, pieces: int, length: int) -> dict[str, np.ndarray]:
    """The mean squared gradient of each parameter by its name, over `pieces` of `length` tokens of `text`."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor(Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(text).ids)
    total: dict[str, torch.Tensor] = {}
    for piece in range(pieces):
        model.zero_grad()
        part = ids[None, piece * length : (piece + 1) * length]
        model(part, labels=part).loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                total[name] = total.get(name, torch.zeros(())) + parameter.grad**2 / pieces
    return {name: value.numpy() for name, value in total.items()}
