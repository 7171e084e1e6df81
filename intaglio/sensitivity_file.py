"""Sensitivities of the loss to each weight: a safetensors file of float32 arrays, by the weights' names.

A tensor has the name and the shape of the graph's initializer; its values are the diagonal of the Fisher information,
the mean over calibration sequences of the squared gradient of the loss. Sequences are added one by one, a weight at a
time, by plain reads and writes: the arrays of a whole model are never in memory together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Source
from intaglio.errors import UsageError, one_line
from intaglio.files.atomic import atomic_file
from intaglio.files.input_files import open_file

OPTION = "--sensitivity"
FORMAT = "intaglio sensitivity 1"
MAX_HEADER = 16 << 20  # bytes; a safetensors header is small
BLOCK = 1 << 22  # elements read at a time

Floats = npt.NDArray[np.float32]


class Observed(msgspec.Struct, frozen=True):
    """The model and data that sensitivities were computed on."""

    model: dict[str, str]  # `Source.sha256` of the bundle: the checkpoint
    file: str  # the calibration file's name, without folder
    sha256: str
    samples: int
    tokens: int


class _Entry(msgspec.Struct, frozen=True):
    """A tensor of the safetensors header; `data_offsets` are relative to the header's end."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


class _Place(msgspec.Struct, frozen=True):
    """The location of a tensor: its shape, and its first byte `start` in the file."""

    shape: tuple[int, ...]
    start: int


class Sensitivities:
    """A file of sensitivities that is read a weight at a time."""

    def __init__(self, path: Path, observed: Observed, places: Mapping[str, _Place]):
        self.path = path
        self.observed = observed
        self._places = places

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read the file's header. Raises `UsageError` for a file that is missing, truncated or of another kind."""
        path = Path(path)
        try:
            with open_file(path, pipes=False) as file:
                length = int.from_bytes(file.read(8), "little")
                if length > MAX_HEADER:
                    raise ValueError("no safetensors header")
                header = msgspec.json.decode(file.read(length), type=dict[str, Any])
            metadata = header.pop("__metadata__", {})
            if metadata.get("format") != FORMAT:
                raise ValueError("not written by intaglio sensitivity")
            observed = msgspec.json.decode(metadata["observed"], type=Observed)
            places = _places(msgspec.convert(header, dict[str, _Entry]), 8 + length, path.stat().st_size)
        except OSError as error:
            raise UsageError(f"{OPTION} {path}: {error.strerror}. Give a file of intaglio sensitivity.") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"{OPTION} {path}: not a file of sensitivities ({one_line(error, 100)}). "
                "Create one with: intaglio sensitivity BUNDLE --calibration TEXT -o FILE"
            ) from error
        return cls(path, observed, places)

    def check(self, source: Source) -> None:
        """Raise `UsageError` unless the sensitivities belong to the checkpoint of a bundle."""
        if self.observed.model != source.sha256:
            raise UsageError(
                f"{OPTION} {self.path}: computed on another model than {source.location}. "
                "Create it from this bundle with: intaglio sensitivity BUNDLE --calibration TEXT -o FILE"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str, shape: tuple[int, ...]) -> Floats:
        """The sensitivities of the weight `name` of `shape`. Raises `UsageError` if they are missing or invalid."""
        start = self.start_of(name, shape)
        with self.path.open("rb") as file:
            array = _read(file, _Place(shape, start))
        if not (np.isfinite(array).all() and array.min(initial=0) >= 0):
            raise UsageError(f"{OPTION} {self.path}: {name} holds NaN, infinity or negative numbers. Re-create it.")
        return array

    def start_of(self, name: str, shape: tuple[int, ...]) -> int:
        """The first byte of the weight `name` of `shape` in the file. Raises `UsageError` if it is missing."""
        place = self._places.get(name)
        if place is None or place.shape != shape:
            got = "has none" if place is None else f"has {list(place.shape)}"
            raise UsageError(
                f"{OPTION} {self.path}: {got} for {name}, expected {list(shape)}. "
                "Create it from this bundle with: intaglio sensitivity BUNDLE --calibration TEXT -o FILE"
            )
        return place.start


class SensitivityWriter:
    """A sensitivity file to which squared gradients are added."""

    def __init__(self, file: BinaryIO, places: Mapping[str, _Place]):
        self._file = file
        self._places = places

    @classmethod
    @contextmanager
    def create(cls, path: Path, shapes: Mapping[str, tuple[int, ...]], observed: Observed) -> Iterator[Self]:
        """Create a file of zeros for weights of these shapes; it is removed if the block raises."""
        header = _header(shapes, observed)
        start = len(header)
        places = {}
        for name, shape in shapes.items():
            places[name] = _Place(tuple(shape), start)
            start += 4 * math.prod(shape)
        with atomic_file(path) as partial, partial.open("w+b") as file:
            file.write(header)
            file.truncate(start)
            yield cls(file, places)

    def add(self, name: str, numbers: Floats) -> None:
        """Add `numbers`, of the weight's shape, to the values of the weight `name`."""
        place, flat = self._places[name], numbers.reshape(-1)
        for first in range(0, flat.size, BLOCK):
            self._add(place, first, flat[first : first + BLOCK])

    def _add(self, place: _Place, first: int, part: Floats) -> None:
        self._file.seek(place.start + 4 * first)
        held = np.fromfile(self._file, np.float32, part.size)
        held += part
        self._file.seek(place.start + 4 * first)
        held.tofile(self._file)

    def add_all(self, other: Sensitivities) -> None:
        """Add all values of another file of the same weights, which is not checked again."""
        with other.path.open("rb") as file:
            for name, place in self._places.items():
                start = other.start_of(name, place.shape)
                size = math.prod(place.shape)
                for first in range(0, size, BLOCK):
                    file.seek(start + 4 * first)
                    self._add(place, first, np.fromfile(file, "<f4", min(BLOCK, size - first)))


def _header(shapes: Mapping[str, tuple[int, ...]], observed: Observed) -> bytes:
    metadata = {"format": FORMAT, "observed": msgspec.json.encode(observed).decode()}
    entries: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, shape in shapes.items():
        end = start + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # safetensors requires aligned data
    return len(text).to_bytes(8, "little") + text


def _places(entries: Mapping[str, _Entry], base: int, size: int) -> dict[str, _Place]:
    """The locations of the tensors in a file of `size` bytes whose data begins at `base`. Raises `ValueError`."""
    free = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, end = entry.data_offsets
        if entry.dtype != "F32":
            raise ValueError(f"{name} has another dtype than F32")
        if start < free or end - start != 4 * math.prod(entry.shape):
            raise ValueError(f"{name} {list(entry.shape)} does not fit bytes {start} to {end}")
        free = end
    if size < base + free:
        raise ValueError("truncated")
    return {name: _Place(entry.shape, base + entry.data_offsets[0]) for name, entry in entries.items()}


def _read(file: BinaryIO, place: _Place) -> Floats:
    file.seek(place.start)
    array = np.fromfile(file, "<f4", math.prod(place.shape))
    return array.reshape(place.shape).astype(np.float32, copy=False)
