"""The one place that writes decoder graphs.

The cache is a set of buffers that `TensorScatter` writes in place and `Attention` reads. `runtime.sessions.step`
defines inputs and outputs; docs/bundle.md lists them too.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.writing.checkpoint_weights import HEAD, CheckpointWeights
from intaglio.exporters.writing.graph_writer import GraphWriter, graph_input, graph_inputs, named
from intaglio.runtime.sessions.step import KINDS, LOGITS, PAST, PRESENT, STEP, cache_axes, logits_spec

BeforeHead = Callable[[ir.Value], ir.Value]  # writes the layers between the last block and the head: a norm


class DecoderGraph(GraphWriter):
    """A decoder's graph while it is written."""

    def __init__(self, decoder: Decoder, weights: CheckpointWeights, dtype: ir.DataType):
        self.decoder = decoder
        first = [graph_input(spec) for spec in STEP]
        self.input_ids, self.positions, self.attention_mask, self.write_start, self.logit_indices = first
        self._past = graph_inputs(PAST, decoder.layers, dtype, cache_axes(decoder))
        inputs = [*first, *(value for pair in self._past for value in pair)]
        super().__init__("decoder", inputs, weights, dtype, decoder.heads, decoder.head_dim)
        self._present: list[ir.Value] = []
        self._mask = self.op("Unsqueeze", [self.attention_mask, self.constant("axis_1", [1])])  # the same for all heads

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
            rows = self.op("Unsqueeze", [self.logit_indices, self.constant("axis_last", [-1])])
            wanted = self.op("GatherND", [x, rows], batch_dims=1)
            if self.weights.tied:
                matrix = self.op("Transpose", [self.weight(self.weights.table, shape)], perm=[1, 0])
            else:
                matrix = self.weight(f"{HEAD}.weight", shape, transposed=True)
            logits = self.op("MatMul", [wanted, matrix])
            if self.dtype != ir.DataType.FLOAT:
                logits = self.op("Cast", [logits], to=ir.DataType.FLOAT)
        self.layers.pop(HEAD)  # it returns only the rows that are needed, the checkpoint's module all
        self.weights.check()
        logits.type = ir.TensorType(ir.DataType.FLOAT)
        named(logits, LOGITS, logits_spec(LOGITS, self.decoder).shape)
        self._graph.outputs.extend([logits, *self._present])
        for value, past in zip(self._present, [past for pair in self._past for past in pair], strict=True):
            value.type, value.shape = past.type, past.shape
        ShapeInferencePass()(self.model)
