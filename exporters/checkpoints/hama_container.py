"""Read the container of the `hama` package: named tensors, one after the other, in a plain binary file.

The format, little-endian: `HAMAPK`, two bytes of version, the number of tensors (uint32); per tensor the length of its
name (uint16), the name (UTF-8), its dtype (uint8: 0 float32, 1 float16), its rank (uint8), its lengths (uint32 each),
and the offset and size of its data in bytes (uint64 each), counted from the next multiple of 16 after the table.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.files.input_files import read_bytes

MAGIC = b"HAMAPK\x01\x02"
DTYPES: dict[int, np.dtype[np.floating]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}
ALIGNMENT = 16
MAX_BYTES = 1 << 30  # the package's largest file has 18 MB
FIX = "Take the file from the installed package again."

Array = npt.NDArray[np.floating]


def read_container(path: Path) -> dict[str, Array]:
    """The tensors of the container at `path` by name. Raises `SourceError` for a file that is not one, or damaged."""
    try:
        data = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}. Give the path of a .hama file.") from error
    if not data.startswith(MAGIC):
        raise SourceError(f"{path}: begins with {data[: len(MAGIC)]!r}, expected {MAGIC!r}. Give a .hama file.")
    try:
        return _tensors(data)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise SourceError(f"{path}: damaged ({error}). {FIX}") from error


def _tensors(data: bytes) -> dict[str, Array]:
    (count,), at = struct.unpack_from("<I", data, len(MAGIC)), len(MAGIC) + 4
    table: dict[str, tuple[np.dtype[np.floating], tuple[int, ...], int, int]] = {}
    for _ in range(count):
        (length,) = struct.unpack_from("<H", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        at += 2 + length
        code, rank = struct.unpack_from("<BB", data, at)
        shape = struct.unpack_from(f"<{rank}I", data, at + 2)
        offset, size = struct.unpack_from("<QQ", data, at + 2 + 4 * rank)
        at += 18 + 4 * rank
        if code not in DTYPES or name in table:
            raise ValueError(f"tensor {name[:60]!r} has dtype {code}" if code not in DTYPES else f"{name[:60]!r} twice")
        table[name] = (DTYPES[code], shape, offset, size)
    begin = -(-at // ALIGNMENT) * ALIGNMENT
    return {name: _tensor(data, name, begin, *entry) for name, entry in table.items()}


def _tensor(
    data: bytes, name: str, begin: int, dtype: np.dtype[np.floating], shape: tuple[int, ...], offset: int, size: int
) -> Array:
    expected = dtype.itemsize
    for length in shape:  # exact: NumPy's product would overflow
        expected *= length
    if size != expected or begin + offset + size > len(data):
        raise ValueError(f"tensor {name[:60]!r} of {size} bytes at {offset}, expected {expected} inside the file")
    return np.frombuffer(data, dtype, expected // dtype.itemsize, begin + offset).reshape(shape)
