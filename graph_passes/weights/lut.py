"""Lut: linear layers as indices of 2, 3 or 4 bits into a table per output row, placed where the loss is sensitive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from intaglio.graph_passes.calibration import CalibrationData
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.weights.linear_layers import linear_layers
from intaglio.graph_passes.weights.lut_layers import Method, Rewriting, compensating, given_sensitivities
from intaglio.graph_passes.weights.tables import TableBits
from intaglio.plugins.bit_packing import WORD
from intaglio.sensitivity_file import Sensitivities


@dataclass(frozen=True)
class Lut:
    """MatMul(x, W) and Gemm(x, W, bias) become LutMatMul(x, packed, lut), and an Add of the bias.

    1. The tables are the exact optimum of Σ sensitivity·(weight - centroid)² of each row (SqueezeLLM, eq. 3.5), then
       rounded to `table_bits`: integers of 8 or 16 bits times a factor of the row, or 32 for float32; "auto" takes the
       coarsest that costs less than 1 % of error. CPU kernels are fastest with 8.
    2. `activation_bits`: how many bits of x the CPU kernels keep, 16 or 32.
    3. `unweighted`: every weight counts the same; no file of sensitivities is needed then.
    4. `compensate`: which entry of its table a weight becomes is chosen by GPTQ (`compensation.py`) on at most
       `samples` chunks of calibration text, instead of by distance alone. Layers that share a weight are then left.
    5. Left: layers whose name matches a pattern of `skip`, whose inputs are no multiple of 32, or whose weight is an
       embedding table too, unless `tied`: the table then stays as it is for looking up, and the layer has its own copy.

    One layer is in memory at a time, in float32, with its sensitivities.
    """

    name: ClassVar[str] = "lut"
    compresses_weights: ClassVar[Literal[True]] = True
    takes_sensitivities: ClassVar[Literal[True]] = True
    bits: int = 4
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
        Method(self.bits, self.table_bits).check(self.name)

    def __call__(
        self, model: ir.Model, sensitivities: Sensitivities | None = None, data: CalibrationData | None = None
    ) -> tuple[ir.Model, Counts]:
        """Rewrite `model`."""
        sensitivities = given_sensitivities(self.name, sensitivities, self.unweighted)
        counts = Counts()
        layers = linear_layers(model, counts, self.skip, WORD, self.tied, branches=not self.compensate)
        layers, batches = compensating(self.name, self.compensate, layers, data, self.samples, model, counts)
        method = Method(self.bits, self.table_bits)
        rewriting = Rewriting(self.name, self.activation_bits, sensitivities)
        rewriting.run(model, layers, lambda layer: method, counts, batches)
        return model, counts
