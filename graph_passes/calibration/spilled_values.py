"""Store the values of all calibration batches at one place of a graph in files, with one batch in memory at a time.

The activations of a hundred texts would take more memory than the model's weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from intaglio.errors import storage_errors
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.engine import Array


class SpilledValues:
    """Values by name for each of `batches`, whose own arrays are not copied. Close it after use."""

    def __init__(self, batches: Sequence[Mapping[str, Array]]) -> None:
        self._batches = batches
        self._numbers: dict[
            str, int
        ] = {}  # name -> number of its files, as names may contain characters that paths may not
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
        """Return the value of a batch."""
        if name in self._kept[batch]:
            found: Array = np.load(self._path(batch, name), allow_pickle=False)
            return found
        return self._batches[batch][name]

    def rank(self, name: str) -> int:
        """Return the number of axes of a value, without reading it."""
        if name in self._kept[0]:
            return int(np.load(self._path(0, name), mmap_mode="r", allow_pickle=False).ndim)
        return self._batches[0][name].ndim

    def replace(self, batch: int, values: Mapping[str, Array], needed: Iterable[str]) -> None:
        """Add `values` of a batch, and delete those that are not `needed`. Raises `StorageError`."""
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
