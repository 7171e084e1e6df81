"""How sensitive the loss is to each weight, in a file: a safetensors file of float32 arrays, by the weights' names.

A tensor has the name and the shape of the graph's initializer; its numbers are the diagonal of the Fisher information,
the mean over calibration texts of the squared gradient of the loss. Texts are added one after the other, a weight at a
time, by plain reads and writes: the arrays of a whole model are never in memory together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.bundle import Source
from intaglio.errors import UsageError, one_line
from intaglio.files import atomic_file

OPTION = "--sensitivity"
FORMAT = "intaglio sensitivity 1"
MAX_HEADER = 64 << 20  # bytes; a safetensors header is small
BLOCK = 1 << 22  # numbers that are read at a time

Floats = npt.NDArray[np.float32]


class Observed(msgspec.Struct, frozen=True):
    """What sensitivities were computed on."""

    model: dict[str, str]  # `Source.sha256` of the bundle: what the checkpoint was
    file: str  # the calibration file's name alone
    sha256: str
    samples: int
    tokens: int


class _Place(msgspec.Struct, frozen=True):
    """Where a tensor lies: its shape, and the bytes of the file from `start` on."""

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
        """Read what the file holds. Raises `UsageError` for one that is missing, cut short or something else."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > MAX_HEADER:
                    raise ValueError("no safetensors header")
                header = json.loads(file.read(length))
            metadata = header.pop("__metadata__", {})
            if metadata.get("format") != FORMAT:
                raise ValueError("not written by intaglio sensitivity")
            observed = msgspec.json.decode(metadata["observed"], type=Observed)
            places = {name: _place(entry, 8 + length) for name, entry in header.items()}
            end = max((place.start + 4 * math.prod(place.shape) for place in places.values()), default=0)
            if path.stat().st_size < end:
                raise ValueError("cut short")
        except OSError as error:
            raise UsageError(f"{OPTION} {path}: {error.strerror}. Give a file of intaglio sensitivity.") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, msgspec.DecodeError) as error:
            raise UsageError(
                f"{OPTION} {path}: not a file of sensitivities ({one_line(error, 100)}). "
                "Make one with: intaglio sensitivity BUNDLE --calibration TEXT -o FILE"
            ) from error
        return cls(path, observed, places)

    def check(self, source: Source) -> None:
        """Raise `UsageError` unless they are of the checkpoint that a bundle was made from."""
        if self.observed.model != source.sha256:
            raise UsageError(
                f"{OPTION} {self.path}: computed on another model than {source.location}. "
                "Make it from this bundle with: intaglio sensitivity BUNDLE --calibration TEXT -o FILE"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str, shape: tuple[int, ...]) -> Floats:
        """The sensitivities of the weight `name` of `shape`. Raises `UsageError` where there are none, or bad ones."""
        place = self._places.get(name)
        if place is None or place.shape != shape:
            got = "has none" if place is None else f"has {list(place.shape)}"
            raise UsageError(
                f"{OPTION} {self.path}: {got} for {name}, expected {list(shape)}. "
                "Make it from this bundle with: intaglio sensitivity BUNDLE --calibration TEXT -o FILE"
            )
        with self.path.open("rb") as file:
            array = _read(file, place)
        if not (np.isfinite(array).all() and array.min(initial=0) >= 0):
            raise UsageError(f"{OPTION} {self.path}: {name} holds NaN, infinity or negative numbers. Make it anew.")
        return array


class SensitivityWriter:
    """A file of sensitivities that squared gradients are added to."""

    def __init__(self, file: BinaryIO, places: Mapping[str, _Place]):
        self._file = file
        self._places = places

    @classmethod
    @contextmanager
    def create(cls, path: Path, shapes: Mapping[str, tuple[int, ...]], observed: Observed) -> Iterator[Self]:
        """A new file, all zero, for weights of these shapes; removed again if the block raises."""
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
        """Add `numbers`, of the weight's shape, to what there is of the weight `name`."""
        place, flat = self._places[name], numbers.reshape(-1)
        for first in range(0, flat.size, BLOCK):
            part = flat[first : first + BLOCK]
            self._file.seek(place.start + 4 * first)
            held = np.fromfile(self._file, np.float32, part.size)
            held += part
            self._file.seek(place.start + 4 * first)
            held.tofile(self._file)


def _header(shapes: Mapping[str, tuple[int, ...]], observed: Observed) -> bytes:
    metadata = {"format": FORMAT, "observed": msgspec.json.encode(observed).decode()}
    entries: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, shape in shapes.items():
        end = start + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # safetensors wants the data aligned
    return len(text).to_bytes(8, "little") + text


def _place(entry: dict[str, Any], base: int) -> _Place:
    shape, (start, end) = tuple(entry["shape"]), entry["data_offsets"]
    if entry["dtype"] != "F32" or end - start != 4 * math.prod(shape) or start < 0:
        raise ValueError("another dtype than float32")
    return _Place(shape, base + start)


def _read(file: BinaryIO, place: _Place) -> Floats:
    file.seek(place.start)
    array = np.fromfile(file, "<f4", math.prod(place.shape))
    return array.reshape(place.shape).astype(np.float32, copy=False)
