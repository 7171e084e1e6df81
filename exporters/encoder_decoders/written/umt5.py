"""UMT5 (Chung et al., 2023): T5 with biases of relative positions in every block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from intaglio.exporters.encoder_decoders.written import t5
from intaglio.exporters.encoder_decoders.written.graph import CrossAttentionDecoderGraph, EncoderGraph


def encode(graph: EncoderGraph, config: dict[str, Any]) -> None:
    """Write the encoder."""
    t5.encode(graph, {**config, t5.IN_EVERY_BLOCK: True})


def decode(graph: CrossAttentionDecoderGraph, config: dict[str, Any]) -> None:
    """Write the decoder."""
    t5.decode(graph, {**config, t5.IN_EVERY_BLOCK: True})


FAMILY = replace(
    t5.FAMILY, model_type="umt5", architecture="UMT5ForConditionalGeneration", encode=encode, decode=decode
)
