"""Open an adapter of peft, and recognise those that are not opened.

They are beside the weights of a model, without them, or inside them but not merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.lora.adapter import Adapter
from intaglio.files.json_object import read_json
from intaglio.files.safetensors_header import read_entries
from intaglio.runtime.adapters.folder import PICKLE, adapter_folder
from intaglio.runtime.adapters.folder import WEIGHTS as MERGEABLE
from intaglio.runtime.adapters.settings import CONFIG

WEIGHTS = (
    *(MERGEABLE, PICKLE, "adapters.safetensors", "pytorch_adapter.bin"),
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
MERGED = "LORA"  # the type that export merges
PROMPTS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT")


def open_adapter(location: str | Path) -> Adapter:
    """The adapter in a local folder. Raises `SourceError` for one that export does not merge."""
    return Adapter.open(adapter_folder(location))


def check_no_adapter(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise `SourceError` if `folder`, or a subfolder that its config.json names, has an adapter."""
    named = set(_strings(config))
    for place in (folder, *(child for child in sorted(folder.iterdir()) if child.is_dir() and _names(named, child))):
        if found := _adapter(place):
            raise SourceError(
                f"{found}: an adapter ({_kind(place)}) beside the weights, which export would leave out. "
                "To export the model without it, remove it from a copy of the folder. "
                f"{_merge(place, str(folder), beside=True)}"
            )
    if key := next((key for key in KEYS if config.get(key)), None):
        raise SourceError(
            f"{folder}: config.json names an adapter ({key}), which export would leave out. "
            "Remove the key in a copy of the folder, and give the adapter's folder: --adapter DIR."
        )


def check_merged(folder: Path, paths: Iterable[Path]) -> None:
    """Raise `SourceError` if the weights in `paths` have an adapter in them that was not merged."""
    for path in paths:
        if name := next(filter(TENSOR.search, read_entries(path)[0]), None):
            raise SourceError(
                f"{folder}: its weights have an adapter in them that is not merged (tensor {name}). Load it as "
                "saved, merge it with peft's merge_and_unload, save the result with save_pretrained, and export that."
            )


def adapter_alone(folder: Path, given: str = "") -> SourceError | None:
    """The error for a folder that has an adapter and no config.json of a model, or None.

    `given`: the source as named by the user, which may be a hub id.
    """
    found = _adapter(folder)
    if found is None:
        return None
    base = _settings(folder).get("base_model_name_or_path")
    base = base[:200] if isinstance(base, str) else ""
    of = f", {base}" if base else ""
    fix = _merge(folder, base or "MODEL", beside=False, download=given if not Path(given).exists() else "")
    return SourceError(f"{found}: an adapter ({_kind(folder)}) without its model{of}. {fix}")


def left_out(folder: Path, merged: str | Path | None = None) -> list[str]:
    """A line for each subfolder with an adapter that is not part of the model, except the one that is merged."""
    return [
        f"{child.name}/ has an adapter ({_kind(child)}), which is left out"
        for child in sorted(folder.iterdir())
        if child.is_dir() and _adapter(child) and not (merged is not None and child.samefile(merged))
    ]


def _adapter(folder: Path) -> Path | None:
    return next((folder / name for name in (CONFIG, *WEIGHTS) if (folder / name).is_file()), None)


def _settings(folder: Path) -> dict[str, Any]:
    return read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}


def _kind(folder: Path) -> str:
    return str(_settings(folder).get("peft_type") or "LoRA")[:40]


def _merge(place: Path, model: str, beside: bool, download: str = "") -> str:
    """What to do with the adapter in `place`, which may be `beside` the `model`, or one of the hub to `download`."""
    settings = _settings(place)
    if settings.get("peft_type") in PROMPTS:
        return "Trained prompts cannot be merged and are not supported."
    if settings.get("peft_type", MERGED) == MERGED:
        folder = "DIR" if beside or download else str(place)
        first = f"Download it: hf download {download} --local-dir DIR, and then" if download else "Merge it"
        first = "Move its files to a folder DIR of their own, and merge them" if beside else first
        return f"{first}: intaglio export {model} -o BUNDLE --adapter {folder}"
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
