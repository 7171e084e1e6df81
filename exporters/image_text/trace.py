"""Trace a decoder that reads images to the two graphs of a bundle, their weights still unread."""

from __future__ import annotations

from typing import NamedTuple

import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from intaglio.exporters.decoders.operators import as_nodes
from intaglio.exporters.decoders.traced import trace as decoders
from intaglio.exporters.decoders.traced.trace import TracedGraph
from intaglio.exporters.decoders.traced.weights import TracedWeights
from intaglio.exporters.image_text.modules import ImageEncoderModule, ImageTextModule
from intaglio.exporters.image_text.processor import FrameProcessor
from intaglio.exporters.writing.graph_writer import OPSET
from intaglio.exporters.writing.traced_graph import fake_mode, quiet, to_onnx
from intaglio.runtime.sessions.step import BATCH

GRAPH = "image_encoder"  # the name of its graph
FRAMES = 2  # traced; a size of 1 would be taken as a constant


class TracedImageText(NamedTuple):
    """The two graphs."""

    encoder: TracedGraph
    decoder: TracedGraph


def trace(decoder: ImageTextModule, processor: FrameProcessor, dtype: torch.dtype) -> TracedImageText:
    """Trace both parts of `decoder`, whose parameters are `DeferredTensor`s and are consumed."""
    parameters = dict(decoder.named_parameters(remove_duplicate=False))
    text = decoders.trace(decoder, dtype)
    encoder = ImageEncoderModule(decoder, processor)
    with quiet():
        fake = fake_mode()
        with fake, decoders.returns(encoder) as returned:
            side = processor.side
            encoder(torch.zeros(FRAMES, 3, side, side, dtype=torch.uint8))
        with as_nodes():
            model = to_onnx(
                encoder,
                encoder.inputs,
                encoder.output_names,
                {BATCH: torch.export.Dim(BATCH)},
                {BATCH: FRAMES},
                fake,
                OPSET,
                variadic=len(encoder.inputs),
            )
    weights = TracedWeights(model, parameters, from_torch_dtype(dtype))
    return TracedImageText(decoders.finish(model, GRAPH, encoder, {}, weights, returned), text)
