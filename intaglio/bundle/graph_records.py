"""What a manifest records of a graph: its inputs and outputs, and the lengths of their axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec


class TensorSpec(msgspec.Struct, frozen=True):
    """A named input or output: NumPy dtype name, and per axis a length or the name of a symbolic axis."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Axis(msgspec.Struct, frozen=True):
    """The allowed lengths of a symbolic axis; `maximum` None means unbounded."""

    minimum: int = 1
    maximum: int | None = None


class Graph(NamedTuple):
    """One graph of a bundle: its file, inputs and outputs, and the lengths of its symbolic axes."""

    file: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    axes: Mapping[str, Axis]
