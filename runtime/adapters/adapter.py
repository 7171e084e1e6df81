"""An adapter as a low-rank change of products: x·Aᵀ·Bᵀ is added to the result of each, and no weight is changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.files.safetensors_header import DTYPES, Entry, read_header
from intaglio.runtime.adapters.folder import WEIGHTS, adapter_folder
from intaglio.runtime.adapters.settings import CONFIG, LoraSettings, read_settings

Floats = npt.NDArray[np.float32]

MERGE = "Merge it: intaglio export MODEL -o BUNDLE --adapter DIR"
PREFIX = "base_model.model."  # peft's, before the path in the model
BASE = ".base_layer."  # within a path: the module that an adapter's takes the place of
MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
# Parts of the names of other tensors that peft saves -> what they are.
OTHERS = {
    "modules_to_save": "all weights of a module (modules_to_save)",
    "lora_embedding_": "a change of an embedding",
    "lora_magnitude_vector": "magnitudes of DoRA",
    "trainable_tokens": "rows of single tokens (trainable_token_indices)",
    ".lora_B.bias": "a bias (lora_bias)",
    ".base_layer.": "a weight of the model itself (save_embedding_layers)",
    ".bias": "a bias (bias)",
}


@dataclass(frozen=True)
class LowRank:
    """The change of one product: factor·x·firstᵀ·second, in float32."""

    first: Floats  # [rank, inputs], A
    second: Floats  # [rank, outputs], Bᵀ
    factor: float

    @property
    def shape(self) -> tuple[int, int]:
        """Inputs and outputs of the product."""
        return int(self.first.shape[1]), int(self.second.shape[1])

    @property
    def rank(self) -> int:
        """Of the change."""
        return int(self.first.shape[0])


def read_adapter(location: str | Path) -> dict[str, LowRank]:
    """The changes of the adapter in a folder, by the paths of the modules in the model of transformers.

    Raises `SourceError` for an adapter that changes anything else than products, or is damaged.
    """
    folder = adapter_folder(location)
    settings = read_settings(folder)
    _check_settings(folder / CONFIG, settings)
    path = folder / WEIGHTS
    parts: dict[str, dict[str, Floats]] = {}
    entries, start = read_header(path)
    for name, entry in entries.items():
        found = MATRIX.fullmatch(name.removeprefix(PREFIX))
        if found is None:
            what = next((what for part, what in OTHERS.items() if part in name), "no matrix of LoRA")
            raise SourceError(f"{path}: {name[:200]} is {what}, expected lora_A and lora_B of linear layers. {MERGE}")
        module = found["module"].replace(BASE, ".")
        parts.setdefault(module, {})[found["part"]] = _read(path, name, entry, start)
    if not parts:
        raise SourceError(f"{path}: no tensors in it. Save the adapter again.")
    return {module: _low_rank(path, module, each, settings) for module, each in parts.items()}


def _check_settings(path: Path, settings: LoraSettings) -> None:
    """Raise `SourceError` for what is more than a change of products."""
    beyond: dict[str, Any] = {
        "use_dora": settings.use_dora,
        "modules_to_save": settings.modules_to_save,
        "trainable_token_indices": settings.trainable_token_indices,
        "bias": settings.bias if settings.bias != "none" else None,
    }
    if key := next((key for key, value in beyond.items() if value), None):
        raise SourceError(
            f"{path}: {key} is {str(beyond[key])[:80]!r}, which changes more than products, and cannot be chosen for "
            f"each request. {MERGE}"
        )


def _read(path: Path, name: str, entry: Entry, start: int) -> Floats:
    import ml_dtypes

    dtype = ml_dtypes.bfloat16 if entry.dtype == "BF16" else np.dtype(DTYPES[entry.dtype][0])
    if entry.dtype not in ("F64", "F32", "F16", "BF16"):
        raise SourceError(f"{path}: {name[:200]} is {DTYPES[entry.dtype][0]}, expected floating point. Save it again.")
    if len(entry.shape) != 2 or 0 in entry.shape:
        raise SourceError(f"{path}: {name[:200]} is {entry.shape}, expected a matrix of a linear layer. {MERGE}")
    begin, end = entry.data_offsets
    with path.open("rb") as file:
        file.seek(start + begin)
        numbers = np.frombuffer(file.read(end - begin), dtype).reshape(entry.shape).astype(np.float32)
    if not np.isfinite(numbers).all():
        raise SourceError(f"{path}: {name[:200]} has numbers that are not finite. Save the adapter again.")
    return numbers


def _low_rank(path: Path, module: str, parts: dict[str, Floats], settings: LoraSettings) -> LowRank:
    if missing := {"A", "B"} - parts.keys():
        raise SourceError(f"{path}: {module} has no lora_{missing.pop()}, expected both. Save the adapter again.")
    first, second, rank = parts["A"], parts["B"], settings.rank(module)
    if (first.shape[0], second.shape[1]) != (rank, rank):
        raise SourceError(
            f"{path}: the matrices for {module} have rank {first.shape[0]} and {second.shape[1]}, expected {rank}, as "
            "r and rank_pattern say. Save the adapter again."
        )
    return LowRank(first, np.ascontiguousarray(second.T), settings.scale(module))
