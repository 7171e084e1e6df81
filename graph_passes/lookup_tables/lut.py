"""Lut: store weights as 2-, 3- or 4-bit indices into a table per output row, weighted by sensitivity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Need, PassInputs
from intaglio.graph_passes.lookup_tables.compressed import Method
from intaglio.graph_passes.lookup_tables.layers import Rewriting, layers_and_batches
from intaglio.graph_passes.weights.options import TABLE_BITS, TablePass, expect_one_of


@dataclass(frozen=True)
class Lut(TablePass):
    """MatMul(x, W) and Gemm(x, W, bias) become LutMatMul(x, packed, lut), and an Add of the bias.

    1. The tables are the exact optimum of Σ sensitivity·(weight - centroid)² of each row (SqueezeLLM, eq. 3.5), then
       rounded to `table_bits`.
    2. `unweighted`: every weight counts the same; no file of sensitivities is needed then.
    3. Left: layers whose name matches a pattern of `skip`, whose inputs are not a multiple of 32, or whose weight is an
       embedding table too, unless `tied`.

    One layer is in memory at a time, in float32, with its sensitivities.
    """

    name: ClassVar[str] = "lut"
    bits: int = 4
    unweighted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_one_of(self.name, "bits", self.bits, TABLE_BITS)

    @property
    def effect(self) -> Effect:
        """The effect of storing weights in `bits` bits."""
        return Effect.of_bits(self.bits)

    @property
    def needs(self) -> frozenset[Need]:
        """Sensitivities unless `unweighted`, and text to compensate errors on."""
        return super().needs - ({Need.SENSITIVITY} if self.unweighted else set())

    @property
    def method(self) -> Method:
        """How each layer is stored."""
        return Method(self.bits, self.table_bits)

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        method = self.method
        layers, batches = layers_and_batches(model, self, inputs, counts, branches=not self.compensate)
        sensitivities = None if self.unweighted else inputs.sensitivities
        rewriting = Rewriting(self.name, self.activation_bits, sensitivities, inputs)
        rewriting.run(model, layers, lambda layer: method, counts, batches)
