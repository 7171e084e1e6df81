"""A checkpoint in a folder: config.json with the settings of the quantisation, safetensors, the tokenizer's files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.display.progress import track
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import CONFIG
from intaglio.exporters.checkpoints.quantized.formats import SECTION, WRITERS
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight
from intaglio.exporters.checkpoints.quantized.methods import SECTIONS
from intaglio.exporters.from_bundle.graph_weights import HEAD, WEIGHT, GraphWeights
from intaglio.exporters.writing.safetensors_parts import write_parts

if TYPE_CHECKING:
    import torch


def write_folder(folder: Path, form: str, weights: GraphWeights, config: Mapping[str, Any]) -> list[str]:
    """Write the weights in the format `form`, and config.json; return notes for the user.

    Raises `SourceError` for a weight that the format does not hold, and where none is quantised.
    """
    writer, grouped = WRITERS[form], weights.grouped
    if not grouped:
        raise SourceError(
            f"--format {form}: no weight is quantised in groups. Compress the bundle with gptq, awq or rtn."
        )
    left = {key: value for key, value in config.items() if key not in SECTIONS}
    changed = {"tie_word_embeddings": False} if HEAD in weights.tensors else {}
    settings = {**left, **changed, SECTION: writer.settings(grouped, weights.float_layers)}
    (folder / CONFIG).write_text(json.dumps(settings, indent=2, ensure_ascii=False), encoding="utf-8")
    preferred = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    notes: list[str] = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in track(weights.tensors.items(), form, total=len(weights.tensors)):
            path = name.removesuffix(WEIGHT)
            if path in grouped:
                for part, tensor in _parts(form, path, grouped[path], preferred).items():
                    yield f"{path}.{part}", tensor
                continue
            if isinstance(weight, GroupedWeight):
                notes.append(f"{path}: its codes are written as the numbers that they stand for, in floating point")
            yield name, narrowed(weight.tensor, preferred)

    write_parts(folder, tensors())
    return notes


def narrowed(tensor: torch.Tensor, preferred: str) -> torch.Tensor:
    """A float32 tensor in the dtype `preferred`, or in float16, if that has the same numbers; else itself."""
    import torch

    for name in (preferred, "float16"):
        dtype = getattr(torch, name, torch.float32)
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize == 2:
            small = tensor.to(dtype)
            if torch.equal(small.float(), tensor):
                return small.contiguous()
    return tensor.contiguous()


def _parts(form: str, path: str, weight: GroupedWeight, preferred: str) -> dict[str, torch.Tensor]:
    import torch

    parts = {part: torch.from_numpy(array) for part, array in WRITERS[form].stored(path, weight).items()}
    return {part: narrowed(each, preferred) if each.dtype == torch.float32 else each for part, each in parts.items()}
