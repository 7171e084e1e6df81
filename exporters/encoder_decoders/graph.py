"""The two graphs of an encoder-decoder: what reads the source text once, and the decoder that attends to it.

The encoder's graph ends in the keys and values that the decoder's layers make of its last states, so that they are
computed once for a text. The inputs and outputs are described in docs/bundle.md.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from intaglio.bundle import Decoder
from intaglio.exporters.decoders.graph import DecoderGraph
from intaglio.exporters.writing.checkpoint_weights import CheckpointWeights
from intaglio.exporters.writing.graph_writer import GraphWriter, graph_input, graph_inputs, named
from intaglio.exporters.writing.relative_positions import RelativePositions
from intaglio.runtime.sessions.step import CROSS, KINDS, SOURCE_IDS, SOURCE_MASK, cross_axes


class EncoderGraph(GraphWriter):
    """An encoder's graph while it is written; `decoder` is what reads its outputs."""

    def __init__(self, decoder: Decoder, weights: CheckpointWeights, dtype: ir.DataType):
        self.decoder = decoder
        self.source_ids = graph_input(SOURCE_IDS)
        self.source_mask = graph_input(SOURCE_MASK)
        super().__init__(
            "encoder", [self.source_ids, self.source_mask], weights, dtype, decoder.heads, decoder.head_dim
        )
        self._mask: ir.Value | None = None

    def relative_positions(self, path: str, relative: RelativePositions) -> None:
        """Let tokens attend to all of the source text, with the biases of the embedding at `path`."""
        length = self.op("Squeeze", [self.op("Shape", [self.source_ids], start=1, end=2)])
        places = self.op("Range", [self.constant("none", 0), length, self.constant("one", 1)])
        places = self.op("Unsqueeze", [places, self.constant("axis_0", [0])])
        bias = relative.bias(self, path, places, places, self.decoder.heads)
        kept = self.op("Unsqueeze", [self.source_mask, self.constant("axes_1_2", [1, 2])])
        self._mask = masked(self, kept, bias)

    def attention(self, queries: ir.Value, keys: ir.Value, values: ir.Value, scale: float) -> ir.Value:
        """All are [batch, heads, source, head_dim]; returned is [batch, source, heads · head_dim]."""
        assert self._mask is not None, "relative_positions comes first"
        return self.attend(queries, keys, values, self._mask, scale)

    def finish(self, crossed: list[tuple[ir.Value, ir.Value]]) -> None:
        """Take the keys and values of each of the decoder's layers for outputs; `model` is then complete.

        Raises `SourceError` for weights that the checkpoint lacks.
        """
        self.weights.check_found()
        shape = cross_axes(self.decoder)
        for index, pair in enumerate(crossed):
            for kind, value in zip(KINDS, pair, strict=True):
                value.type = ir.TensorType(self.dtype)
                self._graph.outputs.append(named(value, f"{CROSS}{kind}_{index}", shape))
        ShapeInferencePass()(self.model)


class ReadingDecoderGraph(DecoderGraph):
    """The graph of a decoder that attends to a source text, whose keys and values in each layer are inputs."""

    def __init__(self, decoder: Decoder, weights: CheckpointWeights, dtype: ir.DataType):
        super().__init__(decoder, weights, dtype)
        self.source_mask = graph_input(SOURCE_MASK)
        self._crossed = graph_inputs(CROSS, decoder.layers, dtype, cross_axes(decoder))
        self._graph.inputs.extend([self.source_mask, *(value for pair in self._crossed for value in pair)])
        tokens = self.op("Shape", [self.input_ids], start=1, end=2)
        one = self.constant("shape_one", [1])
        every = self.op("Concat", [one, one, tokens, one], axis=0)
        kept = self.op("Unsqueeze", [self.source_mask, self.constant("axes_1_2", [1, 2])])
        self._source_mask = self.op("Expand", [kept, every])  # a row for each token: ONNX Runtime has it so

    def relative_positions(self, path: str, relative: RelativePositions) -> None:
        """Add the biases of the embedding at `path` to what tokens attend to.

        A slot that is written in this step has the position of its token, any other its own number: what earlier
        steps left in the cache has no branches.
        """
        capacity = self.op("Shape", [self.attention_mask], start=2, end=3)
        batch = self.op("Shape", [self.input_ids], start=0, end=1)
        slots = self.op("Range", [self.constant("none", 0), self.op("Squeeze", [capacity]), self.constant("one", 1)])
        slots = self.op("Expand", [slots, self.op("Concat", [batch, capacity], axis=0)])
        tokens = self.op("Squeeze", [self.op("Shape", [self.input_ids], start=1, end=2)])
        written = self.op("Range", [self.constant("none", 0), tokens, self.constant("one", 1)])
        start = self.op("Unsqueeze", [self.write_start, self.constant("axis_1", [1])])
        keys = self.op("ScatterElements", [slots, self.op("Add", [start, written]), self.positions], axis=1)
        bias = relative.bias(self, path, self.positions, keys, self.decoder.heads)
        self._mask = masked(self, self._mask, bias)

    def cross_attention(self, index: int, queries: ir.Value, scale: float) -> ir.Value:
        """Attend to the source text; `queries` [batch, heads, tokens, head_dim] are of the layer `index`."""
        return self.attend(queries, *self._crossed[index], self._source_mask, scale)


def masked(graph: GraphWriter, mask: ir.Value, bias: ir.Value) -> ir.Value:
    """`bias` where `mask` is true, elsewhere the lowest number: a text of padding alone still has a softmax."""
    lowest = graph.constant("lowest", np.finfo(graph.dtype.numpy()).min, graph.dtype)
    return graph.op("Where", [mask, bias, lowest])
