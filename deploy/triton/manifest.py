"""repository.json, beside the models of a repository: what was written, and the SHA-256 of every file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from intaglio.bundle.bundle import FileRecord
from intaglio.errors import UsageError, one_line
from intaglio.files.atomic import REPOSITORY
from intaglio.version import __version__

FORMAT = 1


class DeployedModel(msgspec.Struct):
    """A model of the repository."""

    name: str
    backend: str  # Triton's: python, onnxruntime, tensorrt, or ensemble
    bundle: str  # the name that clients use; its other models are parts of it
    versions: list[int]  # its folders
    loaded: list[int]  # of these, the ones that a server loads by the version policy


class Manifest(msgspec.Struct):
    """The file."""

    models: list[DeployedModel]
    files: dict[str, FileRecord]  # by their paths in the repository
    format: int = FORMAT
    created_by: str = f"intaglio {__version__}"

    def encoded(self) -> bytes:
        """The content of the file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def read_manifest(repository: Path) -> Manifest:
    """Raises `UsageError` for a folder that is no repository of this format."""
    fix = "Choose a repository that intaglio deploy triton wrote."
    try:
        manifest = msgspec.json.decode((repository / REPOSITORY).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{repository / REPOSITORY}: {one_line(error)}. {fix}") from error
    if manifest.format != FORMAT:
        raise UsageError(f"{repository / REPOSITORY}: format {manifest.format}, expected {FORMAT}. {fix}")
    return manifest
