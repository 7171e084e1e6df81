"""LutSparse: linear layers as lookup tables, and the weights that matter most or reach farthest in a sparse matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from intaglio.errors import GraphError
from intaglio.graph_passes.calibration import CalibrationData
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.weights.linear_layers import linear_layers
from intaglio.graph_passes.weights.lut_layers import Method, Rewriting, compensating, given_sensitivities
from intaglio.graph_passes.weights.tables import TableBits
from intaglio.plugins.bit_packing import WORD
from intaglio.sensitivity_file import Sensitivities


@dataclass(frozen=True)
class LutSparse:
    """MatMul(x, W) and Gemm(x, W, bias) become CsrMatMul(x, S, LutMatMul(x, packed, lut)), and an Add of the bias.

    1. Set aside in S are first the `sensitive` part of each matrix, the weights with the largest sensitivities, then
       the `outliers` part, those of the rest with the largest magnitudes (SqueezeLLM, section 3.3).
    2. The others are clustered and left as in the pass `lut`, whose other options these are.
    3. With `compensate`, what is set aside takes up the errors of the weights before it.
    4. `unweighted` takes `sensitive: 0`, there being no telling which these are.
    """

    name: ClassVar[str] = "lut_sparse"
    compresses_weights: ClassVar[Literal[True]] = True
    takes_sensitivities: ClassVar[Literal[True]] = True
    bits: int = 4
    sensitive: float = 0.0005
    outliers: float = 0.004
    table_bits: TableBits = "auto"
    activation_bits: Literal[16, 32] = 16
    skip: tuple[str, ...] = ()
    tied: bool = False
    unweighted: bool = False
    compensate: bool = True
    samples: int = 128

    @property
    def needs_calibration(self) -> bool:
        """Whether it has to see real inputs."""
        return self.compensate

    def __post_init__(self) -> None:
        self._method().check(self.name)
        if self.unweighted and self.sensitive:
            raise GraphError(f"{self.name}: unweighted, but sensitive is {self.sensitive}. Set sensitive: 0.")

    def __call__(
        self, model: ir.Model, sensitivities: Sensitivities | None = None, data: CalibrationData | None = None
    ) -> tuple[ir.Model, Counts]:
        """Rewrite `model`."""
        sensitivities = given_sensitivities(self.name, sensitivities, self.unweighted)
        counts = Counts()
        layers = linear_layers(model, counts, self.skip, WORD, self.tied, branches=not self.compensate)
        layers, batches = compensating(self.name, self.compensate, layers, data, self.samples, model, counts)
        method = self._method()
        rewriting = Rewriting(self.name, self.activation_bits, sensitivities)
        rewriting.run(model, layers, lambda layer: method, counts, batches)
        return model, counts

    def _method(self) -> Method:
        return Method(self.bits, self.table_bits, self.sensitive, self.outliers)
