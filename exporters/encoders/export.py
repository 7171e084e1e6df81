"""Export an encoder: from its checkpoint to the traced graph, the manifest, and the comparison with the source."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Axis, Draft
from intaglio.bundle.model_file import save
from intaglio.display.progress import step
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.tokenizer_files import write_tokenizer
from intaglio.exporters.encoders.description import EncoderDescription, describe_encoder
from intaglio.exporters.encoders.family import EncoderFamily
from intaglio.exporters.encoders.reference import build_encoder, reference_outputs
from intaglio.exporters.encoders.sentence_tokenizer import SentenceTokenizer, record_sentence, sentence_tokenizer
from intaglio.exporters.encoders.traced import TracedEncoder
from intaglio.exporters.reference.check import Batch, Checked, check_graph, check_needed
from intaglio.exporters.reference.source_model import check_finite, source_errors, tracing_errors
from intaglio.exporters.writing.manifest import new_manifest
from intaglio.extras import load
from intaglio.runtime.text.pairs import pairs_of, shipped_documents
from intaglio.runtime.text.tokenizer import TOKENIZER, Pair, Tokenizer
from intaglio.samples.sentences import sentences

CHECKED_SENTENCES = 16
LONG = 1024  # tokens of a text that is longer than windows, in the check of a traced family
CHECK_BATCH = 4  # small, as its activations add to the peak memory


def export_encoder(
    checkpoint: Checkpoint, family: EncoderFamily, dtype: str, draft: Draft, bounds: Bounds | None
) -> dict[str, Checked]:
    """Fill `draft` with the encoder of `checkpoint`; with `bounds`, compare its outputs with the source model's.

    Each step's memory is freed before the next begins. Raises `SourceError` for a checkpoint that is inconsistent or
    not supported.
    """
    described = describe_encoder(checkpoint, family)
    tokenizer = sentence_tokenizer(checkpoint, described)
    write_tokenizer(checkpoint, draft.path, family.pad_token_id, tokenizer.backend if tokenizer else None)
    with step("loading the libraries"):
        load("torch")
        load("transformers")
        importlib.import_module("intaglio.exporters.encoders.trace")
    if bounds is None and isinstance(family, TracedEncoder):
        raise check_needed(f"the graph of a {described.architecture} is traced")
    if bounds is None:
        _write_graph(checkpoint, described, tokenizer, dtype, draft)
        return {}
    with step("running the source model"):
        feeds, expected = _source_outputs(checkpoint, described, tokenizer, draft.path)
    _write_graph(checkpoint, described, tokenizer, dtype, draft)
    with step("checking against the source model"):
        return check_graph(draft.model_path, bounds, feeds, expected)


def _source_outputs(
    checkpoint: Checkpoint, described: EncoderDescription, sentence: SentenceTokenizer | None, folder: Path
) -> tuple[list[Batch], list[Batch]]:
    """Batches of real sentences, from the tokenizer in `folder`, and the source model's outputs in float32.

    Raises `SourceError` if they contain NaN or infinity.
    """
    with _errors(checkpoint, described, "run", RuntimeError, IndexError):
        module = build_encoder(checkpoint, described, checkpoint.tensors())
        pair = sentence.pair if sentence else None
        tokenizer = Tokenizer(folder / TOKENIZER, module.input_names, described.positions, pair=pair)
        batches: list[Sequence[str | Pair]] = []
        if pair is None:
            texts = sentences()[:CHECKED_SENTENCES]
            batches += [texts[start : start + CHECK_BATCH] for start in range(0, len(texts), CHECK_BATCH)]
        if pair is not None or described.reads_pairs(checkpoint.config):
            batches += pairs_of(shipped_documents(), CHECKED_SENTENCES, CHECK_BATCH)
        feeds: list[Batch] = [dict(tokenizer.feeds(batch, truncate=True)) for batch in batches]
        if isinstance(described.family, TracedEncoder):
            shortened = min(described.positions, LONG)
            tokenizer = Tokenizer(folder / TOKENIZER, module.input_names, shortened, pair=pair)
            texts = [" ".join(sentences()), sentences()[0]]
            given = texts if pair is None else [Pair(texts[1], text) for text in texts]
            feeds.append(dict(tokenizer.feeds(given, truncate=True)))
        expected = [reference_outputs(module, batch) for batch in feeds]
    check_finite(checkpoint, (array for batch in expected for array in batch.values()))
    return feeds, expected


def _errors(
    checkpoint: Checkpoint, described: EncoderDescription, step: str, *kinds: type[Exception]
) -> AbstractContextManager[None]:
    """Convert errors of torch: those of the given kinds; all of a model whose code was not looked at."""
    if isinstance(described.family, TracedEncoder):
        return tracing_errors(checkpoint, described.architecture, step)
    return source_errors(checkpoint, described.architecture, *kinds)


def _write_graph(
    checkpoint: Checkpoint, described: EncoderDescription, tokenizer: SentenceTokenizer | None, dtype: str, draft: Draft
) -> None:
    """Trace the checkpoint, and write the graph and the manifest into the draft."""
    import torch

    from intaglio.exporters.encoders.trace import token_inputs, trace

    axes = {"batch": Axis(), "sequence": Axis(1, described.positions)}
    with step("tracing"), _errors(checkpoint, described, "traced", torch.onnx.OnnxExporterError):
        weights = checkpoint.tensors()
        module = build_encoder(checkpoint, described, weights)
        inputs = token_inputs(module.input_names)
        traced = trace(module, inputs, module.output_names, weights, axes, getattr(torch, dtype))
        del module
        del weights  # only the graph refers to them now, and releases each one once written
    with step("writing"):
        classifies = described.task == "classify"
        labelled = classifies or described.task == "token-classification"
        draft.manifest = new_manifest(
            traced.model,
            checkpoint.source(),
            described.family,
            described.task,
            dtype,
            axes,
            architecture=described.architecture,
            layers=traced.layers,
            labels=described.labels(checkpoint.config) if labelled else [],
            activation=described.activation(checkpoint.config) if classifies else "softmax",
        )
        if described.head and tokenizer:
            record_sentence(draft.manifest, described.head, tokenizer)
        save(traced.model, draft.model_path, consume=True)
    draft.notes += traced.rounding.notes()
