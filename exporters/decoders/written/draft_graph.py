"""Decoder graphs that draft: the parts that `drafts.safetensors` adds to the graph of a family.

The output `draft_logits` is float32 [batch, drafting, drafts, vocab]: for each of the tokens at `draft_indices`, the
logits of the tokens after the next one. The rows of drafts go through the head together with the rows of `logits`,
so that its weight is read once.
"""

from __future__ import annotations

from abc import abstractmethod

import onnx_ir as ir

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.decoders.written.early_exit_graph import EarlyExitGraph
from intaglio.exporters.decoders.written.graph import DecoderGraph, Frequencies
from intaglio.exporters.decoders.written.saturation_graph import SaturationGraph
from intaglio.exporters.writing.checkpoint_weights import CheckpointWeights
from intaglio.exporters.writing.graph_writer import graph_input, named
from intaglio.networks.drafts import HEAD_ROWS, HIDDEN_TRANSFER, Drafts, matrix_path, rows_after
from intaglio.runtime.sessions.step import DRAFT_INDICES, DRAFT_LOGITS, DRAFT_MASK, DRAFT_POSITIONS, logits_spec

END = (1 << 63) - 1  # end of a slice: up to the end of the axis


def decoder_graph(
    decoder: Decoder, weights: CheckpointWeights, dtype: ir.DataType, drafts: Drafts | None
) -> DecoderGraph:
    """An empty graph for a family to write."""
    if drafts is None:
        plain = SaturationGraph if decoder.saturation_exits else DecoderGraph
        return (EarlyExitGraph if decoder.exit_layer else plain)(decoder, weights, dtype)
    kind = HiddenTransferGraph if drafts.kind == HIDDEN_TRANSFER else MedusaGraph
    return kind(decoder, weights, dtype, drafts)


class DraftGraph(DecoderGraph):
    """The base class of both kinds of drafts."""

    def __init__(self, decoder: Decoder, weights: CheckpointWeights, dtype: ir.DataType, drafts: Drafts):
        self.drafts = drafts
        self.draft_indices = graph_input(DRAFT_INDICES)
        super().__init__(decoder, weights, dtype)

    def extra_inputs(self) -> list[ir.Value]:
        """See `DecoderGraph`."""
        return [self.draft_indices]

    @abstractmethod
    def drafted(self, x: ir.Value, width: int) -> ir.Value:
        """The states [batch, drafting · steps, width] for the head, grouped by token; `x`: all last states."""

    def head_input(self, x: ir.Value, width: int) -> ir.Value:
        """See `DecoderGraph`."""
        return self.joined([super().head_input(x, width), self.drafted(x, width)], HEAD_ROWS, width)

    def head_outputs(self, logits: ir.Value, matrix: ir.Value) -> list[ir.Value]:
        """See `DecoderGraph`."""
        steps, vocabulary = self.drafts.steps, self.decoder.vocab_size
        wanted = self.op("Shape", [self.logit_indices], start=1, end=2)
        first, last = self.sliced(logits, self.constant("zero", [0]), wanted), self.sliced(logits, wanted)
        each = self.constant("shape_draft_logits", [0, -1, steps, vocabulary])
        drafted = self.op("Reshape", [last, each])
        shape = logits_spec(DRAFT_LOGITS, self.decoder).shape
        return [*super().head_outputs(first, matrix), named(drafted, DRAFT_LOGITS, shape)]

    def joined(self, parts: list[ir.Value], rows: str, width: int) -> ir.Value:
        """Concatenate `parts` to states [batch, rows, width], with a name for the axis of their summed rows."""
        states = self.op("Concat", parts, axis=1)
        states.type, states.shape = ir.TensorType(self.dtype), ir.Shape(["batch", rows, width])
        return states

    def sliced(self, x: ir.Value, start: ir.Value, end: ir.Value | None = None) -> ir.Value:
        """Slice the second axis from `start` to `end`, which are int64 [1]."""
        return self.op("Slice", [x, start, end or self.constant("end", [END]), self.constant("axis_1", [1])])


