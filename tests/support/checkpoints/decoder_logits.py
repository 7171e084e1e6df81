"""Reference logits of transformers for decoders, and the comparison of exported graphs with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.exporters.decoders.check import stepwise_outputs
from intaglio.runtime.sessions.step import decoder_of

TEXTS = [
    [72, 101, 108, 108, 111, 32, 119, 111],
    [84, 104, 101],
    [65, 32, 99, 97, 116, 32, 115, 97, 116, 32, 111, 110, 46],
]


def source_logits(checkpoint: Path, texts: list[list[int]]) -> list[Any]:
    """The logits of transformers in float32, each text alone and without a cache: [tokens, vocab]."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([text])).logits[0].numpy() for text in texts]


def assert_same_logits(checkpoint: Path, bundle: Path, texts: list[list[int]] = TEXTS) -> None:
    """Assert that the logits of the graph, in a padded batch and in decode steps, equal the source."""
    opened = Bundle.open(bundle)
    found = stepwise_outputs(opened.model_path, decoder_of(opened), texts)["logits"]
    for actual, expected in zip(found, source_logits(checkpoint, texts), strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-6 * np.abs(expected).max(), rtol=0)


def rewrite(checkpoint: Path, folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]], **config: Any) -> Path:
    """A copy of a checkpoint in `folder` with changed tensors and configuration."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, folder)
    tensors = {name: tensor.contiguous() for name, tensor in change(load_file(folder / "model.safetensors")).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, **config}))
    return folder
