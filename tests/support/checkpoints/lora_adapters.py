"""Small random LoRA adapters as peft saves them, and its own merging as the oracle."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def save_adapter(checkpoint: Path, folder: Path, architecture: str = "LlamaForCausalLM", **options: Any) -> Path:
    """Write an adapter for `checkpoint` with peft's `options` into `folder`, with random numbers, and return it."""
    import peft
    import torch

    task = "SEQ_CLS" if "Classification" in architecture else "CAUSAL_LM"
    settings = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"], "task_type": task} | options
    generator = torch.Generator().manual_seed(1)
    with _advice_ignored(), torch.no_grad():
        model = peft.get_peft_model(_load(checkpoint, architecture), peft.LoraConfig(**settings))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
        model.save_pretrained(folder)
    return folder


def merged_by_peft(checkpoint: Path, adapter: Path, architecture: str = "LlamaForCausalLM") -> Any:
    """The model with the adapter in float32, as peft merges it."""
    import peft

    with _advice_ignored():
        model = peft.PeftModel.from_pretrained(_load(checkpoint, architecture), adapter)
        return model.merge_and_unload().eval()


def unmerged_by_peft(checkpoint: Path, adapter: Path, architecture: str = "LlamaForCausalLM") -> Any:
    """The model in float32 with the adapter beside its weights."""
    import peft

    with _advice_ignored():
        return peft.PeftModel.from_pretrained(_load(checkpoint, architecture), adapter).eval()


def peft_logits(model: Any, tokens: list[int]) -> Any:
    """Float32 [tokens, vocab] of a sequence."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def change_settings(adapter: Path, **settings: Any) -> None:
    """Change adapter_config.json."""
    path = adapter / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def change_tensors(adapter: Path, **changes: Any) -> None:
    """Replace tensors by the ends of their names, with `__` for a dot; None removes them, a text renames them."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(adapter / WEIGHTS)
    for end, value in changes.items():
        for name in [name for name in tensors if name.endswith(end.replace("__", "."))]:
            tensor = tensors.pop(name)
            if isinstance(value, str):
                tensors[name.replace(end.replace("__", "."), value)] = tensor
            elif value is not None:
                tensors[name] = value(tensor).contiguous()
    save_file(tensors, adapter / WEIGHTS)


@contextmanager
def _advice_ignored() -> Iterator[None]:
    """Let peft warn, about tied weights and about names in transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _load(checkpoint: Path, architecture: str) -> Any:
    import torch
    import transformers

    return getattr(transformers, architecture).from_pretrained(checkpoint, dtype=torch.float32)
