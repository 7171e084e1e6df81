"""The shared options of passes over linear layers, each declared and checked once.

`LayerPass` ─┬─ `PruningPass`: prune_magnitude, prune_rows
             └─ `StoringPass` ─┬─ `Int8Pass`: int8_absmax, int8_zeropoint
                               ├─ `GroupPass`: rtn, gptq, awq
                               └─ `TablePass`: lut, lut_sparse, mixed
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.errors import GraphError
from intaglio.graph_passes.calibration.observing import at_least_one
from intaglio.graph_passes.contract import Counts, Need, Pass, PassInputs
from intaglio.graph_passes.lookup_tables.tables import TableBits
from intaglio.graph_passes.weights.group_layers import grouped_layers, round_to_nearest
from intaglio.graph_passes.weights.uniform import Floats, Grid, fit
from intaglio.plugins.bit_packing import WORD

GROUP_BITS = (2, 3, 4, 5, 6, 8)  # supported by GroupMatMul
TABLE_BITS = (2, 3, 4)  # bits of an index, supported by LutMatMul
ACTIVATION_BITS = (8, 16, 32)
SCALE_DTYPES = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class LayerPass(Pass):
    """Layers whose name matches a pattern of `skip` (`lm_head`, `*.mlp.*`) are left; each pattern must match one."""

    shows_progress: ClassVar[bool] = True
    skip: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PruningPass(LayerPass):
    """`fraction`: the fraction of the weights, or of the channels, to remove."""

    effect: ClassVar[Effect] = Effect.REPLACED
    fraction: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.fraction < 1:
            raise GraphError(f"{self.name}: fraction {self.fraction}: expected 0 to below 1, such as 0.5.")


@dataclass(frozen=True, kw_only=True)
class StoringPass(LayerPass):
    """Store weights in another form.

    `activation_bits`: precision of x in the CPU kernels, 8, 16 or 32 bits. `tied`: a layer whose weight is an embedding
    table too gets its own compressed copy, and the table does not change; without it, such layers are left.
    """

    activation_bits: Literal[8, 16, 32] = 16
    tied: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_one_of(self.name, "activation_bits", self.activation_bits, ACTIVATION_BITS)


@dataclass(frozen=True)
class Int8Pass(StoringPass):
    """Weights in 8 bits: with `per="channel"` a scale per output of a layer, with "tensor" one per layer."""

    effect: ClassVar[Effect] = Effect.WEIGHTS_8
    per: Literal["channel", "tensor"] = "channel"

    @abstractmethod
    def grid(self, matrix: Floats) -> Grid:
        """Return the grid of `matrix` [N, K]: scales and zero points [N, 1]."""

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        layers = grouped_layers(model, counts, self.skip, 0, self.tied, branches=True)
        round_to_nearest(model, layers, self.grid, self.activation_bits, counts, self.name)


@dataclass(frozen=True)
class GroupPass(StoringPass):
    """Weights in `bits` bits with a scale for each group of `group_size` weights of a row (0: the row).

    If `group_size` does not divide a row, the next smaller multiple of 32 that does is used. Asymmetric groups have a
    zero point too, and cover the range from their smallest to their largest weight; `symmetric` groups cover the same
    range on both sides of 0, up to the largest magnitude. `scale_dtype` float16 rounds the scales before the weights,
    for formats of other tools that have no others (`intaglio export --format`).
    """

    bits: int = 4
    group_size: int = 128
    symmetric: bool = False
    scale_dtype: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_one_of(self.name, "bits", self.bits, GROUP_BITS)
        if self.scale_dtype not in SCALE_DTYPES:
            raise GraphError(
                f"{self.name}: scale_dtype {self.scale_dtype!r}: expected one of {', '.join(SCALE_DTYPES)}."
            )
        if self.group_size < 0 or self.group_size % WORD:
            raise GraphError(
                f"{self.name}: group_size {self.group_size}: expected a multiple of {WORD}, or 0 for whole rows."
            )

    @property
    def effect(self) -> Effect:
        """The effect of rounding to `bits` bits."""
        return Effect.of_bits(self.bits)

    def grid(self, matrix: Floats) -> Grid:
        """Return the grid of the values that the weights of `matrix` [N, K] can take."""
        return fit(matrix, self.bits, self.group_size, self.symmetric, self.scale_dtype == SCALE_DTYPES[1])


@dataclass(frozen=True, kw_only=True)
class TablePass(StoringPass):
    """Weights as indices into a table for each output row, weighted by the sensitivity of the loss.

    `table_bits`: bits of the integers in a table, which are multiplied by a factor per row; 32 for float32. "auto" uses
    the coarsest that adds less than 1 % of error; CPU kernels are fastest with 8. `compensate`: GPTQ
    (`compensation.py`) chooses the entry of each weight on at most `samples` chunks of calibration text, instead of the
    nearest; layers that share a weight are then left.
    """

    uses_executor: ClassVar[bool] = True
    keeps_layers: ClassVar[bool] = True
    table_bits: TableBits = "auto"
    compensate: bool = True
    samples: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self.name, samples=self.samples)

    @property
    def needs(self) -> frozenset[Need]:
        """Sensitivities, and text to compensate errors on."""
        return frozenset({Need.SENSITIVITY, Need.CALIBRATION} if self.compensate else {Need.SENSITIVITY})


@dataclass(frozen=True, kw_only=True)
class SparsePass(Pass):
    """Some weights are stored exactly, in a sparse matrix besides the tables.

    First the `sensitive` fraction of each matrix, the weights with the largest sensitivities; then the `outliers`
    fraction, those of the rest with the largest magnitudes (SqueezeLLM, section 3.3).
    """

    sensitive: float = 0.0005
    outliers: float = 0.004

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, part in (("sensitive", self.sensitive), ("outliers", self.outliers)):
            if not 0 <= part <= 0.5:
                raise GraphError(
                    f"{self.name}: {option} {part}: expected a fraction of the weights, 0 to 0.5, such as 0.0005."
                )


def expect_one_of(name: str, option: str, value: int, expected: tuple[int, ...]) -> None:
    """Raise `GraphError` for an option of the pass `name` that is not among `expected`."""
    if value not in expected:
        raise GraphError(f"{name}: {option} {value}: expected one of {', '.join(map(str, expected))}.")
