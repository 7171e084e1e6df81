"""NarrowWeights: store weights and embedding tables in 16 bits, and compute in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import Names, constant, take_over

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
            uses = [*weight.uses()]
            if tensor.size < self.smallest or not any(_reads(node, index) for node, index in uses):
                continue
            if others := sorted({node.op_type for node, index in uses if not _reads(node, index)}):
                counts.leave(f"{weight.name} is used by {', '.join(others)} too")
            elif any(node.graph is not model.graph for node, _ in uses):
                counts.leave(f"{weight.name} is used in a graph within the graph too")
            else:
                counts.note("weights", self._store(weight, tensor.numpy(), names))

    def _store(self, weight: ir.Value, array: npt.NDArray[np.float32], names: Names) -> str | None:
        """Store a weight in 16 bits; return the reason why it is left, if it is."""
        if not np.isfinite(array).all():
            raise GraphError(f"{weight.name}: contains NaN or infinity, expected finite weights. Fix the checkpoint.")
        for dtype in DTYPES if self.dtype == EXACT else (self.dtype,):
            with np.errstate(over="ignore"):
                narrow = array.astype(DTYPES[dtype])
            if np.array_equal(narrow, array) if self.dtype == EXACT else np.isfinite(narrow.astype(np.float32)).all():
                break
        else:
            return f"{weight.name}: " + ("more than 16 bits" if self.dtype == EXACT else f"beyond {self.dtype}'s range")
        uses = [*weight.uses()]
        weight.const_value = ir.tensor(narrow, name=weight.name)
        weight.dtype = ir.DataType.from_numpy(narrow.dtype)
        _widen(weight, uses, names)
        return None


def _reads(node: ir.Node, index: int) -> bool:
    """Whether the node reads its input as a matrix, a table of rows, or to transpose it."""
    return node.domain == "" and (node.op_type, index) in (("MatMul", 1), ("Gather", 0), ("Transpose", 0))


def _widen(weight: ir.Value, uses: Sequence[tuple[ir.Node, int]], names: Names) -> None:
    """Let the nodes that read a weight, now of 16 bits, compute in float32."""
    graph = uses[0][0].graph
    assert graph is not None
    for node in [node for node, _ in uses if node.op_type == "Gather"]:
        rows = node.outputs[0]
        narrow = ir.node("Gather", node.inputs, node.attributes, name=node.name)
        narrow.outputs[0].name = names.new(f"{rows.name}_narrow")
        narrow.outputs[0].type, narrow.outputs[0].shape = weight.type, rows.shape
        wide = ir.node("Cast", narrow.outputs, {"to": ir.DataType.FLOAT}, name=names.new(f"{node.name}_wide"))
        graph.insert_before(node, [narrow, wide])
        take_over(rows, wide.outputs[0])
        graph.remove(node, safe=True)
    others = [(node, index) for node, index in uses if node.op_type != "Gather"]
    if others:
        wide = ir.node("Cast", [weight], {"to": ir.DataType.FLOAT}, name=names.new(f"{weight.name}_wide"))
        wide.outputs[0].name, wide.outputs[0].shape, wide.outputs[0].dtype = wide.name, weight.shape, ir.DataType.FLOAT
        readers = {node for node, _ in others}
        graph.insert_before(next(node for node in graph if node in readers), wide)
        for node, index in others:
            node.replace_input_with(index, wide.outputs[0])
