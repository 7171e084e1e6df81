"""LutSparse: store weights as lookup tables, and the most sensitive and the largest ones in a sparse matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.errors import GraphError
from intaglio.graph_passes.lookup_tables.compressed import Method
from intaglio.graph_passes.lookup_tables.lut import Lut
from intaglio.graph_passes.weights.options import SparsePass


@dataclass(frozen=True)
class LutSparse(Lut, SparsePass):
    """MatMul(x, W) and Gemm(x, W, bias) become LutMatMul(x, packed, lut, S), and an Add of the bias.

    1. S contains the `sensitive` fraction of each matrix and the `outliers` fraction of the rest.
    2. The other weights are clustered as in the pass `lut`, with the same other options; the same layers are left.
    3. With `compensate`, the weights in S compensate the errors of the weights before them.
    4. `unweighted` requires `sensitive: 0`, as no sensitivities are known.
    """

    name: ClassVar[str] = "lut_sparse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unweighted and self.sensitive:
            raise GraphError(f"{self.name}: unweighted, but sensitive is {self.sensitive}. Set sensitive: 0.")

    @property
    def method(self) -> Method:
        """How each layer is stored."""
        return Method(self.bits, self.table_bits, self.sensitive, self.outliers)
