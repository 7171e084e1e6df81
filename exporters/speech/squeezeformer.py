"""Squeezeformer with a CTC head (`intaglio.networks.speech.squeezeformer`)."""

from __future__ import annotations

import math
from collections.abc import Callable

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
    scaling,
    subsampling,
    time_recovery,
    time_reduction,
)
from intaglio.networks.speech.configuration import SqueezeformerConfig

Module = Callable[[str, ir.Value], ir.Value]  # (path, input) -> output


def build(graph: SpeechGraph, features: ir.Value, lengths: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Write the encoder; the states and their lengths."""
    config = graph.config
    assert isinstance(config, SqueezeformerConfig)
    reduce_at, recover_at = config.time_reduced
    x, lengths = subsampling(graph, features, lengths)
    if config.scale_input:
        x = graph.op("Mul", [x, graph.number(math.sqrt(config.hidden_size))])
    x = norm(graph, "encoder.norm", x)
    frames = whole = frames_of(graph, x, lengths)
    skipped = x
    for index in range(config.num_hidden_layers):
        if index == reduce_at:
            skipped = x
            x = time_reduction(graph, "encoder.time_reduction", x, frames)
            frames = frames_of(graph, x, graph.halved(lengths))
        if index == recover_at:
            frames = whole
            x = time_recovery(graph, "encoder.time_recovery", x, frames.size)
            x = graph.add(skipped, x) if config.skip_connection else x
        path = f"encoder.layers.{index}"
        with graph.module(path):
            x = _block(graph, config, path, x, frames)
    return x, frames.lengths


def _block(graph: SpeechGraph, config: SqueezeformerConfig, path: str, x: ir.Value, frames: Frames) -> ir.Value:
    activation = config.convolution_activation
    modules: dict[str, Module] = {
        "attention": lambda at, x: attention(graph, at, x, frames),
        "feed_forward1": lambda at, x: feed_forward(graph, at, x),
        "convolution": lambda at, x: convolution(graph, at, x, frames, activation),
        "feed_forward2": lambda at, x: feed_forward(graph, at, x),
    }
    for name, module in modules.items():
        with graph.module(f"{path}.{name}"):
            x = _residual(graph, config, f"{path}.{name}", x, module)
    return x


def _residual(graph: SpeechGraph, config: SqueezeformerConfig, path: str, x: ir.Value, module: Module) -> ir.Value:
    if config.normalization == "pre":
        return graph.add(x, module(f"{path}.module", norm(graph, f"{path}.norm", x)))
    scaled = scaling(graph, f"{path}.scaling", x) if config.normalization == "scaled-post" else x
    return norm(graph, f"{path}.norm", graph.add(x, module(f"{path}.module", scaled)))


FAMILY = SpeechFamily("squeezeformer", "SqueezeformerForCTC", build)