class HiddenTransferGraph(DraftGraph):
    """Pseudo hidden states after those of the tokens, from the transfer layers on: [tokens | step 0 | step 1 | ...].

    Masks and rotations grow with them, and the same TensorScatter writes their keys and values: the pseudo state of
    step s from draft_indices[j] is in the slot write_start + tokens + s · drafting + j (Hidden Transfer, section 3).
    """

    def __init__(self, decoder: Decoder, weights: CheckpointWeights, dtype: ir.DataType, drafts: Drafts):
        self.draft_positions = graph_input(DRAFT_POSITIONS)
        self.draft_mask = graph_input(DRAFT_MASK)
        super().__init__(decoder, weights, dtype, drafts)
        mask = self.op("Unsqueeze", [self.draft_mask, self.constant("axis_1", [1])])
        self._masks = self._steps(mask, axis=2)
        self._step_angles: list[list[ir.Value]] = []  # as `angles_at` returns them: one of each per step

    def extra_inputs(self) -> list[ir.Value]:
        """See `DecoderGraph`."""
        return [*super().extra_inputs(), self.draft_positions, self.draft_mask]

    def _steps(self, value: ir.Value, axis: int) -> list[ir.Value]:
        steps = self.drafts.steps
        return self.ops("Split", [value], steps, axis=axis, num_outputs=steps) if steps > 1 else [value]

    def rotary_angles(self, frequencies: Frequencies, factor: float, scale: float) -> None:
        """See `DecoderGraph`."""
        super().rotary_angles(frequencies, factor, scale)
        drafted = self.angles_at(self.draft_positions, frequencies, factor, scale)
        self._step_angles = [self._steps(value, axis=1) for value in drafted]

    def block_input(self, index: int, x: ir.Value, width: int) -> ir.Value:
        """See `DecoderGraph`; adds the pseudo states of the steps that begin at this block."""
        steps = [step for step, layer in enumerate(self.drafts.layers) if layer == index]
        if not steps:
            return x
        origins = self.rows_at(x, self.draft_indices)
        moves = [self.linear(matrix_path(step), origins, width, width, bias=False) for step in steps]
        pseudo = [self.add(origins, move) for move in moves]
        self._mask = self.op("Concat", [self._mask, *(self._masks[step] for step in steps)], axis=2)
        self._angles = [
            self.op("Concat", [angles, *(pieces[step] for step in steps)], axis=1)
            for angles, pieces in zip(self._angles, self._step_angles, strict=True)
        ]
        return self.joined([x, *pseudo], rows_after(steps[-1] + 1), width)

    def drafted(self, x: ir.Value, width: int) -> ir.Value:
        """See `DraftGraph`; the last states are ordered by step."""
        tokens = self.op("Shape", [self.input_ids], start=1, end=2)
        by_step = self.constant("shape_pseudo_states", [0, self.drafts.steps, -1, width])
        pseudo = self.op("Reshape", [self.sliced(x, tokens), by_step])
        rows = self.constant("shape_drafted", [0, -1, width])
        return self.op("Reshape", [self.op("Transpose", [pseudo], perm=[0, 2, 1, 3]), rows])


class MedusaGraph(DraftGraph):
    """x + SiLU(x·W) of the last states, with one matrix per step."""

    def drafted(self, x: ir.Value, width: int) -> ir.Value:
        """See `DraftGraph`."""
        origins = self.rows_at(x, self.draft_indices)
        steps = []
        for step in range(self.drafts.steps):
            product = self.linear(matrix_path(step), origins, width, width, bias=False)
            state = self.add(origins, self.activation("silu", product))
            steps.append(self.op("Unsqueeze", [state, self.constant("axis_2", [2])]))
        rows = self.constant("shape_drafted", [0, -1, width])
        return self.op("Reshape", [self.op("Concat", steps, axis=2), rows])
