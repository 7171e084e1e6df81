"""The verb `export`: write a checkpoint as a bundle, checked against the source model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from intaglio.accuracy.default_bounds import bounds_for, check_given, given_bounds
from intaglio.bundle.bundle import create
from intaglio.bundle.manifest import AdapterSource
from intaglio.errors import UsageError
from intaglio.exporters.checkpoints.adapters import left_out, open_adapter
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.family import architecture_of
from intaglio.exporters.checkpoints.plausible import check_config
from intaglio.exporters.export_bundle import FORMATS, export_bundle
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.onnx_file import adopt
from intaglio.exporters.reference.check import Checked
from intaglio.exporters.source_folders import remember
from intaglio.files.atomic import check_output_directory
from intaglio.plugins.lut_matmul.signature import ACTIVATION_BITS
from intaglio.storage.upload import uploads

DTYPES = ("float32", "float16")
BOUNDED = ("relative", "max_abs", "min_cosine")  # the measures that accept a bound


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


@uploads("format")
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
    context: str | None = None,
    adapter: str | Path | None = None,
    format: str | None = None,  # noqa: A002
    route: str | None = None,
    activation_bits: int | None = None,
) -> Exported:
    """Export the checkpoint `source` (a folder, a hub id, or an .onnx file) to a new bundle at `output`.

    `dtype` of the weights and activations is "float32" or "float16"; with float32, matrices of a decoder that the
    checkpoint has in 16 bits are stored so. With `check`, ONNX Runtime runs the graph on real sentences, and the
    outputs are compared with the source model in float32; `passed` is whether they stay within the bounds of
    `intaglio.accuracy.default_bounds` for the dtype, relative to each output's largest magnitude.
    `bound` maps "relative", "max_abs" and "min_cosine" to bounds that replace these; the latter two have short forms.
    With `features`, the graph of a speech recogniser takes the features of its front end, and that of a model that
    reads images what its image processor returns, for a deployment that computes them elsewhere. `context`, "short" or
    "long", chooses the frequencies of rotary embeddings that have others for long texts. `adapter` is the folder of a
    LoRA adapter as peft saves it, which is merged into the weights. `route` is the one that is exported of a Router of
    sentence-transformers, such as "query" or "document". `activation_bits`, 8, 16 or 32, is the precision of
    the activations that quantised weights are multiplied with on a CPU; the default is 16.

    With `format` ("gguf", "gptq", "gptq_v2", "awq" or "compressed-tensors"), `source` is the bundle of a decoder, whose
    weights are written to `output` as a checkpoint of other tools, with the same numbers; the check compares the
    bundle's logits with those of the model that was written.

    Raises `SourceError`, `UsageError`, `StorageError`, and then leaves nothing at `output`.
    """
    start = time.perf_counter()
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}.")
    if activation_bits not in (None, *ACTIVATION_BITS.choices):
        choices = ", ".join(map(str, ACTIVATION_BITS.choices))
        raise UsageError(f"activation_bits {activation_bits!r}: expected one of {choices}.")
    given = given_bounds(bound, max_abs, min_cosine)
    if given and not check:
        raise UsageError("a bound needs the comparison with the source model, which --no-check skips. Use only one.")
    check_given(given, BOUNDED)
    if format is not None:
        _check_format(format, dtype, revision, features, context, adapter, route, activation_bits)
        outputs, notes = export_bundle(Path(source), Path(output), format, force, check, given)
        return _result(output, start, outputs, notes)
    check_output_directory(Path(output), force)
    source, notes = str(source), []
    if revision is not None and Path(source).exists():
        raise UsageError(f"--revision {revision}: is for a hub id, and {source} is on this machine. Remove it.")
    if source.endswith(".onnx"):
        _check_graph_options(dtype, features, context, adapter, route, activation_bits)
        with create(output, force) as draft:
            outputs = adopt(Path(source), draft, given, check)
            notes += draft.notes
    else:
        checkpoint = Checkpoint.open(source, revision, check=find_kind, route=route)
        kind, family = find_kind(checkpoint.config, str(checkpoint.folder), checkpoint.is_sentence_folder)
        check_config(checkpoint, family.learned_positions, family.unread)
        if adapter is not None:
            checkpoint = checkpoint.with_adapter(open_adapter(adapter), architecture_of(checkpoint.config, family))
        if activation_bits is not None:
            checkpoint = checkpoint.with_activation_bits(activation_bits)
        if features and "features" not in kind.options:
            raise UsageError(
                "--features leaves out the front end of a speech recogniser, or the image processor of a model whose "
                "one input is an image, and this is neither. Remove it."
            )
        if context is not None and "context" not in kind.options:
            raise UsageError("--context is for decoders whose rotary embedding depends on the length. Remove it.")
        options = {**({"features": True} if features else {}), **({"context": context} if context else {})}
        bounds = bounds_for(kind.checked_as(checkpoint.config, dtype, **options), given) if check else None
        with create(output, force) as draft:
            outputs = kind.export(checkpoint, family, dtype, draft, bounds, **options)
            assert draft.manifest is not None
            draft.manifest.activation_bits = activation_bits
            remember(draft.manifest.source.sha256, checkpoint.place)
            notes += [*draft.notes, *left_out(checkpoint.folder, adapter)]
            if checkpoint.adapter and isinstance(draft.manifest.source.adapter, AdapterSource):
                remember(draft.manifest.source.adapter.sha256, checkpoint.adapter.folder)
                notes += checkpoint.adapter.notes(checkpoint.folder)
    return _result(output, start, outputs, notes)


def _result(output: str | Path, start: float, outputs: dict[str, Checked], notes: list[str]) -> Exported:
    seconds = time.perf_counter() - start
    passed = all(error.passed for error in outputs.values()) if outputs else None
    return Exported(str(output), round(seconds, 3), passed, outputs, notes)


def _check_format(
    form: str,
    dtype: str,
    revision: str | None,
    features: bool,
    context: str | None,
    adapter: str | Path | None,
    route: str | None,
    activation_bits: int | None,
) -> None:
    """Reject an unknown format, and options that are for a checkpoint."""
    if form not in FORMATS:
        raise UsageError(f"format {form!r}: expected one of {', '.join(FORMATS)}.")
    given = {
        "--dtype": dtype != DTYPES[0],
        "--revision": revision is not None,
        "--features": features,
        "--context": context is not None,
        "--adapter": adapter is not None,
        "--route": route is not None,
        "--activation-bits": activation_bits is not None,
    }
    if option := next((name for name, there in given.items() if there), None):
        raise UsageError(
            f"{option} is for the export of a checkpoint, and --format writes a bundle's weights unchanged. Remove it."
        )


def _check_graph_options(
    dtype: str,
    features: bool,
    context: str | None,
    adapter: str | Path | None,
    route: str | None,
    activation_bits: int | None,
) -> None:
    """Reject options that a graph of another tool cannot follow."""
    if dtype != DTYPES[0]:
        raise UsageError(
            f"--dtype {dtype}: a graph keeps its own. Remove it, and then: "
            f"intaglio compress BUNDLE -o BUNDLE --recipe {dtype}"
        )
    if features:
        raise UsageError("--features is for the checkpoint of a speech recogniser, which a graph is not. Remove it.")
    if context is not None:
        raise UsageError("--context is for the checkpoint of a decoder, which a graph is not. Remove it.")
    if adapter is not None:
        raise UsageError("--adapter is merged into the weights of a checkpoint, not into those of a graph. Remove it.")
    if route is not None:
        raise UsageError("--route is for a Router of sentence-transformers, which a graph is not. Remove it.")
    if activation_bits is not None:
        raise UsageError(
            "--activation-bits is for a checkpoint with quantised weights, which a graph is not. Remove it."
        )
