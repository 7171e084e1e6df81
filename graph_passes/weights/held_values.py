"""The values of all calibration batches at one place of a graph, in files: those of one batch are in memory at a time.

A hundred texts' activations would take more memory than the weights of the models that they are run through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from intaglio.errors import storage_errors
from intaglio.runtime.engines.engine import Array
from intaglio.temporary import scratch_directory


class HeldValues:
    """Values by name for each of `batches`, whose own arrays stay where they are; to be closed."""

    def __init__(self, batches: Sequence[Mapping[str, Array]]) -> None:
        self._batches = batches
        self._numbers: dict[str, int] = {}  # of the files of a name, which may hold what no path may
        self._kept: list[set[str]] = [set() for _ in batches]
        self._open = ExitStack()
        self._directory = self._open.enter_context(scratch_directory("values"))

    def close(self) -> None:
        """Remove the files."""
        self._open.close()

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, name: str) -> bool:
        return name in self._batches[0] or name in self._kept[0]

    def read(self, batch: int, name: str) -> Array:
        """The value of a batch."""
        if name in self._kept[batch]:
            found: Array = np.load(self._path(batch, name), allow_pickle=False)
            return found
        return self._batches[batch][name]

    def rank(self, name: str) -> int:
        """The number of axes of a value, without reading it."""
        if name in self._kept[0]:
            return int(np.load(self._path(0, name), mmap_mode="r", allow_pickle=False).ndim)
        return self._batches[0][name].ndim

    def replace(self, batch: int, values: Mapping[str, Array], needed: Iterable[str]) -> None:
        """Take in `values` of a batch, and let go of those that are not `needed`. Raises `StorageError`."""
        wanted = set(needed)
        with storage_errors(self._directory):
            for name in self._kept[batch] - wanted:
                self._path(batch, name).unlink()
            for name in values.keys() & wanted:
                np.save(self._path(batch, name), values[name], allow_pickle=False)
        self._kept[batch] = (self._kept[batch] | values.keys()) & wanted

    def _path(self, batch: int, name: str) -> Path:
        number = self._numbers.setdefault(name, len(self._numbers))
        return self._directory / f"{batch}-{number}.npy"
