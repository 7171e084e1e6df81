"""Decoder graphs that stop computing a token whose state is saturated (CALM, Schuster et al. 2022).

    input   exit_thresholds  float32 [batch], one per sequence; 2 or more: none of its tokens exits
    output  blocks_run       int64 [batch, positions_wanted], blocks run for each wanted token

A token exits after a block if the cosine similarity of its states before and after the block exceeds the threshold
(section 3.2). Its state then no longer changes, and the remaining blocks compute their keys and values from it, so that
later tokens can attend to it in every layer (state propagation, section 3.1; thesis, appendix C.2).

A block's norm, projections and caches are computed in every step; the rest of it is in a branch, which runs only if
some token of the step has not exited. The result of a sequence does not depend on the other sequences of the batch.
"""

from __future__ import annotations

import onnx_ir as ir

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.decoders.written.graph import DecoderGraph
from intaglio.exporters.writing.checkpoint_weights import CheckpointWeights
from intaglio.exporters.writing.graph_writer import graph_input, named
from intaglio.runtime.sessions.step import BLOCKS_RUN, EXIT_THRESHOLDS


class SaturationGraph(DecoderGraph):
    """A decoder's graph with an exit after every block but the last."""

    def __init__(self, decoder: Decoder, weights: CheckpointWeights, dtype: ir.DataType):
        self.exit_thresholds = graph_input(EXIT_THRESHOLDS)
        super().__init__(decoder, weights, dtype)
        axes = self.constant("axes_1_2", [1, 2])
        self._thresholds = self.op("Unsqueeze", [self.exit_thresholds, axes])  # for [batch, tokens, 1]
        self._block_input: ir.Value | None = None
        self._staying: ir.Value | None = None  # bool [batch, tokens, 1]: token runs through this block; None: all do
        self._blocks_run: ir.Value | None = None  # int64 [batch, tokens, 1], including this block

    def extra_inputs(self) -> list[ir.Value]:
        """See `DecoderGraph`."""
        return [self.exit_thresholds]

    def block_input(self, index: int, x: ir.Value, width: int) -> ir.Value:
        """See `DecoderGraph`."""
        if self._block_input is not None:
            self._stop_saturated(self._block_input, x)
        self._block_input, self._width = x, width
        return x

    def _stop_saturated(self, before: ir.Value, after: ir.Value) -> None:
        """Keep the tokens that have not exited, and whose states before and after the block still differ."""
        similar = self._cosine(before, after)
        saturated = self.op("Greater", [similar, self._thresholds])
        staying = self.op("Not", [saturated])
        self._staying = staying if self._staying is None else self.op("And", [self._staying, staying])
        counted = self.op("Cast", [self._staying], to=ir.DataType.INT64)
        so_far = self.constant("one", 1) if self._blocks_run is None else self._blocks_run
        self._blocks_run = self.op("Add", [so_far, counted])
        self._any = self.op("Cast", [self.op("ReduceMax", [counted], keepdims=0)], to=ir.DataType.BOOL)

    def _cosine(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """[batch, tokens, 1], in float32; NaN if a state is zero, which exceeds no threshold."""
        if self.dtype != ir.DataType.FLOAT:
            left, right = (self.op("Cast", [value], to=ir.DataType.FLOAT) for value in (left, right))
        last = self.constant("axis_last", [-1])
        product = self.op("ReduceSum", [self.op("Mul", [left, right]), last], keepdims=1)
        norms = [self.op("ReduceL2", [value, last], keepdims=1) for value in (left, right)]
        return self.op("Div", [product, self.op("Mul", norms)])

    def attend(self, queries: ir.Value, keys: ir.Value, values: ir.Value, mask: ir.Value, scale: float) -> ir.Value:
        """See `GraphWriter`; from here to the block's end the nodes are in a branch."""
        if self._staying is not None:
            self._written = ir.Graph([], [], nodes=[], name=f"{self._scopes[-1]}/then")
        attended = super().attend(queries, keys, values, mask, scale)
        return self._states(attended, self._heads * self._head_dim)

    def block_output(self, x: ir.Value) -> ir.Value:
        """See `DecoderGraph`."""
        if self._staying is None:
            return x
        kept, then = self._block_input, self._written
        then.outputs.append(self.op("Where", [self._staying, x, kept]))
        self._written = otherwise = ir.Graph([], [], nodes=[], name=f"{self._scopes[-1]}/else")
        otherwise.outputs.append(self.op("Identity", [kept]))
        self._written = self._graph
        return self._states(self.op("If", [self._any], then_branch=then, else_branch=otherwise), self._width)

    def _states(self, value: ir.Value, width: int) -> ir.Value:
        """`value` with its shape [batch, tokens, width], which shape inference does not find for branches."""
        value.type, value.shape = ir.TensorType(self.dtype), ir.Shape(["batch", "tokens", width])
        return value

    def head_outputs(self, logits: ir.Value, matrix: ir.Value) -> list[ir.Value]:
        """See `DecoderGraph`."""
        assert self._blocks_run is not None, "early exits need at least two blocks"
        wanted = self.rows_at(self._blocks_run, self.logit_indices)
        blocks = self.op("Squeeze", [wanted, self.constant("axis_last", [-1])])
        blocks.type = ir.TensorType(ir.DataType.INT64)
        return [*super().head_outputs(logits, matrix), named(blocks, BLOCKS_RUN.name, BLOCKS_RUN.shape)]
