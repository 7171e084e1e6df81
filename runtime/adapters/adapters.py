"""The adapters of a decoder, by name, with their matrices stacked by module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from intaglio.bundle.manifest import Source, TensorSpec
from intaglio.errors import SourceError, UsageError
from intaglio.runtime.adapters.adapter import Floats, LowRank, read_adapter
from intaglio.runtime.adapters.folder import check_not_merged

NONE = 0  # number of a row without adapter
# Inputs of graphs with adapters: the number of each row's adapter, and the factor of its change.
ADAPTER = TensorSpec("adapter", "int32", ("batch",))
ADAPTER_SCALE = TensorSpec("adapter_scale", "float32", ("batch", 1, 1))


@dataclass(frozen=True)
class Stacked:
    """The changes of one product by all adapters. The first is zero; smaller ranks are padded with zeros."""

    first: Floats  # [1 + adapters, rank, inputs]
    second: Floats  # [1 + adapters, rank, outputs]
    factor: npt.NDArray[np.float64]  # [1 + adapters]

    @property
    def shape(self) -> tuple[int, int]:
        """Inputs and outputs of the product."""
        return self.first.shape[2], self.second.shape[2]


@dataclass(frozen=True)
class Adapters:
    """Some adapters: their names, and their changes of products."""

    names: tuple[str, ...]  # the number of an adapter is its place, from 1
    modules: Mapping[str, Stacked]  # path of a module in the model of transformers -> its changes

    @classmethod
    def read(cls, folders: Mapping[str, str | Path], source: Source | None = None) -> Self:
        """Read adapters from their folders, by name; `source`: of the weights, which an adapter may be part of already.

        Raises `SourceError`, and `UsageError` for an invalid name or an adapter that is part of the weights.
        """
        for name in folders:
            if not name or not name.isprintable() or ":" in name or name != name.strip():
                raise UsageError(f"adapter {name[:80]!r}: expected a name of visible characters without a colon.")
        if source is not None:
            check_not_merged(folders.values(), source)
        read = {name: read_adapter(folder) for name, folder in folders.items()}
        paths = dict.fromkeys(path for modules in read.values() for path in modules)
        every = [*read.values()]
        try:
            return cls(tuple(read), {path: _stack([modules.get(path) for modules in every]) for path in paths})
        except ValueError as error:
            raise SourceError(f"adapters {', '.join(read)}: {error}. Give adapters of one model.") from error


def number_of(name: str | None, names: Sequence[str]) -> int:
    """The number of an adapter in a graph that was given those of these `names`. Raises `UsageError` for another."""
    if name is None:
        return NONE
    if name not in names:
        expected = f"expected one of {', '.join(names)}" if names else "but the model has none"
        raise UsageError(f"adapter {name[:80]!r}: {expected}.")
    return names.index(name) + 1


def _stack(changes: list[LowRank | None]) -> Stacked:
    """Stack the changes of a product by each adapter. Raises `ValueError` for different sizes of the product."""
    given = [each for each in changes if each is not None]
    sizes = sorted({each.shape for each in given})
    if len(sizes) > 1:
        raise ValueError(f"they change products of different sizes, {sizes[0]} and {sizes[1]}")
    inputs, outputs = sizes[0]
    rank = max(each.rank for each in given)
    first = np.zeros((1 + len(changes), rank, inputs), np.float32)
    second = np.zeros((1 + len(changes), rank, outputs), np.float32)
    factor = np.zeros(1 + len(changes))
    for number, each in enumerate(changes, 1):
        if each is not None:
            first[number, : each.rank] = each.first
            second[number, : each.rank] = each.second
            factor[number] = each.factor
    return Stacked(first, second, factor)
