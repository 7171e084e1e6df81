"""mT5 (Xue et al., 2021): T5 version 1.1, whose head takes the last states unscaled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from intaglio.exporters.encoder_decoders.written import t5
from intaglio.exporters.encoder_decoders.written.graph import CrossAttentionDecoderGraph


def decode(graph: CrossAttentionDecoderGraph, config: dict[str, Any]) -> None:
    """Write the decoder."""
    t5.decode(graph, {**config, "scale_decoder_outputs": False})


FAMILY = replace(t5.FAMILY, model_type="mt5", architecture="MT5ForConditionalGeneration", decode=decode)
