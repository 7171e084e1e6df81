"""Decoders of any type with random weights, as checkpoints, without ever holding the model in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from benchmarks.shared import random_llama
from intaglio.exporters.checkpoints.checkpoint import CONFIG, WEIGHTS
from intaglio.runtime.text.tokenizer import TOKENIZER

COMMON = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def random_decoder(folder: Path, model_type: str, stored: str = "bfloat16", **options: Any) -> Path:
    """The checkpoint `folder` of a type of models, with `options` beside the defaults of its configuration."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(model_type, **{**COMMON, **options})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    tied = model.all_tied_weights_keys  # of a tensor and its copies, the file has the first
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}
    folder.mkdir(parents=True)
    random_llama.write_tokenizer(folder / TOKENIZER)
    norm = 0.0 if model_type.startswith("gemma") else 1.0  # Gemma adds one to the weights of its norms
    random_llama.write_weights(shapes, folder / WEIGHTS, stored, norm)
    config.dtype, config.architectures = getattr(torch, stored), [type(model).__name__]
    (folder / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(config.to_diff_dict()), indent=2))
    return folder


def parameters(folder: Path) -> int:
    """How many numbers the weights of a checkpoint are."""
    from safetensors import safe_open

    with safe_open(folder / WEIGHTS, "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    total = 0
    for shape in shapes:
        size = 1
        for length in shape:
            size *= length
        total += size
    return total
