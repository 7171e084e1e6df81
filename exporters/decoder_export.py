"""Exporting a decoder: from its checkpoint to the graph, the manifest, and the comparison with the source model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

import intaglio
from intaglio.bundle import FORMAT, Axis, Decoder, Draft, Manifest, tensor_spec
from intaglio.errors import SourceError
from intaglio.exporters.check import Checked
from intaglio.exporters.checkpoint import Checkpoint, read_json
from intaglio.exporters.decoder_check import check_decoder, token_batches
from intaglio.exporters.family import DecoderFamily
from intaglio.exporters.tokenizer_files import write_decoder_tokenizer
from intaglio.extras import load
from intaglio.model_file import count_weights, save
from intaglio.progress import step

if TYPE_CHECKING:
    from intaglio.exporters.decoder_graph import DecoderGraph

GENERATION = "generation_config.json"


def export_decoder(
    checkpoint: Checkpoint, family: DecoderFamily, dtype: str, draft: Draft, check: bool
) -> dict[str, Checked]:
    """Fill `draft` with the decoder of `checkpoint`; with `check`, compare its logits with the source model's.

    Raises `SourceError` for a checkpoint that makes no sense or has something that is not supported.
    """
    with step("loading the libraries"):
        load("torch")
        load("transformers")
    config = full_config(checkpoint, family.architecture)
    described = family.describe(config)
    write_decoder_tokenizer(checkpoint, draft.path, described.vocab_size)
    decoder = _with_ends(described, checkpoint, config)
    graph = _graph(checkpoint, family, decoder, config, dtype)
    if not check:
        _write(graph, checkpoint, family, dtype, draft)
        return {}
    batches = token_batches(draft.path, decoder)
    with step("running the source model"):
        expected = _source_logits(checkpoint, family, batches)
    _write(graph, checkpoint, family, dtype, draft)
    with step("checking against the source model"):
        return {"logits": check_decoder(draft.model_path, decoder, dtype, batches, expected)}


def full_config(checkpoint: Checkpoint, architecture: str) -> dict[str, Any]:
    """config.json with what `transformers` takes for the keys that it leaves out."""
    from intaglio.exporters.source import source_faults

    transformers = load("transformers")
    with source_faults(checkpoint, architecture, Exception):  # the library raises all kinds for odd configurations
        config = transformers.AutoConfig.from_pretrained(str(checkpoint.folder), trust_remote_code=False)
        return dict(config.to_dict())


def _with_ends(decoder: Decoder, checkpoint: Checkpoint, config: dict[str, Any]) -> Decoder:
    """With the ids that begin and end a text: generation_config.json's, or config.json's where it names none."""
    path = checkpoint.folder / GENERATION
    named = {key: value for key, value in (read_json(path) if path.is_file() else {}).items() if value is not None}
    begin, end = (named.get(key, config.get(key)) for key in ("bos_token_id", "eos_token_id"))
    ends = end if isinstance(end, list) else [end] if end is not None else []
    for number in [*ends, *([begin] if begin is not None else [])]:
        if not isinstance(number, int) or not 0 <= number < decoder.vocab_size:
            raise SourceError(
                f"{checkpoint.folder}: names {number!r} as a token that begins or ends a text, the vocabulary has "
                f"{decoder.vocab_size}. Mend bos_token_id or eos_token_id in config.json and {GENERATION}."
            )
    return msgspec.structs.replace(decoder, bos_token_id=begin, eos_token_ids=tuple(ends))


def _source_logits(
    checkpoint: Checkpoint, family: DecoderFamily, batches: list[list[list[int]]]
) -> list[list[np.ndarray[Any, Any]]]:
    """Logits [tokens, vocab] of every text of every batch, each run alone and whole by the source model."""
    import torch

    from intaglio.exporters.source import build_model, source_faults

    with source_faults(checkpoint, family.architecture, RuntimeError, IndexError), torch.inference_mode():
        model = build_model(checkpoint, checkpoint.tensors(), family.architecture, family.blocks).eval()
        expected = [[model(torch.tensor([text])).logits[0].numpy() for text in batch] for batch in batches]
    if not all(np.isfinite(logits).all() for batch in expected for logits in batch):
        raise SourceError(
            f"{checkpoint.folder}: the source model itself gives NaN or infinity on plain English sentences. "
            "Its weights are damaged: download or copy the checkpoint again."
        )
    return expected


def _graph(
    checkpoint: Checkpoint, family: DecoderFamily, decoder: Decoder, config: dict[str, Any], dtype: str
) -> DecoderGraph:
    """The finished graph, its weights still unread."""
    import onnx_ir as ir

    from intaglio.exporters.decoder_graph import DecoderGraph
    from intaglio.exporters.decoder_weights import DecoderWeights

    weights = DecoderWeights(checkpoint.folder, checkpoint.tensors(), family, bool(config["tie_word_embeddings"]))
    graph = DecoderGraph(decoder, weights, ir.DataType.from_numpy(np.dtype(dtype)))
    family.build(graph, config)
    return graph


def _write(graph: DecoderGraph, checkpoint: Checkpoint, family: DecoderFamily, dtype: str, draft: Draft) -> None:
    """Write the graph and the manifest into the draft."""
    decoder, model = graph.decoder, graph.model
    with step("writing"):
        draft.manifest = Manifest(
            format=FORMAT,
            created_by=f"intaglio {intaglio.__version__}",
            source=checkpoint.source(),
            family=family.model_type,
            architecture=family.architecture,
            task="generate",
            dtype=dtype,
            inputs=[tensor_spec(value) for value in model.graph.inputs],
            outputs=[tensor_spec(value) for value in model.graph.outputs],
            parameters=count_weights(model),
            axes={
                "batch": Axis(),
                "tokens": Axis(1, decoder.max_positions),
                "capacity": Axis(),
                "positions_wanted": Axis(),
            },
            layers=graph.layers,
            decoder=decoder,
        )
        save(model, draft.model_path, consume=True)
