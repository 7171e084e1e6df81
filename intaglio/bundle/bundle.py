"""The bundle: the format in which stages pass models to each other.

A bundle is a directory with `bundle.json` (the manifest), the ONNX file and its external data, the tokenizer's
files, `engines/` and `reports/`. A stage reads a bundle and writes a new one, or adds files to it; both are atomic, so
that no reader ever sees half of it. The manifest holds the SHA-256 of every file.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from intaglio.bundle.external_data import external_data_files
from intaglio.bundle.image_reading import verify_image, verify_image_encoder, verify_text
from intaglio.bundle.manifest import FORMAT as FORMAT
from intaglio.bundle.manifest import MANIFEST as MANIFEST
from intaglio.bundle.manifest import MODEL as MODEL
from intaglio.bundle.manifest import Audio as Audio
from intaglio.bundle.manifest import Axis as Axis
from intaglio.bundle.manifest import Calibration as Calibration
from intaglio.bundle.manifest import Decoder as Decoder
from intaglio.bundle.manifest import Encoder as Encoder
from intaglio.bundle.manifest import EngineRecord as EngineRecord
from intaglio.bundle.manifest import FileRecord as FileRecord
from intaglio.bundle.manifest import Graph as Graph
from intaglio.bundle.manifest import Image as Image
from intaglio.bundle.manifest import ImageEncoder as ImageEncoder
from intaglio.bundle.manifest import LayerCache as LayerCache
from intaglio.bundle.manifest import Manifest as Manifest
from intaglio.bundle.manifest import PassRecord as PassRecord
from intaglio.bundle.manifest import Source as Source
from intaglio.bundle.manifest import TensorSpec as TensorSpec
from intaglio.bundle.manifest import TextTower as TextTower
from intaglio.bundle.manifest import Transcriber as Transcriber
from intaglio.bundle.manifest import encode as encode
from intaglio.bundle.manifest_reading import (
    read_manifest,
    verify_audio,
    verify_axes,
    verify_decoder,
    verify_embedding,
    verify_engine,
    verify_files,
    verify_graph,
    verify_transcriber,
)
from intaglio.bundle.model_file import outline
from intaglio.errors import GraphError, storage_errors
from intaglio.files.atomic import atomic_directory, atomic_file, atomic_write, locked, restore
from intaglio.files.hashes import copy_file, inside_to_write, sha256
from intaglio.storage.fetch import local_bundle

if TYPE_CHECKING:
    import onnx_ir as ir


class Bundle:
    """An opened, verified bundle: its directory and manifest."""

    def __init__(self, path: Path, manifest: Manifest):
        self.path = path
        self.manifest = manifest

    @property
    def model_path(self) -> Path:
        """The ONNX file."""
        return self.path / MODEL

    @property
    def graph_paths(self) -> list[Path]:
        """The ONNX file, and the encoder's or that for texts if any."""
        return [self.path / graph.file for graph in self.manifest.graphs]

    def graph(self, file: str = MODEL) -> Graph:
        """The graph in `file`, one of the bundle's ONNX files."""
        return next(graph for graph in self.manifest.graphs if graph.file == file)

    def data_of_others(self, file: str = MODEL) -> list[str]:
        """The weight files of the graphs but that in `file`, such as the encoder's; it may use them too."""
        others = [path for path in self.graph_paths if path.name != file]
        return [name for path in others for name in external_data_files(outline(path))]

    @classmethod
    def open(cls, path: str | Path | Bundle) -> Bundle:
        """Read and verify the bundle at `path`: format version, paths, sizes, hashes, external data.

        An address, such as s3://models/llama, is fetched to the local cache first (`intaglio.storage`).
        One that is opened already is returned: hashing all files takes as long as reading them. Raises
        `BundleError` with one line: the problem and how to fix it.
        """
        if isinstance(path, Bundle):
            return path
        path = local_bundle(path)
        restore(path)
        manifest = read_manifest(path)
        verify_files(path, manifest)
        verify_axes(path, manifest)
        for graph in manifest.graphs:
            verify_graph(path, manifest, graph)
        for engine in manifest.engines:
            verify_engine(path, manifest, engine)
        verify_embedding(path, manifest)
        if manifest.decoder is not None:
            verify_decoder(path, manifest, manifest.decoder)
        if manifest.audio is not None:
            verify_audio(path, manifest.audio)
        if manifest.transcriber is not None:
            verify_transcriber(path, manifest, manifest.transcriber)
        if manifest.image is not None:
            verify_image(path, manifest.image)
        if manifest.text is not None:
            verify_text(path, manifest.text)
        verify_image_encoder(path, manifest.image_encoder, manifest.decoder)
        return cls(path, manifest)

    def add_files(self, files: Mapping[str, bytes | Path], engines: list[EngineRecord] | None = None) -> None:
        """Add or replace files (relative path -> content, or a file to copy), and engine records by path.

        A reader sees the bundle either before or after: the manifest is replaced last, and a file that is about to be
        replaced is removed from the manifest first.
        """
        targets = {relative: inside_to_write(self.path, relative, "added file") for relative in files}
        with locked(self.path):
            self.manifest = self._add_files(targets, files, engines or [])

    def _add_files(
        self, targets: Mapping[str, Path], files: Mapping[str, bytes | Path], engines: list[EngineRecord]
    ) -> Manifest:
        manifest = read_manifest(self.path)  # read again: another process may have added files since
        if any(relative in manifest.files for relative in files):
            manifest.files = {name: record for name, record in manifest.files.items() if name not in files}
            manifest.engines = [engine for engine in manifest.engines if engine.path not in files]
            self._write_manifest(manifest)
        for relative, content in files.items():
            target = targets[relative]
            with storage_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(target) as partial:
                if isinstance(content, Path):
                    shutil.copyfile(content, partial)
                else:
                    partial.write_bytes(content)
            manifest.files[relative] = FileRecord(sha256(target), target.stat().st_size)
        manifest.engines = [*manifest.engines, *engines]
        self._write_manifest(manifest)
        return manifest

    def _write_manifest(self, manifest: Manifest) -> None:
        atomic_write(self.path / MANIFEST, encode(manifest))


