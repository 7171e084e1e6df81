"""Export a decoder: from its checkpoint to the graph, the manifest, and the comparison with the source model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Decoder, Draft
from intaglio.display.progress import step
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.tokenizer_files import write_decoder_tokenizer
from intaglio.exporters.decoders.check import check_decoder, token_batch
from intaglio.exporters.decoders.reference import source_outputs
from intaglio.exporters.decoders.writing import with_ends, with_trained, write_decoder
from intaglio.exporters.decoders.written.draft_graph import decoder_graph
from intaglio.exporters.decoders.written.family import DecoderFamily
from intaglio.exporters.decoders.written.graph import DecoderGraph
from intaglio.exporters.reference.check import Checked, block_outputs
from intaglio.exporters.reference.source_model import source_errors
from intaglio.exporters.writing.checkpoint_weights import DecoderWeights
from intaglio.extras import load
from intaglio.networks.drafts import Drafts


def export_decoder(
    checkpoint: Checkpoint, family: DecoderFamily, dtype: str, draft: Draft, bounds: Bounds | None
) -> dict[str, Checked]:
    """Fill `draft` with the decoder of `checkpoint`; with `bounds`, compare its logits with the source model's.

    Raises `SourceError` for a checkpoint that is inconsistent or not supported.
    """
    with step("loading the libraries"):
        load("torch")
        load("transformers")
    config = full_config(checkpoint, family.architecture)
    described = family.describe(config)
    write_decoder_tokenizer(checkpoint, draft.path, described.vocab_size)
    drafts = checkpoint.drafts(described.layers)
    decoder = with_ends(described, checkpoint, config)
    decoder = with_trained(decoder, drafts, checkpoint.early_exit(described.layers))
    graph = _graph(checkpoint, family, decoder, config, dtype, drafts)
    if bounds is None:
        _write(graph, checkpoint, family, dtype, draft)
        return {}
    batch = token_batch(draft.path, decoder)
    with step("running the source model"):
        expected = source_outputs(checkpoint, family.architecture, decoder, batch, range(decoder.layers))
    _write(graph, checkpoint, family, dtype, draft)
    with step("checking against the source model"):
        return check_decoder(
            draft.model_path, decoder, bounds, batch, expected, block_outputs(graph.layers, [family.blocks])
        )


def full_config(checkpoint: Checkpoint, architecture: str) -> dict[str, Any]:
    """config.json, with the defaults of `transformers` for missing keys."""
    transformers = load("transformers")
    with source_errors(checkpoint, architecture, Exception):  # the library raises all kinds of exceptions
        config = transformers.AutoConfig.from_pretrained(str(checkpoint.folder), trust_remote_code=False)
        return dict(config.to_dict())


def _graph(
    checkpoint: Checkpoint,
    family: DecoderFamily,
    decoder: Decoder,
    config: dict[str, Any],
    dtype: str,
    drafts: Drafts | None,
) -> DecoderGraph:
    """The finished graph, with its weights still unread."""
    tie = bool(config["tie_word_embeddings"])
    weights = DecoderWeights(checkpoint.folder, checkpoint.tensors(), family.base, family.blocks, family.embedding, tie)
    weights.add(checkpoint.draft_tensors())
    graph = decoder_graph(decoder, weights, ir.DataType.from_numpy(np.dtype(dtype)), drafts)
    family.build(graph, config)
    return graph


def _write(graph: DecoderGraph, checkpoint: Checkpoint, family: DecoderFamily, dtype: str, draft: Draft) -> None:
    write_decoder(graph.model, graph.layers, graph.weights.rounding, checkpoint, family, graph.decoder, dtype, draft)
