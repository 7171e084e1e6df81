"""The two graphs of an encoder-decoder: the encoder, which runs once, and the decoder with cross-attention to it.

The encoder's graph also computes the cross-attention keys and values of all decoder layers from its last states, so
that they are computed once per sequence. The inputs and outputs are described in docs/bundle.md.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.encoder_decoders.written.decoder_graph import DecoderGraph
from intaglio.exporters.writing.checkpoint_weights import CheckpointWeights
from intaglio.exporters.writing.graph_writer import GraphWriter, graph_input, graph_inputs, named
from intaglio.exporters.writing.relative_positions import RelativePositions
from intaglio.runtime.sessions.step import CROSS, KINDS, SOURCE_IDS, SOURCE_MASK, cross_axes


class EncoderGraph(GraphWriter):
    """An encoder's graph while it is written; `decoder` consumes its outputs."""

    def __init__(self, decoder: Decoder, weights: CheckpointWeights, dtype: ir.DataType):
        self.decoder = decoder
        self.source_ids = graph_input(SOURCE_IDS)
        self.source_mask = graph_input(SOURCE_MASK)
        super().__init__(
            "encoder", [self.source_ids, self.source_mask], weights, dtype, decoder.heads, decoder.head_dim
        )
        length = self.op("Squeeze", [self.op("Shape", [self.source_ids], start=1, end=2)])
        places = self.op("Range", [self.constant("none", 0), length, self.constant("one", 1)])
        self._places = self.op("Unsqueeze", [places, self.constant("axis_0", [0])])
        self._kept = self.op("Unsqueeze", [self.source_mask, self.constant("axes_1_2", [1, 2])])
        self._mask: ir.Value | None = None

    def relative_positions(self, path: str, relative: RelativePositions) -> None:
        """In the next layers tokens attend to the whole source sequence, with the biases of the embedding at `path`."""
        bias = relative.bias(self, path, self._places, self._places, self.decoder.heads)
        self._mask = masked(self, self._kept, bias)

    def attention(self, queries: ir.Value, keys: ir.Value, values: ir.Value, scale: float) -> ir.Value:
        """Attention of inputs [batch, heads, source, head_dim]; returns [batch, source, heads · head_dim]."""
        assert self._mask is not None, "relative_positions comes first"
        return self.attend(queries, keys, values, self._mask, scale)

    def finish(self, crossed: list[tuple[ir.Value, ir.Value]]) -> None:
        """Make the keys and values of each decoder layer the outputs; `model` is complete afterwards.

        Raises `SourceError` for weights missing from the checkpoint.
        """
        self.weights.check_found()
        shape = cross_axes(self.decoder)
        for index, pair in enumerate(crossed):
            for kind, value in zip(KINDS, pair, strict=True):
                value.type = ir.TensorType(self.dtype)
                self._graph.outputs.append(named(value, f"{CROSS}{kind}_{index}", shape))
        ShapeInferencePass()(self.model)


class CrossAttentionDecoderGraph(DecoderGraph):
    """The graph of a decoder with cross-attention; each layer's keys and values of the source sequence are inputs."""

    def __init__(self, decoder: Decoder, weights: CheckpointWeights, dtype: ir.DataType):
        super().__init__(decoder, weights, dtype)
        self.source_mask = graph_input(SOURCE_MASK)
        self._crossed = graph_inputs(CROSS, decoder.layers, dtype, cross_axes(decoder))
        self._graph.inputs.extend([self.source_mask, *(value for pair in self._crossed for value in pair)])
        tokens = self.op("Shape", [self.input_ids], start=1, end=2)
        one = self.constant("shape_one", [1])
        every = self.op("Concat", [one, one, tokens, one], axis=0)
        kept = self.op("Unsqueeze", [self.source_mask, self.constant("axes_1_2", [1, 2])])
        self._source_mask = self.op("Expand", [kept, every])  # ONNX Runtime requires one row per token
        self._seen, self._keys = self._mask, self._key_positions()

    def relative_positions(self, path: str, relative: RelativePositions) -> None:
        """In the next layers the self-attention mask has the biases of the embedding at `path`."""
        bias = relative.bias(self, path, self.positions, self._keys, self.decoder.heads)
        self._mask = masked(self, self._seen, bias)

    def _key_positions(self) -> ir.Value:
        """The position of each slot, int64 [batch, capacity].

        A slot written in this step has the position of its token, any other slot its own index: the tokens of earlier
        steps in the cache have no branches.
        """
        capacity = self.op("Shape", [self.attention_mask], start=2, end=3)
        batch = self.op("Shape", [self.input_ids], start=0, end=1)
        slots = self.op("Range", [self.constant("none", 0), self.op("Squeeze", [capacity]), self.constant("one", 1)])
        slots = self.op("Expand", [slots, self.op("Concat", [batch, capacity], axis=0)])
        tokens = self.op("Squeeze", [self.op("Shape", [self.input_ids], start=1, end=2)])
        written = self.op("Range", [self.constant("none", 0), tokens, self.constant("one", 1)])
        start = self.op("Unsqueeze", [self.write_start, self.constant("axis_1", [1])])
        return self.op("ScatterElements", [slots, self.op("Add", [start, written]), self.positions], axis=1)

    def cross_attention(self, index: int, queries: ir.Value, scale: float) -> ir.Value:
        """Attend to the source sequence; `queries` [batch, heads, tokens, head_dim] come from layer `index`."""
        return self.attend(queries, *self._crossed[index], self._source_mask, scale)


def masked(graph: GraphWriter, mask: ir.Value, bias: ir.Value) -> ir.Value:
    """`bias` where `mask` is true, else the lowest number: softmax stays finite for a row of padding only."""
    lowest = graph.constant("lowest", np.finfo(graph.dtype.numpy()).min, graph.dtype)
    return graph.op("Where", [mask, bias, lowest])
