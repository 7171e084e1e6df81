"""IntegerEmbedding: embedding tables to 8 bits, with one scale per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.effect import Effect
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.graphs import constant, remove_initializer_if_dead
from intaglio.graph_passes.integer.quantize_weights import quantize_columns
from intaglio.graph_passes.integer.quantized import Writer
from intaglio.graph_passes.integer.region import encoder_region, is_embedding


@dataclass(frozen=True)
class IntegerEmbedding:
    """Gather(table, ids) becomes DequantizeLinear(Gather(int8 table, ids)).

    1. Every Gather from a constant float32 table of two axes that the encoder begins with.
    2. A table that something else uses too (a head tied to the words) is stored twice then, and named in the counts.
    """

    name: ClassVar[str] = "integer_embedding"
    effect: ClassVar[Effect] = Effect.WEIGHTS_8

    def __call__(self, model: ir.Model) -> tuple[ir.Model, Counts]:
        """Rewrite `model`."""
        counts = Counts()
        writer = Writer(model)
        for node in encoder_region(model):
            table = node.inputs[0] if is_embedding(node) else None
            tensor = constant(table)
            if table is None or tensor is None or tensor.dtype != ir.DataType.FLOAT:
                continue
            if others := sorted({user.op_type for user, _ in table.uses() if user.op_type != "Gather"}):
                counts.leave(f"{table.name} is used by {', '.join(others)} too")
            _replace(writer, node, table, tensor.numpy())
            counts.add("tables")
        return model, counts


def _replace(writer: Writer, node: ir.Node, table: ir.Value, array: npt.NDArray[np.float32]) -> None:
    integers, scales = quantize_columns(array)
    old = node.outputs[0]
    stored = writer.constant(integers, f"{table.name}_int8")
    rows = writer.node(node, "Gather", [stored, node.inputs[1]], f"{old.name}_int8", axis=0).outputs[0]
    rows.dtype, rows.shape = ir.DataType.INT8, old.shape
    stored_scales = writer.constant(scales, f"{table.name}_int8.scale")
    back = writer.node(node, "DequantizeLinear", [rows, stored_scales], f"{old.name}_back", axis=-1).outputs[0]
    back.type, back.shape = old.type, old.shape
    back.meta.update(old.meta)
    old.replace_all_uses_with(back)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    remove_initializer_if_dead(table)
