"""Import an ONNX file written by another tool, so that passes, validation and engines can use it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from intaglio.accuracy.default_bounds import bounds_for
from intaglio.bundle.bundle import Axis, Draft, Source, tensor_spec
from intaglio.bundle.external_data import external_data_files
from intaglio.bundle.model_file import load, outline, parse, save
from intaglio.bundle.recorded_name import recorded_name
from intaglio.errors import BundleError, SourceError, one_line
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.checkpoints.tokenizer_files import BESIDE, BESIDE_DECODER
from intaglio.exporters.decoders.decoder_bundle import step_axes
from intaglio.exporters.decoders.foreign.export import rewritten
from intaglio.exporters.reference.check import Checked, check_needed
from intaglio.exporters.writing.manifest import new_manifest
from intaglio.files.hashes import copy_file, inside, sha256
from intaglio.files.pointers import check_downloaded
from intaglio.plugins import custom_operators
from intaglio.runtime.engines.onnxruntime.open_check import NotOpened, unopenable
from intaglio.runtime.text.tokenizer import TOKENIZER

TASK_OF_OUTPUT = {"sentence_embedding": "embed", "last_hidden_state": "encode"}


def adopt(path: Path, draft: Draft, given: Mapping[str, float], check: bool) -> dict[str, Checked]:
    """Fill `draft` with the graph at `path`, its external data, and the tokenizer files next to it.

    A decoder is rewritten to take a step as ours do, and compared with the original graph, by bounds with the ones
    `given` in place. What has caches but cannot be rewritten is left unchanged, and a note says why. Returns the
    differences; of other graphs there are none.

    Raises `SourceError` if the file is not a valid ONNX graph, or its external data is outside its folder, and
    `UsageError` for a decoder without `check`.
    """
    import onnx

    if not path.is_file():
        raise SourceError(f"source {path}: no such file. Give a checkpoint's folder, a hub id, or an .onnx file.")
    check_downloaded([path])
    try:
        locations = external_data_files(parse(path))
        for location in locations:
            if not inside(path.parent, location, f"{path}: external data").is_file():
                raise SourceError(f"{path}: its external data {location} is missing. Put that file next to it.")
        check_downloaded(path.parent / location for location in locations)
        _check_interface(path)
        model = load(path)
    except BundleError as error:
        raise SourceError(f"source {one_line(error, 300)}") from error
    places = [path.parent, path.parent.parent] if path.parent.name == "onnx" else [path.parent]  # optimum's folders
    for name in (TOKENIZER, *BESIDE, *BESIDE_DECODER):
        if found := next((place / name for place in places if (place / name).is_file()), None):
            copy_file(found, draft.path / name)
    reasons: list[str] = []
    try:
        decoder = rewritten(path, model, places, draft)
    except SourceError as error:
        decoder, model = None, load(path)
        reasons = [str(error).rstrip(".")]
        draft.notes.append(f"it has a cache, but is taken as a graph that `generate` does not run: {reasons[0]}")
    if decoder and not check:
        raise check_needed("the graph of a decoder is rewritten")
    inputs = [tensor_spec(value) for value in model.graph.inputs if not value.is_initializer()]
    outputs = {tensor_spec(value).name for value in model.graph.outputs}
    symbolic = {length for spec in inputs for length in spec.shape if isinstance(length, str)}
    weights = [value.dtype.numpy().name for value in model.graph.initializers.values() if value.dtype is not None]
    floats = [name for name in weights if name.startswith(("float", "bfloat"))]
    draft.manifest = new_manifest(
        model,
        Source(
            "onnx", recorded_name(path), None, {name: sha256(path.parent / name) for name in (path.name, *locations)}
        ),
        Family("", model.producer_name or ""),
        task="generate" if decoder else next((task for name, task in TASK_OF_OUTPUT.items() if name in outputs), ""),
        dtype=decoder.dtype if decoder else max(set(floats), key=floats.count, default="float32"),
        axes=step_axes(decoder.decoder) if decoder else {name: Axis() for name in sorted(symbolic)},
        custom_operators=custom_operators(model.graph),
        **({"decoder": decoder.decoder} if decoder else {}),
    )
    save(model, draft.model_path)
    try:
        onnx.checker.check_model(str(draft.model_path))  # of the copy: it rejects external data behind links
    except onnx.checker.ValidationError as error:
        unread = "".join(f" As a decoder it is not read: {reason}." for reason in reasons)
        raise SourceError(f"source {path}: {one_line(error, 300).rstrip('.')}.{unread}") from error
    _check_opens(path, draft.model_path)
    return decoder.check(draft.model_path, bounds_for(decoder.dtype, given), draft.notes) if decoder else {}


def _check_interface(path: Path) -> None:
    """Raise `SourceError` unless the inputs and outputs of the graph are tensors."""
    graph = outline(path).graph
    for side, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            kind = value.type.WhichOneof("value")
            if kind != "tensor_type":
                what = {None: "of no stated type"}.get(kind, f"of type {str(kind).removesuffix('_type')}")
                raise SourceError(
                    f"{path}: its {side} {value.name!r} is {what}, expected a tensor. Re-export the graph with tensors "
                    "as inputs and outputs."
                )


def _check_opens(path: Path, written: Path) -> None:
    """Open the graph of `path` from the file `written` in ONNX Runtime. Raises `SourceError` if it cannot be opened."""
    found = unopenable(written)
    if found is None:
        return
    if not found.lacks_kernel:
        raise SourceError(f"source {path}: ONNX Runtime cannot open it: {found.reason}. Re-export it.")
    warnings.warn(f"{path}: {found.reason}. Only other targets than ort-cpu can run it.", NotOpened, stacklevel=3)
