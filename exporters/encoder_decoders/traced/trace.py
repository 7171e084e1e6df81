"""Trace an encoder-decoder of `transformers` to the two graphs of a bundle, their weights still unread."""

from __future__ import annotations

from typing import NamedTuple

import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from intaglio.exporters.decoders.operators import as_nodes
from intaglio.exporters.decoders.traced import trace as decoders
from intaglio.exporters.decoders.traced.replaced import replace_modules
from intaglio.exporters.decoders.traced.rotations import Rotations
from intaglio.exporters.decoders.traced.trace import TracedGraph
from intaglio.exporters.decoders.traced.weights import TracedWeights
from intaglio.exporters.encoder_decoders.traced.modules import CrossAttentionModule, EncoderModule, position_embeddings
from intaglio.exporters.writing.graph_writer import OPSET
from intaglio.exporters.writing.traced_graph import fake_mode, fake_parameters, quiet, to_onnx
from intaglio.runtime.sessions.step import BATCH, CROSS, SOURCE

ENCODER = "encoder"  # the name of its graph
EXAMPLE = {BATCH: 2, SOURCE: 5}  # a size of 1 would be taken as a constant


class TracedGraphs(NamedTuple):
    """The two graphs."""

    encoder: TracedGraph
    decoder: TracedGraph


def trace(decoder: CrossAttentionModule, dtype: torch.dtype, longest: int | None = None) -> TracedGraphs:
    """Trace both parts of `decoder`, whose parameters are `DeferredTensor`s and are consumed.

    `longest`: tokens of a source, where their number is not fixed.
    """
    encoder = EncoderModule(decoder)
    for table in position_embeddings(decoder):
        for name, buffer in table.named_buffers(recurse=False):
            setattr(table, name, buffer.to(dtype))
    with quiet():
        fake = fake_mode()
        parameters = fake_parameters(decoder, dtype, fake)
        rotations = Rotations(decoder)
        with rotations.watched(), fake, decoders.returns(decoder) as returned:
            caches = decoder.cache_shapes()
        decoder.cached = sorted(caches)
        replace_modules(decoder)
        with as_nodes(), rotations.replaced():
            reading = to_onnx(
                encoder,
                decoder.sources,
                [spec.name for spec in decoder.inputs if spec.name.startswith(CROSS)],
                {BATCH: torch.export.Dim(BATCH), SOURCE: torch.export.Dim(SOURCE, max=longest)},
                EXAMPLE,
                fake,
                OPSET,
                variadic=len(decoder.sources),
            )
            writing = decoders.export_step(decoder, caches, dtype, fake, {SOURCE: EXAMPLE[SOURCE]})
    graphs = [
        decoders.finish(
            traced, name, module, caches, TracedWeights(traced, parameters, from_torch_dtype(dtype)), returned
        )
        for traced, name, module in ((reading, ENCODER, encoder), (writing, decoders.GRAPH, decoder))
    ]
    return TracedGraphs(*graphs)
