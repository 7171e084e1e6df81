"""Decoder graphs with an early exit: an additional output `exit_logits`, float32 [batch, positions_wanted, vocab].

It is the final norm and the head applied to the states after the first blocks, with the same weights as for `logits`.
"""

from __future__ import annotations

import onnx_ir as ir

from intaglio.exporters.decoders.written.graph import BeforeHead, DecoderGraph
from intaglio.exporters.writing.graph_writer import named
from intaglio.runtime.sessions.step import EXIT_LOGITS, logits_spec


class EarlyExitGraph(DecoderGraph):
    """A decoder's graph with an exit after the first `exit_layer` blocks."""

    def block_input(self, index: int, x: ir.Value, width: int) -> ir.Value:
        """See `DecoderGraph`."""
        if index == self.decoder.exit_layer:
            self._exited = x
        return x

    def finish(self, x: ir.Value, width: int, before_head: BeforeHead) -> None:
        """See `DecoderGraph`."""
        self._before_head = before_head
        super().finish(x, width, before_head)

    def head_outputs(self, logits: ir.Value, matrix: ir.Value) -> list[ir.Value]:
        """See `DecoderGraph`."""
        returned = dict(self.layers)
        states = self._before_head(self.rows_at(self._exited, self.logit_indices))
        self.layers = returned  # each module returns its value in the whole model
        early = self.logits_of(states, matrix)
        shape = logits_spec(EXIT_LOGITS, self.decoder).shape
        return [*super().head_outputs(logits, matrix), named(early, EXIT_LOGITS, shape)]
