"""LutSparse: linear layers as lookup tables, and the weights that matter most or reach farthest in a sparse matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.errors import GraphError
from intaglio.graph_passes.weights.lut import Lut
from intaglio.graph_passes.weights.lut_layers import Method
from intaglio.graph_passes.weights.options import SparsePass


@dataclass(frozen=True)
class LutSparse(Lut, SparsePass):
    """MatMul(x, W) and Gemm(x, W, bias) become CsrMatMul(x, S, LutMatMul(x, packed, lut)), and an Add of the bias.

    1. Set aside in S are the `sensitive` part of each matrix and the `outliers` part of the rest.
    2. The others are clustered and left as in the pass `lut`, whose other options these are.
    3. With `compensate`, what is set aside takes up the errors of the weights before it.
    4. `unweighted` takes `sensitive: 0`, there being no telling which these are.
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