@contextmanager
def create(target: str | Path, force: bool = False) -> Iterator[Draft]:
    """Yield a `Draft` to fill; if the block succeeds, it atomically becomes the bundle at `target`."""
    with atomic_directory(Path(target), force) as directory:
        draft = Draft(directory)
        yield draft
        if draft.manifest is None:
            raise AssertionError("a bundle was created without a manifest")
        draft.manifest.files = {
            str(path.relative_to(directory)): FileRecord(sha256(path), path.stat().st_size)
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        }
        (directory / MANIFEST).write_bytes(encode(draft.manifest))


class Draft:
    """A bundle being written. Set `manifest` (its `files` are filled in) and write the files under `path`."""

    def __init__(self, path: Path):
        self.path = path
        self.manifest: Manifest | None = None
        self.notes: list[str] = []  # messages for the user about the export, a line each

    @property
    def model_path(self) -> Path:
        """The path to write the ONNX file to."""
        return self.path / MODEL

    def copy_companions(self, bundle: Bundle, graph: str = MODEL) -> None:
        """Copy all files of `bundle` except its `graph`, engines and reports; its other graphs are copied too."""
        weights = {graph, *external_data_files(outline(bundle.path / graph))} - set(bundle.data_of_others(graph))
        for relative in bundle.manifest.files:
            if relative not in weights and relative.split("/")[0] not in {"engines", "reports"}:
                copy_file(bundle.path / relative, self.path / relative)


def tensor_spec(value: ir.Value) -> TensorSpec:
    """A graph's input or output as the manifest records it; an axis without a name is named after its index."""
    import onnx_ir as ir

    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise GraphError(f"{value.name}: its type is {value.type}, a bundle takes and returns tensors. Re-export it.")
    if value.dtype is None or value.shape is None:
        raise GraphError(f"{value.name}: the graph does not state its dtype and rank. Run ONNX shape inference on it.")
    lengths = [length if isinstance(length, int) else length.value for length in value.shape]
    shape = tuple(f"{value.name}_{axis}" if length is None else length for axis, length in enumerate(lengths))
    return TensorSpec(str(value.name), value.dtype.numpy().name, shape)
