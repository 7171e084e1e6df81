"""The verb `export`: write a checkpoint as a bundle, checked against the source model."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from intaglio.accuracy.bounds import Bounds, bounds_for, check_given, given_bounds
from intaglio.bundle.bundle import FORMAT, Axis, Draft, Manifest, create, tensor_spec
from intaglio.bundle.model_file import count_weights, save
from intaglio.display.progress import step
from intaglio.errors import SourceError, UsageError
from intaglio.exporters.check import Batch, Checked, check_graph
from intaglio.exporters.checkpoints.adapters import left_out
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.onnx_file import adopt
from intaglio.exporters.checkpoints.plausible import check_config
from intaglio.exporters.checkpoints.tokenizer_files import write_tokenizer
from intaglio.exporters.decoders.export import export_decoder
from intaglio.exporters.encoder_decoders.export import export_encoder_decoder
from intaglio.exporters.encoders.description import EncoderDescription, describe_encoder
from intaglio.exporters.encoders.sentence_tokenizer import SentenceTokenizer, record_sentence, sentence_tokenizer
from intaglio.exporters.encoders.sentence_transformers import read_head
from intaglio.exporters.families import families, find_decoder, find_encoder_decoder, find_speech
from intaglio.exporters.source import build_module, check_finite, reference_outputs, source_errors
from intaglio.exporters.source_folders import remember
from intaglio.exporters.speech.export import export_speech, rounds_features
from intaglio.extras import load
from intaglio.files.atomic import check_output_directory
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.samples.sentences import sentences
from intaglio.version import __version__

DTYPES = ("float32", "float16")
BOUNDED = ("relative", "max_abs", "min_cosine")  # the measures that accept a bound
CHECKED_SENTENCES = 16
CHECK_BATCH = 4  # small, as its activations add to the peak memory


class Exported(msgspec.Struct):
    """The result of `export`: total seconds, and the difference from the source model by output.

    `passed` is None if nothing was compared: without the check, or for a graph written by another tool. `notes`: what
    was changed or left out, such as weights clamped to the range of float16.
    """

    bundle: str
    seconds: float
    passed: bool | None
    outputs: dict[str, Checked]
    notes: list[str] = []


def export(
    source: str | Path,
    output: str | Path,
    dtype: str = "float32",
    revision: str | None = None,
    force: bool = False,
    check: bool = True,
    max_abs: float | None = None,
    min_cosine: float | None = None,
    bound: Mapping[str, float] | None = None,
    features: bool = False,
) -> Exported:
    """Export the checkpoint `source` (a folder, a hub id, or an .onnx file) to a new bundle at `output`.

    `dtype` of the weights and activations is "float32" or "float16". With `check`, ONNX Runtime runs the graph
    on real sentences, and the outputs are compared with the source model in float32; `passed` is whether they stay
    within the bounds of `intaglio.accuracy.bounds` for the dtype, relative to the largest magnitude of each output.
    `bound` maps "relative", "max_abs" and "min_cosine" to bounds that replace these; the latter two have short forms.
    With `features`, the graph of a speech recogniser takes the features of its front end, for a deployment that
    computes them elsewhere.

    Raises `SourceError`, `UsageError`, `StorageError`, and then leaves nothing at `output`.
    """
    start = time.perf_counter()
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}.")
    given = given_bounds(bound, max_abs, min_cosine)
    bounds = _bounds(dtype, given, check)
    check_output_directory(Path(output), force)
    source, notes = str(source), list[str]()
    if revision is not None and Path(source).exists():
        raise UsageError(f"--revision {revision}: is for a hub id, and {source} is on this machine. Remove it.")
    if source.endswith(".onnx"):
        outputs: dict[str, Checked] = {}
        _check_graph_options(dtype, features)
        with create(output, force) as draft:
            adopt(Path(source), draft)
    else:
        checkpoint = Checkpoint.open(source, revision)
        is_encoder = str(checkpoint.config.get("model_type")) in families()
        check_config(checkpoint, learned_positions=is_encoder)
        if rounds_features(checkpoint.config) and not features:
            bounds = _bounds("float16", given, check)
        write = _writer(checkpoint, dtype, features)
        with create(output, force) as draft:
            outputs = write(draft, bounds)
            assert draft.manifest is not None
            remember(draft.manifest.source, checkpoint.root)
            notes += [*draft.notes, *left_out(checkpoint.folder)]
    seconds = time.perf_counter() - start
    passed = all(error.passed for error in outputs.values()) if outputs else None
    return Exported(str(output), round(seconds, 3), passed, outputs, notes)


def _check_graph_options(dtype: str, features: bool) -> None:
    """Reject options that a graph of another tool cannot follow."""
    if dtype != DTYPES[0]:
        raise UsageError(
            f"--dtype {dtype}: a graph keeps its own. Remove it, and then: "
            f"intaglio compress BUNDLE -o BUNDLE --recipe {dtype}"
        )
    if features:
        raise UsageError("--features is for the checkpoint of a speech recogniser, which a graph is not. Remove it.")


def _bounds(dtype: str, given: Mapping[str, float], check: bool) -> Bounds | None:
    """The bounds of the comparison; None without one."""
    if given and not check:
        raise UsageError("a bound needs the comparison with the source model, which --no-check skips. Use only one.")
    check_given(given, BOUNDED)
    return bounds_for(dtype, given) if check else None


def _writer(checkpoint: Checkpoint, dtype: str, features: bool) -> Callable[[Draft, Bounds | None], dict[str, Checked]]:
    """The function that fills a draft, and compares it with the source model if there are bounds.

    Raises `SourceError` for an unsupported architecture.
    """
    if speech := find_speech(checkpoint.config):
        return lambda draft, bounds: export_speech(checkpoint, speech, dtype, draft, bounds, not features)
    if features:
        raise UsageError("--features leaves out the front end of a speech recogniser, which this is not. Remove it.")
    if read_head(checkpoint.root) is None:
        if decoder := find_decoder(checkpoint.config):
            return lambda draft, bounds: export_decoder(checkpoint, decoder, dtype, draft, bounds)
        if both := find_encoder_decoder(checkpoint.config):
            return lambda draft, bounds: export_encoder_decoder(checkpoint, both, dtype, draft, bounds)
    plan = _plan(checkpoint, dtype)
    return lambda draft, bounds: _export(plan, draft, bounds)


@dataclass(frozen=True)
class _Plan:
    """The model to export, and its target dtype and task."""

    checkpoint: Checkpoint
    described: EncoderDescription
    tokenizer: SentenceTokenizer | None  # of a sentence-transformers folder
    dtype: str
    axes: dict[str, Axis]


def _plan(checkpoint: Checkpoint, dtype: str) -> _Plan:
    described = describe_encoder(checkpoint)
    axes = {"batch": Axis(), "sequence": Axis(1, described.positions)}
    return _Plan(checkpoint, described, sentence_tokenizer(checkpoint, described), dtype, axes)


def _export(plan: _Plan, draft: Draft, bounds: Bounds | None) -> dict[str, Checked]:
    """Run the steps in order; each step's memory is freed before the next begins."""
    tokenizer = plan.tokenizer.backend if plan.tokenizer else None
    write_tokenizer(plan.checkpoint, draft.path, plan.described.family.pad_token_id, tokenizer)
    with step("loading the libraries"):
        load("torch")
        load("transformers")
        importlib.import_module("intaglio.exporters.encoders.trace")
    if bounds is None:
        _write_graph(plan, draft)
        return {}
    with step("running the source model"):
        feeds, expected = _source_outputs(plan, draft.path)
    _write_graph(plan, draft)
    with step("checking against the source model"):
        return check_graph(draft.model_path, bounds, feeds, expected)


