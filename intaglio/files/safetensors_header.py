"""Read and check the header of a .safetensors file: which tensors it has, and where their data is.

The format: 8 bytes with the header's length, a JSON header (tensor name -> dtype, shape, [begin, end) of its data), the
data.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import msgspec

from intaglio.errors import SourceError

MAX_HEADER = 16 << 20  # bytes, some 100,000 tensors; parsing takes 20 times that in memory
LONGEST = (1 << 63) - 1  # of an axis
FIX = "Download or copy the file again."

# safetensors dtype -> the dtype's name in NumPy and torch, bytes of an element
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
