"""The options that passes over linear layers have in common, each declared and checked once.

`LayerPass` ─┬─ `PruningPass`: prune_magnitude, prune_rows
             └─ `StoringPass` ─┬─ `Int8Pass`: int8_absmax, int8_zeropoint
                               ├─ `GroupPass`: rtn, gptq, awq
                               └─ `TablePass`: lut, lut_sparse, mixed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from intaglio.effect import Effect
from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Need, Pass
from intaglio.graph_passes.observing import at_least_one
from intaglio.graph_passes.weights.tables import TableBits
from intaglio.graph_passes.weights.uniform import Floats, Grid, fit
from intaglio.plugins.bit_packing import WORD

GROUP_BITS = (2, 3, 4, 8)  # that GroupMatMul has
TABLE_BITS = (2, 3, 4)  # of an index, that LutMatMul has
ACTIVATION_BITS = (16, 32)


@dataclass(frozen=True, kw_only=True)
class LayerPass(Pass):
    """Layers whose name matches a pattern of `skip` (`lm_head`, `*.mlp.*`) are left; one that names none is refused."""

    shows_progress: ClassVar[bool] = True
    skip: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PruningPass(LayerPass):
    """`fraction`: the part of the weights, or of the channels, that goes."""

    effect: ClassVar[Effect] = Effect.REPLACED
    fraction: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.fraction < 1:
            raise GraphError(f"{self.name}: fraction {self.fraction}: expected 0 to below 1, such as 0.5.")


@dataclass(frozen=True, kw_only=True)
class StoringPass(LayerPass):
    """Weights in another form.

    `activation_bits`: how many bits of x the CPU kernels keep, 16 or 32. `tied`: a layer whose weight is an embedding
    table too gets a copy of its own, while the table stays as it is for looking up; without, such layers are left.
    """

    activation_bits: Literal[16, 32] = 16
    tied: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_one_of(self.name, "activation_bits", self.activation_bits, ACTIVATION_BITS)


@dataclass(frozen=True)
class Int8Pass(StoringPass):
    """Weights in 8 bits: with `per="channel"` a scale for each output of a layer, with "tensor" one for all of them."""

    effect: ClassVar[Effect] = Effect.WEIGHTS_8
    per: Literal["channel", "tensor"] = "channel"


@dataclass(frozen=True)
class GroupPass(StoringPass):
    """Weights in `bits` bits with a scale for each group of `group_size` weights of a row (0: the row).

    A row that these do not divide has groups of the next smaller multiple of 32 that does. Asymmetric groups have a
    zero point too, and reach from their smallest to their largest weight; `symmetric` ones reach as far on both sides
    as the weight of the largest magnitude.
    """

    bits: int = 4
    group_size: int = 128
    symmetric: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_one_of(self.name, "bits", self.bits, GROUP_BITS)
        if self.group_size < 0 or self.group_size % WORD:
            raise GraphError(
                f"{self.name}: group_size {self.group_size}: expected a multiple of {WORD}, or 0 for whole rows."
            )

    @property
    def effect(self) -> Effect:
        """What rounding to so many bits does to the numbers."""
        return Effect.of_bits(self.bits)

    def grid(self, matrix: Floats) -> Grid:
        """The numbers that the weights of `matrix` [N, K] may become."""
        return fit(matrix, self.bits, self.group_size, self.symmetric)


@dataclass(frozen=True, kw_only=True)
class TablePass(StoringPass):
    """Weights as indices into a table for each output row, placed where the loss is sensitive.

    `table_bits`: of the integers that a table's entries are, times a factor of the row; 32 for float32. "auto" takes
    the coarsest that costs less than 1 % of error; CPU kernels are fastest with 8. `compensate`: which entry a weight
    becomes is chosen by GPTQ (`compensation.py`) on at most `samples` chunks of calibration text, instead of by
    distance alone; layers that share a weight are then left.
    """

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
    """Some weights stay in a sparse matrix beside the tables, exactly.

    First the `sensitive` part of each matrix, the weights with the largest sensitivities; then the `outliers` part,
    those of the rest with the largest magnitudes (SqueezeLLM, section 3.3).
    """

    sensitive: float = 0.0005
    outliers: float = 0.004

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, part in (("sensitive", self.sensitive), ("outliers", self.outliers)):
            if not 0 <= part <= 0.5:
                raise GraphError(
                    f"{self.name}: {option} {part}: expected a part of all weights from 0 to 0.5, such as 0.0005."
                )


def expect_one_of(name: str, option: str, value: int, expected: tuple[int, ...]) -> None:
    """Raise `GraphError` for an option of the pass `name` that is not among `expected`."""
    if value not in expected:
        raise GraphError(f"{name}: {option} {value}: expected one of {', '.join(map(str, expected))}.")
