"""Values for another process of this machine: pickled, and with large arrays in a file that the other process maps.

Through a pipe, both processes would copy an array in pieces of 64 KiB, and wait for each other after each.
"""

from __future__ import annotations

import mmap
import pickle
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from intaglio.errors import storage_errors

LEAST = 1 << 16  # bytes that are worth a file
ALIGNMENT = 64  # of arrays in a file: the bytes of the widest vectors


@dataclass(frozen=True)
class Parcel:
    """A pickled value, in `pickled` or in a file.

    `places`: where the file has the pickled value and then each of its arrays, as the first byte and the one after the
    last.
    """

    pickled: bytes = b""
    path: Path | None = None
    places: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, value: Any, folder: Path, least: int = LEAST) -> Self:
        """Pack `value`, from `least` bytes on into a new file in `folder`. Raises `StorageError`."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        contents = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
        if sum(content.nbytes for content in contents) < least:
            return cls(pickle.dumps(value, protocol=5))
        path, places = folder / uuid.uuid4().hex, []
        with storage_errors(path), path.open("wb") as file:
            for content in contents:
                file.write(bytes(-file.tell() % ALIGNMENT))
                places.append((file.tell(), file.tell() + content.nbytes))
                file.write(content)
        return cls(path=path, places=tuple(places))

    def open(self) -> Any:
        """Return the value, to be used and changed also after `remove`; a mapped file takes a descriptor."""
        if self.path is None:
            return self._value(memoryview(self.pickled))
        with self.path.open("rb") as file:
            return self._value(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)))

    def take(self) -> Any:
        """Return the value, in memory alone, and remove the file."""
        try:
            return self._value(memoryview(self.pickled) if self.path is None else np.fromfile(self.path, np.uint8).data)
        finally:
            self.remove()

    def _value(self, content: memoryview) -> Any:
        pickled, *arrays = [content[start:stop] for start, stop in self.places] or [content]
        return pickle.loads(pickled, buffers=arrays)  # noqa: S301  # made by this program or its children

    def remove(self) -> None:
        """Remove the file, if there is one."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Stored(Protocol):
    """A value that is stored until the last reference to this is gone. As an argument of a task it stands for it."""

    def open(self) -> Any:
        """Return the value."""


class StoredValue:
    """A value that is `Stored` in a file."""

    def __init__(self, parcel: Parcel, reused: bool = False):
        """`reused`: many tasks get it, so that a worker should open it once."""
        self.parcel, self.reused = parcel, reused
        weakref.finalize(self, parcel.remove)

    @classmethod
    def of(cls, value: Any, folder: Path, reused: bool = False) -> Self:
        """Store `value` in a new file in `folder`. Raises `StorageError`."""
        return cls(Parcel.of(value, folder, least=0), reused)

    def open(self) -> Any:
        """Return the value, as `Parcel.open`."""
        return self.parcel.open()

    def __reduce__(self) -> tuple[type[Argument], tuple[Parcel, bool]]:
        return Argument, (self.parcel, self.reused)


@dataclass(frozen=True)
class Argument:
    """A `StoredValue` in another process, which does not remove the file."""

    parcel: Parcel
    reused: bool


@dataclass(frozen=True)
class Keep:
    """The first `count` items that a task returns become `Stored`: on this machine in files in `folder`."""

    count: int
    folder: Path

    def split(self, result: Sequence[Any]) -> tuple[list[Parcel], Sequence[Any]]:
        """Return the items in parcels, and the others."""
        return [Parcel.of(item, self.folder, least=0) for item in result[: self.count]], result[self.count :]

    def joined(self, parcels: Sequence[Parcel], others: Sequence[Any]) -> tuple[Any, ...]:
        """Return what `split` has divided, as the caller gets it."""
        return *map(StoredValue, parcels), *others


def stored(result: Any, keep: Keep | None) -> Any:
    """Return what a task returned, once its items are stored that `keep` asks for."""
    return result if keep is None else keep.joined(*keep.split(result))


def opened(task: Iterable[Any]) -> Iterator[Any]:
    """Yield the arguments of a task with the values that are stored."""
    return (each.open() if isinstance(each, StoredValue) else each for each in task)
