"""The settings of an adapter: its adapter_config.json, as far as merging depends on it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from intaglio.errors import SourceError
from intaglio.files.json_decoder import json_decoder
from intaglio.files.json_object import read_json

CONFIG = "adapter_config.json"
MERGE = "Merge it with peft's merge_and_unload, save the result with save_pretrained, and export that."
# Settings of training, of the model that was trained, and of how the first numbers were chosen.
WITHOUT_EFFECT = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules",
    "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout",
    "lora_ga_config", "megatron_config", "megatron_core", "peft_type", "peft_version", "qalora_group_size", "revision",
    "runtime_config", "target_modules", "task_type",
})  # fmt: skip
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")  # ways to begin that also change the weights of the model
MOST_PATTERN = 200  # characters
MOST_QUANTIFIERS = 3  # of a pattern: matching takes at most the cube of a name's length

Rank = Annotated[int, msgspec.Meta(ge=1)]
Token = Annotated[int, msgspec.Meta(ge=0)]


class LoraSettings(msgspec.Struct, frozen=True):
    """What merging reads of adapter_config.json, with peft's defaults."""

    r: Rank = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, Rank] | None = None  # pattern of the ends of modules' paths -> rank
    alpha_pattern: dict[str, float] | None = None
    bias: str = "none"  # which biases the adapter has; its tensors say it
    modules_to_save: list[str] | None = None  # ends of the paths of modules of which it has all weights
    use_dora: bool = False
    init_lora_weights: bool | str | None = True
    trainable_token_indices: list[Token] | dict[str, list[Token]] | None = None

    def rank(self, module: str) -> int:
        """Of the matrices for the module at this path."""
        return int(_matching(self.rank_pattern, module, self.r))

    def scale(self, module: str) -> float:
        """The factor of the product of both matrices."""
        rank, alpha = self.rank(module), float(_matching(self.alpha_pattern, module, self.lora_alpha))
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def saves(self, path: str) -> bool:
        """Whether the parameter at this path is in a module of which the adapter has all weights."""
        parts = path.split(".")
        modules = [".".join(parts[:end]) for end in range(1, len(parts))]
        return any(module.endswith(name) for name in self.modules_to_save or () for module in modules)

    def tokens(self, module: str) -> list[int] | None:
        """The tokens whose rows the adapter has for the embedding at this path."""
        indices = self.trainable_token_indices
        if not isinstance(indices, dict):
            return indices
        return next((each for name, each in indices.items() if f".{module}".endswith(f".{name}")), None)


def read_settings(folder: Path) -> LoraSettings:
    """The settings of the adapter in `folder`. Raises `SourceError` for those that cannot be merged, by name."""
    path = folder / CONFIG
    fields = read_json(path)
    if (kind := fields.get("peft_type")) != "LORA":
        raise SourceError(f"{path}: peft_type is {repr(kind)[:40]}, expected 'LORA'. {MERGE}")
    known = WITHOUT_EFFECT | set(LoraSettings.__struct_fields__)
    if key := next((key for key, value in fields.items() if key not in known and value), None):
        raise SourceError(f"{path}: {key} is {str(fields[key])[:80]!r}, which is not supported. {MERGE}")
    try:
        json_decoder(LoraSettings)  # threads convert to it
        settings = msgspec.convert(fields, type=LoraSettings)
    except msgspec.ValidationError as error:
        raise SourceError(f"{path}: {error}. Fix it, or save the adapter again.") from error
    if settings.bias not in ("none", "all", "lora_only"):
        raise SourceError(f"{path}: bias is {settings.bias[:40]!r}, expected 'none', 'all' or 'lora_only'. Fix it.")
    start = str(settings.init_lora_weights).lower()
    if start.startswith(CHANGES_BASE):
        raise SourceError(
            f"{path}: init_lora_weights is {start[:40]!r}, which changes the weights of the model first. "
            "Save the adapter with peft's path_initial_model_for_weight_conversion."
        )
    _check_patterns(path, [*(settings.rank_pattern or ()), *(settings.alpha_pattern or ())])
    return settings


def _check_patterns(path: Path, patterns: Iterable[str]) -> None:
    """Refuse expressions that are wrong, or can take long to match."""
    for pattern in patterns:
        quantifiers = len(re.findall(r"[*+?{]", pattern))
        if len(pattern) > MOST_PATTERN or quantifiers > MOST_QUANTIFIERS or re.search(r"\)[*+?{]", pattern):
            raise SourceError(
                f"{path}: the pattern {pattern[:40]!r} can take long to match, expected the end of a module's path. "
                "List the modules instead."
            )
        try:
            re.compile(pattern)
        except (re.error, OverflowError) as error:
            raise SourceError(f"{path}: the pattern {pattern[:40]!r} is not valid ({error}). Fix it.") from error


def _matching(patterns: Mapping[str, Any] | None, module: str, otherwise: float) -> float:
    """The value of the first pattern that matches the end of the path, as peft looks it up."""
    found = (value for pattern, value in (patterns or {}).items() if re.match(rf"(.*\.)?({pattern})$", module))
    return next(found, otherwise)
