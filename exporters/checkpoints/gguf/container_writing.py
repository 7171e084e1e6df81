"""Write the container GGUF, as `container` reads it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from intaglio.display.progress import track
from intaglio.exporters.checkpoints.gguf.blocks import TYPES
from intaglio.exporters.checkpoints.gguf.container import ARRAY, MAGIC, NUMBERS, STRING, VERSIONS

ALIGNED = 32  # bytes, where the file states no alignment
UNSIGNED, SIGNED, FLOAT, BOOLEAN = 4, 5, 6, 7  # types of values: u32, i32, f32, bool


@dataclass(frozen=True)
class NewTensor:
    """A tensor to be written: its shape, the innermost axis last, its type in `TYPES`, and its bytes."""

    shape: tuple[int, ...]
    type: int
    data: Callable[[], bytes]

    @property
    def nbytes(self) -> int:
        """Of `data`."""
        kind = TYPES[self.type]
        return prod(self.shape) // kind.elements * kind.bytes


def write_container(path: Path, values: Mapping[str, Any], tensors: Mapping[str, NewTensor]) -> None:
    """Write a file with these keys and tensors; a tensor's bytes are computed when they are written.

    A value is a bool, an int below 2^32, a float, a string, or a list of ints, floats or strings.
    """
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(values)))
        for key, value in values.items():
            file.write(_string(key) + _value(value))
        offset = 0
        for name, tensor in tensors.items():
            axes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
            file.write(_string(name) + axes + struct.pack("<IQ", tensor.type, offset))
            offset += -(-tensor.nbytes // ALIGNED) * ALIGNED
        _align(file)
        for tensor in track(tensors.values(), "gguf", total=len(tensors)):
            data = tensor.data()
            assert len(data) == tensor.nbytes
            file.write(data)
            _align(file)


def _align(file: BinaryIO) -> None:
    file.write(b"\0" * (-file.tell() % ALIGNED))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if not isinstance(value, list):
        kind = _kind(value)
        return struct.pack("<I", kind) + np.array(value, NUMBERS[kind]).tobytes()
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    kind = FLOAT if value and isinstance(value[0], float) else SIGNED
    return struct.pack("<IIQ", ARRAY, kind, len(value)) + np.array(value, NUMBERS[kind]).tobytes()


def _kind(value: float) -> int:
    return BOOLEAN if isinstance(value, bool) else UNSIGNED if isinstance(value, int) else FLOAT
