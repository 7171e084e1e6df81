"""Recognise adapters of peft: beside the weights of a model, without them, and inside them but not merged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.files.config import read_json
from intaglio.exporters.files.safetensors_file import read_entries

CONFIG = "adapter_config.json"
WEIGHTS = (
    *("adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors", "pytorch_adapter.bin"),
    *("pytorch_lora_weights.safetensors", "pytorch_lora_weights.bin"),
)
KEYS = ("has_lora_adapter", "lora_adaptations", "peft_config", "_adapter_model_path", "adapter_path", "adapters")
TENSOR = re.compile(r"\.(lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|base_layer|ia3_l|hada_w\d_[ab])(\.|$)")
TASKS = {  # task_type of adapter_config.json -> the end of the name of peft's class
    "CAUSAL_LM": "ForCausalLM",
    "SEQ_2_SEQ_LM": "ForSeq2SeqLM",
    "SEQ_CLS": "ForSequenceClassification",
    "FEATURE_EXTRACTION": "ForFeatureExtraction",
}
PROMPTS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT")


def check_no_adapter(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise `SourceError` if `folder`, or a subfolder that its config.json names, has an adapter."""
    named = set(_strings(config))
    for place in (folder, *(child for child in sorted(folder.iterdir()) if child.is_dir() and _names(named, child))):
        if found := _adapter(place):
            raise SourceError(
                f"{found}: an adapter ({_kind(place)}) beside the weights, which export would leave out. "
                f"{_merge(place)} To export the model without it, remove it from a copy of the folder."
            )
    if key := next((key for key in KEYS if config.get(key)), None):
        raise SourceError(
            f"{folder}: config.json names an adapter ({key}), which export would leave out. "
            "Merge it with peft's merge_and_unload, save the result with save_pretrained, and export that."
        )


def check_merged(folder: Path, paths: Iterable[Path]) -> None:
    """Raise `SourceError` if the weights in `paths` have an adapter in them that was not merged."""
    for path in paths:
        if name := next(filter(TENSOR.search, read_entries(path)[0]), None):
            raise SourceError(
                f"{folder}: its weights have an adapter in them that is not merged (tensor {name}). Load it as "
                "saved, merge it with peft's merge_and_unload, save the result with save_pretrained, and export that."
            )


def adapter_alone(folder: Path) -> SourceError | None:
    """The error for a folder that has an adapter and no config.json of a model, or None."""
    found = _adapter(folder)
    if found is None:
        return None
    base = _settings(folder).get("base_model_name_or_path")
    of = f", {base[:200]}" if isinstance(base, str) and base else ""
    return SourceError(f"{found}: an adapter ({_kind(folder)}) without its model{of}. {_merge(folder)}")


def left_out(folder: Path) -> list[str]:
    """A line for each subfolder with an adapter that is not part of the model."""
    return [
        f"{child.name}/ has an adapter ({_kind(child)}), which is left out"
        for child in sorted(folder.iterdir())
        if child.is_dir() and _adapter(child)
    ]


def _adapter(folder: Path) -> Path | None:
    return next((folder / name for name in (CONFIG, *WEIGHTS) if (folder / name).is_file()), None)


def _settings(folder: Path) -> dict[str, Any]:
    return read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}


def _kind(folder: Path) -> str:
    return str(_settings(folder).get("peft_type") or "LoRA")[:40]


def _merge(place: Path) -> str:
    settings = _settings(place)
    if settings.get("peft_type") in PROMPTS:
        return "Trained prompts cannot be merged and are not supported."
    task = TASKS.get(str(settings.get("task_type")), "ForCausalLM")
    return (
        f'Merge it: python -c "from peft import AutoPeftModel{task} as M; '
        f"M.from_pretrained('{place}').merge_and_unload().save_pretrained('MERGED')\", "
        "copy the tokenizer's files there, and export MERGED."
    )


def _names(named: set[str], child: Path) -> bool:
    """Whether one of the strings of config.json is the folder's name, or a path to it."""
    return any(child.name in re.split(r"[/\\]", text) for text in named)


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, the keys of objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
