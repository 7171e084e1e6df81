"""A change of a weight by two narrow matrices, and with DoRA by the lengths of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from intaglio.exporters.files.computed_tensor import ComputedTensor, FloatTensor
from intaglio.exporters.files.safetensors_file import MappedTensor

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LowRank:
    """W + scale · B·A, and with `magnitude` its rows scaled to these lengths (DoRA, Liu et al. 2024, eq. 5).

    `transposed`: the weight is stored as [inputs, outputs], as those of Conv1D and of embeddings are.
    """

    first: MappedTensor  # A [rank, inputs]
    second: MappedTensor  # B [outputs, rank]
    scale: float
    transposed: bool
    magnitude: MappedTensor | None = None  # [outputs]

    @property
    def rank(self) -> tuple[int, int]:
        """As both matrices have it."""
        return self.first.shape[0], self.second.shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight that it changes."""
        sizes = self.second.shape[0], self.first.shape[1]
        return sizes[::-1] if self.transposed else sizes

    def added_to(self, base: FloatTensor) -> ComputedTensor:
        """The changed weight, which is computed when it is read."""
        return ComputedTensor(self.shape, lambda: self._compute(base.tensor))

    def _compute(self, weight: torch.Tensor) -> torch.Tensor:
        """The sums in the order in which peft adds them, so that the numbers are the same."""
        import torch

        found = (self.second.tensor.float() @ self.first.tensor.float()).mul_(self.scale)
        found = (found.T if self.transposed else found).contiguous().add_(weight.float())
        if self.magnitude is None:
            return found
        lengths = torch.linalg.norm(found.T if self.transposed else found, dim=1)
        factors = self.magnitude.tensor.float() / lengths
        return found.mul_(factors if self.transposed else factors[:, None])


def with_rows(base: FloatTensor, rows: MappedTensor, indices: list[int]) -> ComputedTensor:
    """`base` [tokens, width] with `rows` [len(indices), width] in the place of some of its own."""

    def compute() -> torch.Tensor:
        import torch

        return base.tensor.float().index_copy(0, torch.tensor(indices), rows.tensor.float())

    return ComputedTensor(base.shape, compute)
