"""Export an encoder-decoder of a family whose graphs are written here."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Draft
from intaglio.display.progress import step
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.encoder_decoders.encoder_decoder_bundle import (
    EncoderDecoderParts,
    Part,
    special_tokens,
    write_encoder_decoder,
)
from intaglio.exporters.encoder_decoders.written.family import EncoderDecoderFamily
from intaglio.exporters.encoder_decoders.written.graph import CrossAttentionDecoderGraph, EncoderGraph
from intaglio.exporters.reference.check import Checked
from intaglio.exporters.reference.source_model import source_errors
from intaglio.exporters.writing.checkpoint_weights import CheckpointWeights
from intaglio.extras import load


def export_encoder_decoder(
    checkpoint: Checkpoint, family: EncoderDecoderFamily, dtype: str, draft: Draft, bounds: Bounds | None
) -> dict[str, Checked]:
    """Fill `draft` with the two graphs of `checkpoint`; with `bounds`, compare their outputs with the source model's.

    Raises `SourceError` for a checkpoint that is inconsistent or not supported.
    """
    with step("loading the libraries"):
        load("torch")
        load("transformers")
    config = _full_config(checkpoint, family.architecture)
    weights = CheckpointWeights(
        checkpoint.folder,
        checkpoint.tensors(),
        family.blocks,
        family.embedding,
        bool(config["tie_word_embeddings"]),
        family.copies,
    )
    described, of = family.describe(config), ir.DataType.from_numpy(np.dtype(dtype))
    tokens = special_tokens(checkpoint, config, described.vocab_size)
    encoder, decoder = EncoderGraph(described, weights, of), CrossAttentionDecoderGraph(described, weights, of)
    family.encode(encoder, config)
    family.decode(decoder, config)
    parts = EncoderDecoderParts(
        Part(encoder.model, encoder.layers),
        Part(decoder.model, decoder.layers),
        described,
        tokens,
        family.blocks,
        weights.count(),
        [weights.rounding],
    )
    return write_encoder_decoder(parts, checkpoint, family, config, dtype, draft, bounds)


def _full_config(checkpoint: Checkpoint, architecture: str) -> dict[str, Any]:
    """config.json, with the defaults of `transformers` for missing keys."""
    transformers = load("transformers")
    with source_errors(checkpoint, architecture, Exception):  # the library raises all kinds of exceptions
        config = transformers.AutoConfig.from_pretrained(str(checkpoint.folder), trust_remote_code=False)
        return dict(config.to_dict())
