"""Read .safetensors files by mapping each tensor into memory separately.

The format: 8 bytes with the header's length, a JSON header (tensor name -> dtype, shape, [begin, end) of its
data), the data. Reading never executes anything from it. Each tensor has its own mapping, so that a weight can be
dropped from memory once it is written out, while the others stay unread.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from intaglio.errors import SourceError
from intaglio.extras import load

if TYPE_CHECKING:
    import torch

MAX_HEADER = 16 << 20  # bytes, some 100,000 tensors; parsing takes 20 times that in memory
LONGEST = (1 << 63) - 1  # of an axis
FIX = "Download or copy the file again."

# safetensors dtype -> torch dtype's name, bytes of an element
DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
# Those whose numbers mean nothing without a scale, for readers that know where it is.
SCALED_DTYPES = {"F8_E4M3": ("float8_e4m3fn", 1), "F8_E8M0": ("float8_e8m0fnu", 1)}


class Entry(msgspec.Struct):
    """One tensor of the header; `data_offsets` are relative to the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_header(path: Path, scaled: bool = False) -> tuple[dict[str, Entry], int]:
    """Return tensor name -> entry, and the file offset where the data begins. Raises `SourceError` if damaged.

    `scaled`: tensors of `SCALED_DTYPES` are accepted, too.
    """
    entries, start = read_entries(path)
    size = path.stat().st_size
    for name, entry in entries.items():
        _check(path, name, entry, scaled)
    covered = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.data_offsets[0] != covered:
            raise SourceError(
                f"{path}: tensor {name} begins at {entry.data_offsets[0]}, expected {covered}, the end of the previous "
                f"tensor. {FIX}"
            )
        covered = entry.data_offsets[1]
    if start + covered != size:
        problem = "truncated" if start + covered > size else "more data than its header lists"
        raise SourceError(f"{path}: {problem}: {size} bytes, expected {start + covered}. {FIX}")
    return entries, start


def read_entries(path: Path) -> tuple[dict[str, Entry], int]:
    """What `read_header` returns, of a header whose tensors are not compared with the file's data, of any dtype."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER:
                raise SourceError(f"{path}: a header of {length} bytes, expected at most {MAX_HEADER}. {FIX}")
            if length > size - 8:
                raise SourceError(f"{path}: truncated: {size} bytes, expected {8 + length} for the header alone. {FIX}")
            raw = file.read(length)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}. {FIX}") from error
    try:
        fields = msgspec.json.decode(raw, type=dict[str, Any])
        fields.pop("__metadata__", None)
        return msgspec.convert(fields, type=dict[str, Entry]), 8 + length
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{path}: damaged header ({error}). {FIX}") from error


def _check(path: Path, name: str, entry: Entry, scaled: bool) -> None:
    known = DTYPES | SCALED_DTYPES if scaled else DTYPES
    if entry.dtype not in known:
        raise SourceError(f"{path}: tensor {name} has dtype {entry.dtype}, expected one of {', '.join(known)}.")
    begin, end = entry.data_offsets
    expected = prod(entry.shape) * known[entry.dtype][1]
    lengths_fit = all(0 <= length <= LONGEST for length in entry.shape)
    if begin < 0 or not lengths_fit or end - begin != expected:
        raise SourceError(
            f"{path}: tensor {name} {entry.dtype} {entry.shape} has {end - begin} bytes, expected {expected}. {FIX}"
        )


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
