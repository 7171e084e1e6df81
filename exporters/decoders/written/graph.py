"""The one place that writes decoder graphs.

The cache is a set of buffers that `TensorScatter` writes in place and `Attention` reads; no tracer produces that from a
model's own cache. `runtime.sessions.step` defines inputs and outputs; docs/bundle.md lists them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.writing.checkpoint_weights import HEAD, CheckpointWeights
from intaglio.exporters.writing.graph_writer import GraphWriter, graph_input, graph_inputs, named
from intaglio.runtime.sessions.step import KINDS, LOGITS, PAST, PRESENT, STEP, cache_axes, logits_spec

Frequencies = np.ndarray[Any, np.dtype[np.float32]]  # [head_dim / 2], radians a position
BeforeHead = Callable[[ir.Value], ir.Value]  # writes the layers between the last block and the head: a norm


class DecoderGraph(GraphWriter):
    """A decoder's graph while it is written."""

    def __init__(self, decoder: Decoder, weights: CheckpointWeights, dtype: ir.DataType):
        self.decoder = decoder
        first = [graph_input(spec) for spec in STEP]
        self.input_ids, self.positions, self.attention_mask, self.write_start, self.logit_indices = first
        self._past = graph_inputs(PAST, decoder.layers, dtype, cache_axes(decoder))
        inputs = [*first, *self.extra_inputs(), *(value for pair in self._past for value in pair)]
        super().__init__("decoder", inputs, weights, dtype, decoder.heads, decoder.head_dim)
        self._present: list[ir.Value] = []
        self._angles: list[ir.Value] = []  # cosines, sines; the same for queries
        self._mask = self.op("Unsqueeze", [self.attention_mask, self.constant("axis_1", [1])])  # the same for all heads

    def extra_inputs(self) -> list[ir.Value]:
        """Additional inputs of this kind of graph, before the caches."""
        return []

    def block_input(self, index: int, x: ir.Value, width: int) -> ir.Value:
        """The input of block `index`, from the output `x` [batch, tokens, width] of the block before."""
        return x

    def block_output(self, x: ir.Value) -> ir.Value:
        """The output of the current block, which computed `x` [batch, tokens, width]."""
        return x

    def rotary_angles(self, frequencies: Frequencies, factor: float, scale: float) -> None:
        """Set the angles of `rotate` to position · frequency."""
        self._angles = self.angles_at(self.positions, frequencies, factor, scale)

    def angles_at(self, positions: ir.Value, frequencies: Frequencies, factor: float, scale: float) -> list[ir.Value]:
        """Cosines and sines of position · frequency, [batch, tokens, head_dim / 2], in float32 up to the final cast.

        They are multiplied by `factor`; after them come the same two multiplied by `scale`, for queries.
        """
        with self.module("rotary"):
            places = self.op("Cast", [positions], to=ir.DataType.FLOAT)
            places = self.op("Unsqueeze", [places, self.constant("axis_last", [-1])])
            angles = self.op("Mul", [places, self.constant("rotary.frequencies", frequencies, ir.DataType.FLOAT)])
            both = [self.op(op_type, [angles]) for op_type in ("Cos", "Sin")]
            if factor != 1.0:
                both = self._multiplied(both, "rotary.factor", factor)
            both += self._multiplied(both, "rotary.scale", scale)
            if self.dtype != ir.DataType.FLOAT:
                both = [self.op("Cast", [value], to=self.dtype) for value in both]
        self.layers.pop("rotary")  # not a module of the checkpoint
        return both

    def _multiplied(self, values: list[ir.Value], name: str, factor: float) -> list[ir.Value]:
        return [self.op("Mul", [value, self.constant(name, factor, ir.DataType.FLOAT)]) for value in values]

    def rotate(self, x: ir.Value, scaled: bool = False) -> ir.Value:
        """Rotary position embedding of [batch, heads, tokens, head_dim], which pairs the two halves of each head.

        `scaled`: queries, multiplied by the scale of the attention, which costs nothing here.
        """
        return self.op("RotaryEmbedding", [x, *(self._angles[2:] if scaled else self._angles[:2])])

    def attention(self, queries: ir.Value, keys: ir.Value, values: ir.Value, scale: float) -> ir.Value:
        """Write keys and values into this layer's cache, and attend to the slots that the mask allows.

        All inputs are [batch, heads, tokens, head_dim]. Returns [batch, tokens, heads · head_dim].
        """
        index = len(self._present) // 2
        for kind, past, new in zip(KINDS, self._past[index], (keys, values), strict=True):
            present = self.op("TensorScatter", [past, new, self.write_start], axis=2, mode="linear")
            present.name = f"{PRESENT}{kind}_{index}"
            self._present.append(present)
        return self.attend(queries, self._present[-2], self._present[-1], self._mask, scale)

    def finish(self, x: ir.Value, width: int, before_head: BeforeHead) -> None:
        """Apply `before_head` to the last block's states, then the head to the rows that are needed.

        `width` is the head's input width; `model` is complete afterwards. A tied head uses the embedding's weight,
        which the file stores once. Raises `SourceError` for missing or unexpected weights of the checkpoint.
        """
        shape = [self.decoder.vocab_size, width]
        x = before_head(x)
        with self.module(HEAD):
            wanted = self.head_input(x, width)
            if self.weights.tied:
                matrix = self.op("Transpose", [self.weight(self.weights.table, shape)], perm=[1, 0])
            else:
                matrix = self.weight(f"{HEAD}.weight", shape, transposed=True)
            outputs = self.head_outputs(self.logits_of(wanted, matrix), matrix)
        self.layers.pop(HEAD)  # it returns only the rows that are needed, the checkpoint's module all
        self.weights.check()
        for value in outputs:
            value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
        self._graph.outputs.extend([*outputs, *self._present])
        for value, past in zip(self._present, [past for pair in self._past for past in pair], strict=True):
            value.type, value.shape = past.type, past.shape
        ShapeInferencePass()(self.model)

    def logits_of(self, states: ir.Value, matrix: ir.Value) -> ir.Value:
        """Float32 logits [batch, rows, vocab] of states [batch, rows, width]; `matrix` [width, vocab]: the head's."""
        logits = self.op("MatMul", [states, matrix])
        return logits if self.dtype == ir.DataType.FLOAT else self.op("Cast", [logits], to=ir.DataType.FLOAT)

    def head_input(self, x: ir.Value, width: int) -> ir.Value:
        """The rows of the last states `x` [batch, tokens, width] that go through the head."""
        return self.rows_at(x, self.logit_indices)

    def head_outputs(self, logits: ir.Value, matrix: ir.Value) -> list[ir.Value]:
        """The named outputs for the logits [batch, rows, vocab] of these rows; `matrix` is the head's."""
        return [named(logits, LOGITS, logits_spec(LOGITS, self.decoder).shape)]

    def rows_at(self, x: ir.Value, indices: ir.Value) -> ir.Value:
        """The rows [batch, wanted, width] of `x` [batch, tokens, width] at `indices` [batch, wanted]."""
        rows = self.op("Unsqueeze", [indices, self.constant("axis_last", [-1])])
        return self.op("GatherND", [x, rows], batch_dims=1)