def _source_outputs(plan: _Plan, folder: Path) -> tuple[list[Batch], list[Batch]]:
    """Batches of real sentences, from the tokenizer in `folder`, and the source model's outputs in float32.

    Raises `SourceError` if they contain NaN or infinity.
    """
    checkpoint, described = plan.checkpoint, plan.described
    with source_errors(checkpoint, described.architecture, RuntimeError, IndexError):
        module = build_module(checkpoint, described, checkpoint.tensors())
        tokenizer = Tokenizer(folder / TOKENIZER, module.input_names, described.positions)
        batches = tokenizer.batches(sentences()[:CHECKED_SENTENCES], CHECK_BATCH, truncate=True)
        feeds: list[Batch] = [dict(batch) for batch in batches]
        expected = [reference_outputs(module, batch) for batch in feeds]
    check_finite(checkpoint, (array for batch in expected for array in batch.values()))
    return feeds, expected


def _write_graph(plan: _Plan, draft: Draft) -> None:
    """Trace the checkpoint, and write the graph and the manifest into the draft."""
    import torch

    from intaglio.exporters.encoders.trace import trace

    checkpoint, described, tokenizer = plan.checkpoint, plan.described, plan.tokenizer
    with step("tracing"), source_errors(checkpoint, described.architecture, torch.onnx.OnnxExporterError):
        weights = checkpoint.tensors()
        traced = trace(build_module(checkpoint, described, weights), weights, plan.axes, getattr(torch, plan.dtype))
        del weights  # only the graph refers to them now, and releases each one once written
    with step("writing"):
        draft.manifest = Manifest(
            format=FORMAT,
            created_by=f"intaglio {__version__}",
            source=checkpoint.source(),
            family=described.family.model_type,
            architecture=described.architecture,
            task=described.task,
            dtype=plan.dtype,
            inputs=[tensor_spec(value) for value in traced.model.graph.inputs],
            outputs=[tensor_spec(value) for value in traced.model.graph.outputs],
            parameters=count_weights(traced.model),
            axes=plan.axes,
            layers=traced.layers,
            labels=class_labels(checkpoint.config) if described.task == "classify" else [],
            activation=activation(checkpoint.config) if described.task == "classify" else "softmax",
        )
        if described.head and tokenizer:
            record_sentence(draft.manifest, described.head, tokenizer)
        save(traced.model, draft.model_path, consume=True)
    draft.notes += traced.rounding.notes()


def class_labels(config: Mapping[str, Any]) -> list[str]:
    """The class names of config.json in the order of the logits; LABEL_0, LABEL_1, ... if it has none."""
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(names, dict) or not names:
        raise SourceError(f"config.json: id2label {names!r} does not map class numbers to names. Fix it.")
    try:
        return [str(names[key]) for key in sorted(names, key=int)]
    except (TypeError, ValueError) as error:
        raise SourceError(f"config.json: id2label {names!r} does not map class numbers to names. Fix it.") from error


def activation(config: Mapping[str, Any]) -> str:
    """The function from logits to scores: one class of many, several classes at once, or a plain number."""
    named = {"multi_label_classification": "sigmoid", "regression": "identity"}.get(str(config.get("problem_type")))
    return named or ("sigmoid" if len(class_labels(config)) == 1 else "softmax")  # softmax of one class is always 1
