"""Conformer with a CTC head (`intaglio.networks.speech.conformer`)."""

from __future__ import annotations

import math

import onnx_ir as ir

from intaglio.exporters.speech.family import SpeechFamily
from intaglio.exporters.speech.graph import SpeechGraph
from intaglio.exporters.speech.modules import (
    Frames,
    attention,
    convolution,
    feed_forward,
    frames_of,
    norm,
    subsampling,
)
from intaglio.networks.speech.configuration import ConformerConfig


def build(graph: SpeechGraph, features: ir.Value, lengths: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Write the encoder; the states and their lengths."""
    config = graph.config
    assert isinstance(config, ConformerConfig)
    x, lengths = subsampling(graph, features, lengths)
    if config.scale_input:
        x = graph.op("Mul", [x, graph.number(math.sqrt(config.hidden_size))])
    frames = frames_of(graph, x, lengths, config.relative_positions)
    for index in range(config.num_hidden_layers):
        path = f"encoder.layers.{index}"
        with graph.module(path):
            x = _block(graph, config, path, x, frames)
    return x, lengths


def _block(graph: SpeechGraph, config: ConformerConfig, path: str, x: ir.Value, frames: Frames) -> ir.Value:
    def half_step(name: str, x: ir.Value) -> ir.Value:
        forward = feed_forward(graph, f"{path}.{name}", norm(graph, f"{path}.norm_{name}", x), config.bias)
        return graph.add(x, graph.op("Mul", [forward, graph.number(0.5)]))

    x = half_step("feed_forward1", x)
    x = graph.add(
        x, attention(graph, f"{path}.attention", norm(graph, f"{path}.norm_attention", x), frames, config.bias)
    )
    normalised = norm(graph, f"{path}.norm_convolution", x)
    convolved = convolution(graph, f"{path}.convolution", normalised, frames, "glu", config.batch_norm, config.bias)
    x = half_step("feed_forward2", graph.add(x, convolved))
    return norm(graph, f"{path}.norm_out", x)


FAMILY = SpeechFamily("conformer-ctc", "ConformerForCTC", build)
