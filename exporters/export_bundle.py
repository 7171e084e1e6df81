"""Export a decoder's bundle to a checkpoint in another tool's format, checked by loading what was written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intaglio.accuracy.default_bounds import bounds_for
from intaglio.bundle.bundle import Bundle, Decoder
from intaglio.bundle.manifest import MANIFEST
from intaglio.bundle.model_file import load as load_graph
from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import CONFIG, Checkpoint
from intaglio.exporters.checkpoints.family import architecture_of
from intaglio.exporters.checkpoints.quantized.formats import GGUF, WRITERS
from intaglio.exporters.decoders.check import check_decoder, token_batch
from intaglio.exporters.decoders.reference import source_outputs
from intaglio.exporters.from_bundle.folder import write_folder
from intaglio.exporters.from_bundle.gguf_file import write_gguf
from intaglio.exporters.from_bundle.graph_weights import graph_weights
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.reference.check import Checked, block_outputs
from intaglio.exporters.reference.source_model import deferred_model
from intaglio.extras import load
from intaglio.files.atomic import (
    CHECKPOINT,
    atomic_directory,
    atomic_file,
    check_output_directory,
    check_output_file,
)
from intaglio.files.hashes import copy_file
from intaglio.files.json_object import read_json
from intaglio.runtime.text.tokenizer import TOKENIZER

FORMATS = (GGUF, *WRITERS)


def export_bundle(
    source: Path, output: Path, form: str, force: bool, check: bool, given: Mapping[str, float]
) -> tuple[dict[str, Checked], list[str]]:
    """Write the weights of the decoder bundle `source` to `output` in the format `form`, one of `FORMATS`.

    Returns the differences of the bundle's logits from those of the model that `output` describes, and notes. With
    `check` off, only names and shapes of its weights are compared with the architecture's. Raises `SourceError` for a
    bundle, or a layer of it, that the format does not hold exactly, and then leaves nothing at `output`.
    """
    if form == GGUF:
        check_output_file(output, force, "--output")
    else:
        check_output_directory(output, force, CHECKPOINT)
    bundle = Bundle.open(source)
    decoder, config = _described(bundle)
    with step("loading the libraries"):
        load("torch")
        load("transformers")
    weights = graph_weights(load_graph(bundle.model_path, mapped=True))
    if form == GGUF:
        with atomic_file(output) as file:
            notes = write_gguf(file, weights, bundle.path, bundle.path.name, decoder)
            return _checked(bundle, decoder, file, given if check else None), notes
    with atomic_directory(output, force, CHECKPOINT) as folder:
        notes = write_folder(folder, form, weights, config)
        _copy_companions(bundle, folder)
        return _checked(bundle, decoder, folder, given if check else None), notes


def _described(bundle: Bundle) -> tuple[Decoder, dict[str, Any]]:
    """The decoder's entry in the manifest, and the config.json in the bundle. Raises `SourceError`."""
    decoder = bundle.manifest.decoder
    if decoder is None:
        raise SourceError(
            f"{bundle.path}: a bundle of the task {bundle.manifest.task!r}, and only those of decoders can be written "
            "in another tool's format."
        )
    trained = [
        name
        for name, there in (
            ("drafts", decoder.drafts),
            ("an early exit", decoder.exit_layer),
            ("exits of saturated tokens", decoder.saturation_exits),
        )
        if there
    ]
    if trained:
        raise SourceError(
            f"{bundle.path}: has {trained[0]}, which no other tool's format holds. Export the checkpoint that they "
            "were trained for, and compress that bundle."
        )
    if bundle.manifest.image_encoder is not None:
        raise SourceError(
            f"{bundle.path}: has an image encoder, whose weights no other tool's format would hold. Compress the "
            "checkpoint with the other tool."
        )
    missing = next((name for name in (CONFIG, TOKENIZER) if not (bundle.path / name).is_file()), None)
    if missing:
        raise SourceError(f"{bundle.path}: has no {missing}. Export the checkpoint again, not an .onnx file.")
    return decoder, read_json(bundle.path / CONFIG)


def _copy_companions(bundle: Bundle, folder: Path) -> None:
    """Copy the tokenizer's files, and what else the export of the checkpoint put beside the graph."""
    graphs = {graph.file for graph in bundle.manifest.graphs}
    for name in bundle.manifest.files:
        if "/" not in name and name.endswith((".json", ".jinja")) and name not in {CONFIG, MANIFEST, *graphs}:
            copy_file(bundle.path / name, folder / name)


def _checked(bundle: Bundle, decoder: Decoder, written: Path, given: Mapping[str, float] | None) -> dict[str, Checked]:
    """Load what was written as a model of transformers, and compare the bundle's logits with the model's.

    `given`: bounds of the user; None: only the names and shapes of the weights are compared.
    """
    from intaglio.networks.blocks import blocks_path

    try:
        checkpoint = Checkpoint.open(str(written), check=find_kind)
        _, family = find_kind(checkpoint.config, str(checkpoint.folder))
        architecture = architecture_of(checkpoint.config, family)
        blocks = blocks_path(deferred_model(checkpoint, architecture, blocks_path))
        if given is None:
            return {}
        batch = token_batch(bundle.path, decoder)
        with step("running the model that was written"):
            expected = source_outputs(checkpoint, architecture, decoder, batch, (), context=decoder.context or None)
    except SourceError as error:
        problem = str(error).replace(f"{written}: ", "").partition(". ")[0]
        raise SourceError(
            f"{bundle.path}: its graph does not have the weights of the model under the names of its checkpoint "
            f"({problem}), so they cannot be written. Compress the checkpoint with the other tool."
        ) from error
    with step("comparing the bundle with it"):
        cuts, bounds = block_outputs(bundle.manifest.layers, [blocks]), bounds_for(bundle.manifest.dtype, given)
        return check_decoder(bundle.model_path, decoder, bounds, batch, expected, cuts)
