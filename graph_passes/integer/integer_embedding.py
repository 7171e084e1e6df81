"""IntegerEmbedding: quantise embedding tables to 8 bits, with one scale per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant, remove_initializer_if_dead
from intaglio.graph_passes.integer.scores import is_position_bias
from intaglio.graph_passes.quantize_dequantize.quantize_weights import FLOATS, quantize_columns
from intaglio.graph_passes.quantize_dequantize.quantized import Writer
from intaglio.graph_passes.quantize_dequantize.region import is_embedding, model_region


@dataclass(frozen=True)
class IntegerEmbedding(Pass):
    """Gather(table, ids) becomes DequantizeLinear(Gather(int8 table, ids)), so only the rows read are scaled.

    1. `where="encoder"`: every Gather from a constant 2-D float32 table at the beginning of the encoder. A table with
       other uses (a head tied to the embeddings) is then stored twice, and named in the counts. A bias of relative
       positions is left for integer_attention, which needs it at the scale of the scores.
    2. `where="everywhere"`: every Gather from a constant 2-D float32 or float16 table. Left, with the reason: tables
       with other uses.
    """

    name: ClassVar[str] = "integer_embedding"
    effect: ClassVar[Effect] = Effect.WEIGHTS_8
    where: Literal["encoder", "everywhere"] = "encoder"

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        stored: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        for node in model_region(model) if self.where == "encoder" else list(model.graph):
            table = node.inputs[0] if is_embedding(node) else None
            tensor = constant(table)
            if table is None or tensor is None or tensor.dtype not in FLOATS or node.outputs[0].is_graph_output():
                continue
            if self.where == "encoder" and is_position_bias(node):
                continue
            gathers = [user for user, _ in table.uses() if is_embedding(user) and user.graph is model.graph]
            if others := sorted({user.op_type for user, _ in table.uses() if user not in gathers}):
                counts.leave(f"{table.name} is used by {', '.join(others)} too")
                if self.where == "everywhere":
                    continue
            if table not in stored:
                integers, scales = quantize_columns(str(table.name), tensor.numpy())
                name = f"{table.name}_int8"
                stored[table] = writer.constant(integers, name), writer.constant(scales, f"{name}.scale")
                counts.add("tables")
            _replace(writer, node, *stored[table])
            remove_initializer_if_dead(table)


def _replace(writer: Writer, node: ir.Node, integers: ir.Value, scales: ir.Value) -> None:
    """Replace `node` by rows of `integers` [rows, channels], dequantised with `scales` [channels]."""
    old = node.outputs[0]
    rows = writer.node(node, "Gather", [integers, node.inputs[1]], f"{old.name}_int8", axis=0).outputs[0]
    rows.dtype, rows.shape = ir.DataType.INT8, old.shape
    back = writer.node(node, "DequantizeLinear", [rows, scales], f"{old.name}_back", axis=-1).outputs[0]
    back.type, back.shape = old.type, old.shape
    back.meta.update(old.meta)
    old.replace_all_uses_with(back)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
