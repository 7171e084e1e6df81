"""Export an encoder-decoder: its two graphs, the manifest, and the comparison with the source model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Axis, Draft, Encoder, tensor_spec
from intaglio.bundle.model_file import save, share
from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.tokenizer_files import write_decoder_tokenizer
from intaglio.exporters.decoders.writing import GENERATION, step_axes, with_ends
from intaglio.exporters.decoders.written.export import full_config
from intaglio.exporters.encoder_decoders.check import Pair, check_encoder_decoder, pair_batch
from intaglio.exporters.encoder_decoders.family import EncoderDecoderFamily
from intaglio.exporters.encoder_decoders.graph import CrossAttentionDecoderGraph, EncoderGraph
from intaglio.exporters.files.config import read_json
from intaglio.exporters.reference.check import Checked, Floats, block_outputs
from intaglio.exporters.reference.source_model import build_model, check_finite, source_errors
from intaglio.exporters.writing.checkpoint_weights import CheckpointWeights
from intaglio.exporters.writing.manifest import new_manifest
from intaglio.extras import load
from intaglio.runtime.sessions.step import LOGITS

ENCODER = "encoder.onnx"
SHARED = "shared.data"  # weights that both graphs use: the token embedding


def export_encoder_decoder(
    checkpoint: Checkpoint, family: EncoderDecoderFamily, dtype: str, draft: Draft, bounds: Bounds | None
) -> dict[str, Checked]:
    """Fill `draft` with the two graphs of `checkpoint`; with `bounds`, compare their outputs with the source model's.

    Raises `SourceError` for a checkpoint that is inconsistent or not supported.
    """
    with step("loading the libraries"):
        load("torch")
        load("transformers")
    config = full_config(checkpoint, family.architecture)
    graphs = _graphs(checkpoint, family, config, dtype)
    decoder, encoder = graphs.decoder.decoder, _record(checkpoint, config, graphs.encoder)
    write_decoder_tokenizer(checkpoint, draft.path, decoder.vocab_size)
    if bounds is None:
        _write(graphs, encoder, checkpoint, family, dtype, draft)
        return {}
    batch = pair_batch(draft.path, encoder)
    with step("running the source model"):
        expected = _source_outputs(checkpoint, family, batch)
    _write(graphs, encoder, checkpoint, family, dtype, draft)
    with step("checking against the source model"):
        cuts = block_outputs({**encoder.layers, **graphs.decoder.layers}, family.blocks)
        return check_encoder_decoder(draft.path, decoder, encoder, bounds, batch, expected, cuts)


class _Graphs(NamedTuple):
    encoder: EncoderGraph
    decoder: CrossAttentionDecoderGraph
    parameters: int  # weights of both graphs; shared ones count once


def _graphs(checkpoint: Checkpoint, family: EncoderDecoderFamily, config: dict[str, Any], dtype: str) -> _Graphs:
    """The finished graphs, with their weights still unread."""
    described = with_ends(family.describe(config), checkpoint, config)
    tie = bool(config["tie_word_embeddings"])
    weights = CheckpointWeights(
        checkpoint.folder, checkpoint.tensors(), family.blocks, family.embedding, tie, family.copies
    )
    of = ir.DataType.from_numpy(np.dtype(dtype))
    encoder, decoder = EncoderGraph(described, weights, of), CrossAttentionDecoderGraph(described, weights, of)
    family.encode(encoder, config)
    family.decode(decoder, config)
    return _Graphs(encoder, decoder, weights.count())


def _record(checkpoint: Checkpoint, config: dict[str, Any], graph: EncoderGraph) -> Encoder:
    """The manifest's entry for the encoder; the start token comes from generation_config.json, else config.json."""
    path = checkpoint.folder / GENERATION
    named = read_json(path) if path.is_file() else {}
    tokens: dict[str, int] = {}
    for key, default in (("pad_token_id", 0), ("decoder_start_token_id", None)):
        found = next((place[key] for place in (named, config) if place.get(key) is not None), default)
        number = tokens.get("pad_token_id") if found is None else found  # T5 starts with its padding token
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < graph.decoder.vocab_size:
            raise SourceError(
                f"{checkpoint.folder}: {key} is {number!r}, the vocabulary has {graph.decoder.vocab_size} tokens. "
                f"Fix it in config.json and {GENERATION}."
            )
        tokens[key] = number
    return Encoder(
        file=ENCODER,
        inputs=tuple(tensor_spec(value) for value in graph.model.graph.inputs),
        outputs=tuple(tensor_spec(value) for value in graph.model.graph.outputs),
        axes={"batch": Axis(), "source": Axis()},
        layers=graph.layers,
        **tokens,
    )


def _source_outputs(checkpoint: Checkpoint, family: EncoderDecoderFamily, batch: list[Pair]) -> dict[str, list[Floats]]:
    """The outputs of the source model for every pair, as in `outputs_of`, each run alone and in one pass."""
    import torch

    expected: dict[str, list[Floats]] = {"cross_key": [], "cross_value": [], LOGITS: []}
    with source_errors(checkpoint, family.architecture, RuntimeError, IndexError), torch.inference_mode():
        model = build_model(checkpoint, checkpoint.tensors(), family.architecture, "block", streamed=True).eval()
        for pair in batch:
            states = model.encoder(input_ids=torch.tensor([pair.source]))[0]
            layers = [block.layer[1].EncDecAttention for block in model.decoder.block]
            keys, values = (
                torch.stack([_heads(getattr(layer, name)(states[0]), layer.n_heads) for layer in layers])
                for name in ("k", "v")
            )
            logits = model(encoder_outputs=(states,), decoder_input_ids=torch.tensor([pair.written])).logits[0]
            for arrays, tensor in zip(expected.values(), (keys, values, logits), strict=True):
                arrays.append(tensor.numpy())
    check_finite(checkpoint, (array for arrays in expected.values() for array in arrays))
    return expected


def _heads(projected: Any, heads: int) -> Any:
    """Tensor [tokens, heads · head_dim] to [heads, tokens, head_dim]."""
    return projected.unflatten(-1, (heads, -1)).transpose(0, 1)


def _write(
    graphs: _Graphs, encoder: Encoder, checkpoint: Checkpoint, family: EncoderDecoderFamily, dtype: str, draft: Draft
) -> None:
    """Write the graphs and the manifest into the draft."""
    reading, writing = graphs.encoder.model, graphs.decoder.model
    decoder = graphs.decoder.decoder
    with step("writing"):
        draft.manifest = new_manifest(
            writing,
            checkpoint.source(),
            family,
            "text-to-text",
            dtype,
            {**step_axes(decoder), "source": Axis()},
            parameters=graphs.parameters,
            layers=graphs.decoder.layers,
            decoder=decoder,
            encoder=encoder,
        )
        share([reading, writing], draft.path / SHARED)
        save(reading, draft.path / ENCODER, consume=True, beside=[SHARED])
        save(writing, draft.model_path, consume=True, beside=[SHARED])
    draft.notes += graphs.decoder.weights.rounding.notes()
