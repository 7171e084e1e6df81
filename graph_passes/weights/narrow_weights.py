"""NarrowWeights: store weights and embedding tables in 16 bits, and compute in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import Names, constant
from intaglio.plugins.packed_matmul.narrow_weights import narrow_weight, reason_against

DTYPES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
EXACT = "exact"
EFFECTS = {EXACT: Effect.EXACT, "float16": Effect.FLOAT16, "bfloat16": Effect.WEIGHTS_8}


@dataclass(frozen=True)
class NarrowWeights(Pass):
    """MatMul(x, W) becomes MatMul(x, Cast(W)), and Gather(T, ids) Cast(Gather(T, ids)), with W and T of 16 bits.

    CPU kernels read the 16 bits; other runtimes widen the weights when they open the graph.

    1. `dtype`: bfloat16, which has float32's range and 8 bits, or float16, with 11 bits. "exact": for each weight the
       one that changes no number of it, as of a checkpoint in 16 bits; other weights are left.
    2. `smallest` is the minimum number of elements of a weight.
    3. Left, with the reason: numbers beyond float16; weights that other operators read, or graphs within the graph.

    Raises `GraphError` for weights that are NaN or infinite.
    """

    name: ClassVar[str] = "narrow_weights"
    main_option: ClassVar[str | None] = "dtype"
    dtype: Literal["exact", "bfloat16", "float16"] = "exact"
    smallest: int = 1024

    @property
    def effect(self) -> Effect:
        """That of 8-bit weights for bfloat16, whose numbers have 8 bits."""
        return EFFECTS[self.dtype]

    @property
    def compresses_weights(self) -> bool:
        """They stay floating point, which other passes compress."""
        return False

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        names = Names(model)
        for weight in [*model.graph.initializers.values()]:
            tensor = constant(weight)
            if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) != 2:
                continue
            reason = reason_against(weight)
            if tensor.size < self.smallest or reason == "":
                continue
            stored = None if reason else self._narrow(weight.name, tensor.numpy())
            if stored is None:
                counts.leave(reason or f"{weight.name}: {self._unfit}")
            else:
                narrow_weight(weight, ir.tensor(stored, name=weight.name), names.new)
                counts.add("weights")

    @property
    def _unfit(self) -> str:
        return "more than 16 bits" if self.dtype == EXACT else f"beyond {self.dtype}'s range"

    def _narrow(self, name: str | None, array: npt.NDArray[np.float32]) -> npt.NDArray[Any] | None:
        """The numbers in 16 bits; None where they do not fit."""
        if not np.isfinite(array).all():
            raise GraphError(f"{name}: contains NaN or infinity, expected finite weights. Fix the checkpoint.")
        for dtype in DTYPES if self.dtype == EXACT else (self.dtype,):
            with np.errstate(over="ignore"):
                stored = array.astype(DTYPES[dtype])
            fits = stored == array if self.dtype == EXACT else np.isfinite(stored.astype(np.float32))
            if fits.all():
                return stored
        return None
