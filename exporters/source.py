"""Load the checkpoint that a bundle was exported from, as the torch module that validation compares with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intaglio.bundle.bundle import Manifest, Source
from intaglio.bundle.manifest import AdapterSource
from intaglio.errors import MissingExtraError, SourceError
from intaglio.exporters.checkpoints.adapters import open_adapter
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.family import architecture_of
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.source_folders import folder_of
from intaglio.extras import load


def load_module(source: Source, download: bool = False, takes_audio: bool = True, context: str | None = None) -> Any:
    """Load the checkpoint that a bundle was exported from as a float32 torch module in eval mode.

    `forward` takes the manifest's inputs in order and returns a tuple in the order of its outputs. `download`: whether
    a checkpoint of the hub may be downloaded; a manifest may name any. `takes_audio`: whether a speech recogniser
    begins with its front end, and a model that reads images with its image processor. `context`: that of a decoder.
    Raises `SourceError` if the checkpoint is missing, or its weights or configuration have changed since the export,
    and `MissingExtraError` without torch or transformers.
    """
    if source.kind not in ("local", "hub"):
        raise SourceError(
            f"source {source.location}: a graph written by another tool has no PyTorch model to compare with. "
            "Compare with another bundle: --against BUNDLE, or with --against reference."
        )
    try:
        checkpoint = _checkpoint(source, download)
    except SourceError as error:
        raise SourceError(f"{error} (The bundle was exported from it. --against BUNDLE does not need it.)") from error
    _check_unchanged(checkpoint.files(), checkpoint.source().sha256, source.sha256)
    _check_pytorch()
    kind, family = find_kind(checkpoint.config, str(checkpoint.folder), checkpoint.is_sentence_folder)
    if isinstance(source.adapter, AdapterSource):
        adapter = open_adapter(_adapter_folder(source.adapter))
        _check_unchanged(adapter.files(), adapter.source().sha256, source.adapter.sha256)
        checkpoint = checkpoint.with_adapter(adapter, architecture_of(checkpoint.config, family))
    if kind.load is None:
        raise SourceError(
            f"source {source.location}: a {family.architecture} is compared with its source model only when it is "
            "exported. Compare with another bundle: --against BUNDLE."
        )
    options = {"features": not takes_audio, "context": context}
    return kind.load(checkpoint, family, **{name: options[name] for name in kind.options})


def _check_unchanged(files: Mapping[str, Path], found: Mapping[str, str], recorded: Mapping[str, str]) -> None:
    """Raise `SourceError` for a file with another hash than the manifest records."""
    for name, digest in found.items():
        if digest != (expected := recorded.get(name, "none")):
            raise SourceError(
                f"{files[name]}: SHA-256 {digest[:12]}…, the bundle was exported from {expected[:12]}…. "
                "Re-export it, or compare with another bundle: --against BUNDLE."
            )


def module_options(manifest: Manifest) -> dict[str, Any]:
    """The options of `load_module` by which the module takes what the graph of a manifest takes."""
    record, decoder = manifest.modality_record, manifest.decoder
    whole = record is None or not record.processed_elsewhere
    return {"takes_audio": whole, "context": decoder.context or None if decoder else None}


def _checkpoint(source: Source, download: bool) -> Checkpoint:
    """Open the checkpoint. A manifest has the name of a folder, so ask first where this machine has that checkpoint."""
    route = source.route or None
    if source.kind == "hub":
        return Checkpoint.open(source.location, source.revision, download, find_kind, route)
    known = None if Path(source.location).is_absolute() else folder_of(source.sha256)
    folder = known or Path(source.location)
    if not folder.exists():
        raise SourceError(
            f"source {source.location}: the folder of this checkpoint is not known on this machine. Give it with "
            "--against FOLDER."
        )
    return Checkpoint.open(str(folder), check=find_kind, route=route)


def _adapter_folder(adapter: AdapterSource) -> Path:
    folder = folder_of(adapter.sha256) or Path(adapter.location)
    if not folder.exists():
        raise SourceError(
            f"adapter {adapter.location}: the folder of this adapter is not known on this machine. Run this in the "
            "folder that has it, or compare with another bundle: --against BUNDLE."
        )
    return folder


def _check_pytorch() -> None:
    """Raise `MissingExtraError` without torch or transformers, with the alternatives."""
    try:
        load("torch")
        load("transformers")
    except MissingExtraError as error:
        raise MissingExtraError(
            f"{error}, or compare without PyTorch: --against reference, or --against BUNDLE."
        ) from error
