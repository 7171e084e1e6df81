"""Write tensors into the files of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from intaglio.exporters.checkpoints.checkpoint import INDEX, WEIGHTS

if TYPE_CHECKING:
    import torch

LARGEST_PART = 1 << 31  # bytes of a file of weights, which are in memory while it is written


def write_parts(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Write the tensors into model.safetensors, or into several files with an index."""
    from safetensors.torch import save_file

    files: list[tuple[Path, list[str]]] = []
    part: dict[str, torch.Tensor] = {}
    total = 0

    def flush() -> None:
        path = folder / f"part-{len(files)}"
        save_file(part, path, {"format": "pt"})
        files.append((path, list(part)))
        part.clear()

    for name, tensor in tensors:
        if part and sum(each.nbytes for each in part.values()) + tensor.nbytes > LARGEST_PART:
            flush()
        part[name] = tensor
        total += tensor.nbytes
    flush()
    if len(files) == 1:
        files[0][0].rename(folder / WEIGHTS)
        return
    places: dict[str, str] = {}
    for index, (path, names) in enumerate(files, 1):
        place = f"model-{index:05}-of-{len(files):05}.safetensors"
        path.rename(folder / place)
        places |= dict.fromkeys(names, place)
    listed = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(listed, indent=2), encoding="utf-8")
