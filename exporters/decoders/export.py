"""Export a decoder: from its checkpoint to the graph, the manifest, and the comparison with the source model."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Axis, Decoder, Draft
from intaglio.bundle.model_file import save
from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.config import read_json
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.checkpoints.tokenizer_files import write_decoder_tokenizer
from intaglio.exporters.decoders.check import check_decoder, token_batches
from intaglio.exporters.decoders.draft_graph import decoder_graph
from intaglio.exporters.decoders.family import DecoderFamily
from intaglio.exporters.decoders.graph import DecoderGraph
from intaglio.exporters.decoders.reference import source_outputs
from intaglio.exporters.reference.check import Checked, block_outputs
from intaglio.exporters.reference.source_model import source_errors
from intaglio.exporters.writing.checkpoint_weights import DecoderWeights
from intaglio.exporters.writing.manifest import new_manifest
from intaglio.exporters.writing.weights import Rounding
from intaglio.extras import load
from intaglio.networks.drafts import HIDDEN_TRANSFER, Drafts
from intaglio.networks.early_exit import EVERY, EarlyExit

GENERATION = "generation_config.json"


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
    decoder = _with_drafts(with_ends(described, checkpoint, config), drafts)
    decoder = _with_exits(decoder, checkpoint.early_exit(described.layers))
    graph = _graph(checkpoint, family, decoder, config, dtype, drafts)
    if bounds is None:
        _write(graph, checkpoint, family, dtype, draft)
        return {}
    batches = token_batches(draft.path, decoder)
    with step("running the source model"):
        expected = source_outputs(checkpoint, family, decoder, batches)
    _write(graph, checkpoint, family, dtype, draft)
    with step("checking against the source model"):
        return check_decoder(
            draft.model_path, decoder, bounds, batches, expected, block_outputs(graph.layers, [family.blocks])
        )


def step_axes(decoder: Decoder) -> dict[str, Axis]:
    """The axes of every decoder, as manifests list them."""
    return {"batch": Axis(), "tokens": Axis(1, decoder.max_positions), "capacity": Axis(), "positions_wanted": Axis()}


def full_config(checkpoint: Checkpoint, architecture: str) -> dict[str, Any]:
    """config.json, with the defaults of `transformers` for missing keys."""
    transformers = load("transformers")
    with source_errors(checkpoint, architecture, Exception):  # the library raises all kinds of exceptions
        config = transformers.AutoConfig.from_pretrained(str(checkpoint.folder), trust_remote_code=False)
        return dict(config.to_dict())


def with_ends(decoder: Decoder, checkpoint: Checkpoint, config: dict[str, Any]) -> Decoder:
    """`decoder` with its BOS and EOS ids: those of generation_config.json, else those of config.json."""
    path = checkpoint.folder / GENERATION
    named = {key: value for key, value in (read_json(path) if path.is_file() else {}).items() if value is not None}
    begin, end = (named.get(key, config.get(key)) for key in ("bos_token_id", "eos_token_id"))
    ends = end if isinstance(end, list) else [end] if end is not None else []
    for number in [*ends, *([begin] if begin is not None else [])]:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < decoder.vocab_size:
            raise SourceError(
                f"{checkpoint.folder}: a BOS or EOS id is {number!r}, the vocabulary has "
                f"{decoder.vocab_size} tokens. Fix bos_token_id or eos_token_id in config.json and {GENERATION}."
            )
    return msgspec.structs.replace(decoder, bos_token_id=begin, eos_token_ids=tuple(ends))


def _with_drafts(decoder: Decoder, drafts: Drafts | None) -> Decoder:
    return msgspec.structs.replace(decoder, drafts=drafts.steps, draft_kind=drafts.kind) if drafts else decoder


def _with_exits(decoder: Decoder, exits: EarlyExit | None) -> Decoder:
    if exits is None:
        return decoder
    if exits.layer == EVERY:
        return msgspec.structs.replace(decoder, saturation_exits=True)
    return msgspec.structs.replace(decoder, exit_layer=exits.layer)


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


def write_decoder(
    model: ir.Model,
    layers: dict[str, str],
    rounding: Rounding,
    checkpoint: Checkpoint,
    family: Family,
    decoder: Decoder,
    dtype: str,
    draft: Draft,
) -> None:
    """Write a graph and its manifest into the draft; `layers`: the values that its modules return."""
    with step("writing"):
        draft.manifest = new_manifest(
            model,
            checkpoint.source(),
            family,
            "generate",
            dtype,
            axes={
                **step_axes(decoder),
                **({"drafting": Axis()} if decoder.drafts else {}),
                **({"drafted": Axis(decoder.drafts)} if decoder.draft_kind == HIDDEN_TRANSFER else {}),
            },
            layers=layers,
            decoder=decoder,
        )
        save(model, draft.model_path, consume=True)
    draft.notes += rounding.notes()


def _write(graph: DecoderGraph, checkpoint: Checkpoint, family: DecoderFamily, dtype: str, draft: Draft) -> None:
    write_decoder(graph.model, graph.layers, graph.weights.rounding, checkpoint, family, graph.decoder, dtype, draft)
