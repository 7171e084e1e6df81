"""A weight stored as indices into tables, with sparse numbers beside, as LutMatMul multiplies by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.exporters.checkpoints.quantized.grouped_weight import ACTIVATION_BITS
from intaglio.plugins.lut_matmul.spec import table_weight

if TYPE_CHECKING:
    import torch


class SparseRows(NamedTuple):
    """A matrix [N, K] in compressed sparse rows, the columns of a row ascending, as LutMatMul gets it."""

    values: npt.NDArray[np.float32]  # [nnz]
    columns: npt.NDArray[np.int32]  # [nnz]
    row_offsets: npt.NDArray[np.int32]  # [N + 1]

    @classmethod
    def of(cls, places: npt.NDArray[np.int64], values: npt.NDArray[np.float32], rows: int, columns: int) -> SparseRows:
        """The matrix with `values` at `places` of the flattened matrix; those at one place are added up."""
        distinct, which = np.unique(places, return_inverse=True)
        sums = np.zeros(len(distinct), np.float32)
        np.add.at(sums, which, values)
        row, column = np.divmod(distinct, columns)
        return cls(sums, column.astype(np.int32), np.searchsorted(row, np.arange(rows + 1)).astype(np.int32))


class Tables(NamedTuple):
    """w[n, k] = lut[n, code[n, k]]."""

    packed: npt.NDArray[np.int32]  # [N, K·bits/32], the codes as `bit_packing` packs them
    lut: npt.NDArray[np.float32]  # [N, 2^bits]


@dataclass(frozen=True)
class TabledWeight:
    """A weight [N, K] whose codes stay in their files until `read` reads them; it takes the place of a float one.

    The few numbers of `sparse` are in memory, and added to those of the tables.
    """

    shape: tuple[int, int]
    bits: int
    read: Callable[[], Tables]
    sparse: SparseRows | None
    activation_bits: int = ACTIVATION_BITS  # precision of x in the product: 8, 16 or 32

    @property
    def dtype(self) -> torch.dtype:
        """Of `tensor`, and of the tables."""
        import torch

        return torch.float32

    @property
    def tensor(self) -> torch.Tensor:
        """The numbers that the codes stand for, float32 [N, K], computed now."""
        import torch

        weight = table_weight(*self.read(), self.bits).astype(np.float32, copy=False)
        if (found := self.sparse) is not None:
            rows = np.repeat(np.arange(self.shape[0]), np.diff(found.row_offsets))
            weight[rows, found.columns] += found.values
        return torch.from_numpy(weight)


def below_each_other(weights: Sequence[TabledWeight]) -> TabledWeight | None:
    """One weight of the rows of all, which multiply the same inputs; None if they have different bits."""
    if len({(each.bits, each.shape[1]) for each in weights}) > 1:
        return None

    def read() -> Tables:
        packed, lut = zip(*(each.read() for each in weights), strict=True)
        return Tables(np.concatenate(packed), np.concatenate(lut))

    shape = sum(each.shape[0] for each in weights), weights[0].shape[1]
    return replace(weights[0], shape=shape, read=read, sparse=_sparse_of(weights))


def _sparse_of(weights: Sequence[TabledWeight]) -> SparseRows | None:
    """The sparse matrices of `weights` below each other; None if none has one."""
    if not (found := [each.sparse for each in weights if each.sparse is not None]):
        return None
    counts = [
        np.zeros(each.shape[0], np.int32) if each.sparse is None else np.diff(each.sparse.row_offsets)
        for each in weights
    ]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int32)
    return SparseRows(
        np.concatenate([each.values for each in found]), np.concatenate([each.columns for each in found]), offsets
    )
