"""Read the container GGUF: keys with values, then where each tensor lies in the file. Nothing in it is executed.

"GGUF", version u32, number of tensors u64, number of keys u64
keys      name, type u32, value; a string is its length u64 and bytes, an array its type u32, length u64 and values
tensors   name, number of axes u32, lengths u64 (the innermost first), type u32, offset u64 from the data's begin
data      begins at a multiple of "general.alignment", 32 bytes where that is missing
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.gguf.blocks import TYPES

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT = "general.alignment"
MOST_KEYS, MOST_TENSORS, MOST_AXES = 10_000, 200_000, 4
LONGEST_NAME = 64 << 10  # bytes of a key's or a tensor's name
STRING, ARRAY = 8, 9  # types of values
NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
FIX = "Download or copy the file again."


@dataclass(frozen=True)
class StoredBlocks:
    """A tensor of the file, at byte `offset` of it, of the type `TYPES[type]`."""

    path: Path
    shape: tuple[int, ...]  # the innermost axis last
    type: int
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, the innermost axis."""
        kind = TYPES[self.type]
        return self.shape[-1] // kind.elements * kind.bytes

    def rows(self) -> npt.NDArray[np.uint8]:
        """The bytes of all rows, [rows, bytes], mapped from the file."""
        shape = (prod(self.shape[:-1]), self.row_bytes)
        if 0 in shape:
            return np.zeros(shape, np.uint8)
        return np.memmap(self.path, np.uint8, "r", self.offset, shape)


@dataclass(frozen=True)
class Container:
    """The values by key, and the tensors by name."""

    values: dict[str, Any]  # numbers, strings, arrays of numbers (NumPy) and of strings (lists)
    tensors: dict[str, StoredBlocks]


def is_container(path: Path) -> bool:
    """Whether the file begins as one; False for one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_container(path: Path) -> Container:
    """Read keys and tensors' places. Raises `SourceError` for a file that is damaged, or of another version."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).read()
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise SourceError(f"{path}: {getattr(error, 'strerror', None) or error}. {FIX}") from error


class _Reader:
    """Reads from the beginning on; regardless of what a file says, no more than its own bytes are read."""

    def __init__(self, path: Path, data: mmap.mmap):
        self._path, self._data, self._at = path, data, 0

    def read(self) -> Container:
        if self._take(len(MAGIC)) != MAGIC:
            raise self._error("does not begin with GGUF")
        version = self._number("<I")
        if version not in VERSIONS:
            raise self._error(f"version {version} of GGUF, expected one of {VERSIONS}")
        tensors, keys = self._count("<Q", MOST_TENSORS, "tensors"), self._count("<Q", MOST_KEYS, "keys")
        values: dict[str, Any] = {}
        for _ in range(keys):
            key = self._name()
            if key in values:
                raise self._error(f"has {key} twice")
            values[key] = self._value(key)
        entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(tensors):
            name = self._name()
            if name in entries:
                raise self._error(f"has the tensor {name} twice")
            axes = self._count("<I", MOST_AXES, f"axes of {name}")
            shape = tuple(reversed(struct.unpack(f"<{axes}Q", self._take(8 * axes))))
            entries[name] = shape, self._number("<I"), self._number("<Q")
        alignment = values.get(ALIGNMENT, 32)
        if type(alignment) is not int or alignment < 1 or alignment % 8:
            raise self._error(f"{ALIGNMENT} is {alignment!r}, expected a multiple of 8")
        start = -(-self._at // alignment) * alignment
        return Container(values, {name: self._stored(name, *entry, start) for name, entry in entries.items()})

    def _stored(self, name: str, shape: tuple[int, ...], type_: int, offset: int, start: int) -> StoredBlocks:
        if (kind := TYPES.get(type_)) is None:
            known = ", ".join(each.name for each in TYPES.values())
            raise SourceError(
                f"{self._path}: tensor {name} is of type {type_}, expected one of {known}. Give a file with weights in "
                "one of these, such as Q4_K_M or Q8_0."
            )
        if not shape or shape[-1] % kind.elements:
            raise self._error(f"tensor {name} {list(shape)} does not fill blocks of {kind.elements} ({kind.name})")
        size = prod(shape) // kind.elements * kind.bytes
        if start + offset + size > len(self._data):
            end = start + offset + size
            raise self._error(f"truncated: {len(self._data)} bytes, expected {end} for the tensor {name}")
        return StoredBlocks(self._path, shape, type_, start + offset)

    def _value(self, key: str) -> Any:
        kind = self._number("<I")
        if kind in NUMBERS:
            return self._numbers(kind, 1)[0].item()
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise self._error(f"{key} is of type {kind}, which GGUF does not have")
        kind, length = self._number("<I"), self._number("<Q")
        if kind in NUMBERS:
            return self._numbers(kind, length).copy()
        if kind != STRING:
            raise self._error(f"{key} is an array of type {kind}, expected numbers or strings")
        if length > (len(self._data) - self._at) // 8:
            raise self._error(f"truncated: {key} has {length} strings, which do not fit into the file")
        return [self._string() for _ in range(length)]

    def _numbers(self, kind: int, length: int) -> npt.NDArray[Any]:
        dtype = np.dtype(NUMBERS[kind])
        raw = self._take(dtype.itemsize * length)
        return np.frombuffer(raw, np.uint8) != 0 if kind == 7 else np.frombuffer(raw, dtype)

    def _string(self, longest: int | None = None) -> str:
        length = self._number("<Q")
        if longest is not None and length > longest:
            raise self._error(f"a name of {length} bytes, expected at most {longest}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._error(f"text at byte {self._at - length} is not UTF-8") from None

    def _name(self) -> str:
        return self._string(LONGEST_NAME)

    def _count(self, form: str, most: int, what: str) -> int:
        if (number := self._number(form)) > most:
            raise self._error(f"{number} {what}, expected at most {most}")
        return number

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _take(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise self._error(f"truncated: {len(self._data)} bytes, {length} more expected at byte {self._at}")
        self._at += length
        return self._data[self._at - length : self._at]

    def _error(self, problem: str) -> SourceError:
        return SourceError(f"{self._path}: {problem}. {FIX}")
