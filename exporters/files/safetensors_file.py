"""Read .safetensors files by mapping each tensor into memory separately.

Reading never executes anything from them. Each tensor has its own mapping, so that a weight can be
dropped from memory once it is written out, while the others stay unread.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from intaglio.extras import load
from intaglio.files.safetensors_header import DTYPES, SCALED_DTYPES, read_header

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class MappedTensor:
    """A tensor whose data stays in its file, at byte `offset`, until it is read."""

    tensor: torch.Tensor
    path: Path
    offset: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor."""
        return self.tensor.dtype


def map_tensors(path: Path, scaled: bool = False) -> dict[str, MappedTensor]:
    """Map every tensor of the file privately: a page is read from disk on first access.

    `scaled`: of `SCALED_DTYPES`, too. Raises `SourceError` for a damaged file, `MissingExtraError` without torch.
    """
    torch = load("torch")
    entries, start = read_header(path, scaled)
    tensors = {}
    with path.open("rb") as file:
        for name, entry in entries.items():
            dtype = getattr(torch, (DTYPES | SCALED_DTYPES)[entry.dtype][0])
            tensors[name] = map_tensor(path, file, start + entry.data_offsets[0], entry.shape, dtype)
    return tensors


def map_tensor(path: Path, file: BinaryIO, begin: int, shape: Sequence[int], dtype: torch.dtype) -> MappedTensor:
    """Map the tensor at byte `begin` of `path`, which is open as `file`, privately."""
    import torch

    if 0 in shape:
        return MappedTensor(torch.empty(shape, dtype=dtype), path, begin)
    page = begin // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    size = begin - page + prod(shape) * dtype.itemsize
    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, offset=page)
    flat = torch.frombuffer(mapped, dtype=dtype, count=prod(shape), offset=begin - page)
    return MappedTensor(flat.view(tuple(shape)), path, begin)
