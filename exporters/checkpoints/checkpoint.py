"""A checkpoint: a local folder, or a hub id that is downloaded to one. Reading it never executes code from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from intaglio.bundle.bundle import Source
from intaglio.bundle.recorded_name import recorded_name
from intaglio.errors import BundleError, SourceError, UsageError
from intaglio.exporters.checkpoints import hub
from intaglio.exporters.checkpoints.adapters import adapter_alone, check_merged, check_no_adapter
from intaglio.exporters.checkpoints.contents import refuse_file, refuse_folder
from intaglio.exporters.checkpoints.gguf.container import is_container
from intaglio.exporters.checkpoints.gguf.model import Model, described, open_model
from intaglio.exporters.checkpoints.lora.adapter import Adapter
from intaglio.exporters.checkpoints.lora.merging import Merging, Stored
from intaglio.exporters.checkpoints.lora.parameter_names import ParameterNames
from intaglio.exporters.checkpoints.quantized.formats import (
    StoredTensor,
    format_of,
    is_coded,
    joined,
    with_activation_bits,
    with_settings,
)
from intaglio.exporters.checkpoints.quantized.grouped_weight import ACTIVATION_BITS
from intaglio.exporters.checkpoints.quantized.methods import check_configuration, check_parts, check_tensors
from intaglio.exporters.checkpoints.sentence_folder import Module, module_files, read_modules, transformer_folder
from intaglio.exporters.files.computed_tensor import FloatTensor
from intaglio.exporters.files.safetensors_file import MappedTensor, map_tensors
from intaglio.files.atomic import BUNDLE, restore
from intaglio.files.hashes import inside, sha256
from intaglio.files.input_files import check_folder
from intaglio.files.json_object import read_json
from intaglio.files.pointers import check_downloaded, configurations
from intaglio.files.safetensors_header import read_entries, read_header
from intaglio.networks import early_exit
from intaglio.networks.drafts import MATRICES, RECORD, Drafts, matrix_path, read_drafts

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")  # of images and recordings
SAFETENSORS = ("*.safetensors",)

Check = Callable[[Mapping[str, Any], str, bool], object]  # config.json, its folder, whether of sentence-transformers


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder, its parsed config.json, and its weight files, with verified headers.

    Of a model in GGUF files, `root` and `folder` are a temporary one, with what the file says.
    """

    root: Path  # as opened; sentence-transformers may keep the Transformer in a folder of it
    folder: Path  # of config.json, the weights and the tokenizer
    config: dict[str, Any]
    weights: tuple[Path, ...]
    kind: str  # "local" or "hub"
    location: str  # as manifests record it
    revision: str | None
    gguf: Model | None = None
    adapter: Adapter | None = None  # which is merged into the weights
    architecture: str = ""  # with an adapter: the class whose parameters its names are
    modules: tuple[Module, ...] = ()  # of sentence-transformers
    route: str | None = None  # of a Router, whose modules these are
    activation_bits: int = ACTIVATION_BITS  # of products by quantised weights

    @classmethod
    def open(
        cls,
        location: str,
        revision: str | None = None,
        download: bool = True,
        check: Check | None = None,
        route: str | None = None,
    ) -> Checkpoint:
        """Open a local folder or GGUF file, or download a hub id. Raises `SourceError` if it cannot be exported.

        `download`: False uses the files of an earlier download on this machine, without network access. `check` raises
        `SourceError` for a config.json that is not supported; it runs before weights are downloaded. `route`: of a
        Router of sentence-transformers.
        """
        path = Path(location)
        restore(path)
        if path.is_dir():
            return cls._read(path, "local", recorded_name(path), None, location, check, route)
        if path.is_file() and is_container(path):
            if route is not None:
                raise SourceError(f"{path}: a GGUF file has no routes, given --route {route}. Leave it out.")
            model = open_model(path)
            folder = described(model)
            return cls(folder, folder, model.config, model.paths, "local", recorded_name(path), None, model)
        if path.exists() or path.is_symlink():
            raise refuse_file(path)
        if not hub.ID.fullmatch(location):
            raise SourceError(f"source {location}: not a directory or a file. Give a checkpoint's folder, or a hub id.")
        folder = hub.fetch(location, revision, download)
        modules = read_modules(folder, route)
        if not (transformer_folder(folder, modules) / CONFIG).is_file():
            raise adapter_alone(folder, location) or refuse_folder(
                folder, location, _all_files(location, revision, download)
            )
        read_config(folder, modules, location, check)  # before gigabytes of weights are downloaded
        folder = hub.fetch(location, revision, download, SAFETENSORS)
        if not has_weights(transformer_folder(folder, modules)):
            raise refuse_folder(folder, location, _all_files(location, revision, download))
        return cls._read(folder, "hub", location, folder.name, location, check, route)

    @classmethod
    def _read(
        cls,
        root: Path,
        kind: str,
        location: str,
        revision: str | None,
        given: str,
        check: Check | None,
        route: str | None,
    ) -> Checkpoint:
        modules = read_modules(root, route)
        folder, config = read_config(root, modules, given, check)
        weights = _weight_files(folder, given)
        check_downloaded(weights)
        if format_of(config):
            check_parts(folder, config, weights)
        else:
            check_tensors(folder, weights)
        check_merged(folder, weights)
        for path in weights:
            read_header(path, scaled=format_of(config) is not None)
        return cls(root, folder, config, weights, kind, location, revision, modules=modules, route=route)

    def with_adapter(self, adapter: Adapter, architecture: str) -> Checkpoint:
        """The checkpoint with `adapter` merged into its weights when they are read.

        `architecture`: the class that the checkpoint is exported as. If the adapter is for another model, `tensors` and
        `parameters` raise `SourceError`.
        """
        return replace(self, adapter=adapter, architecture=architecture)

    def with_activation_bits(self, bits: int) -> Checkpoint:
        """The same with activations of 16 or 32 bits for quantised weights. Raises `UsageError` if it has none."""
        found = replace(self, activation_bits=bits)
        if not any(map(is_coded, found.parameters().values())):
            raise UsageError(
                f"--activation-bits {bits}: {self.folder} has no quantised weights. Remove it; a recipe of `compress` "
                "has activation_bits for each pass."
            )
        return found

    @property
    def is_sentence_folder(self) -> bool:
        """Whether it is a folder of sentence-transformers."""
        return bool(self.modules)

    def source(self) -> Source:
        """The entry for the bundle's manifest, with a hash of every file that affects the computation."""
        hashes = {name: sha256(path) for name, path in self.files().items()}
        adapter = self.adapter.source() if self.adapter else msgspec.UNSET
        return Source(self.kind, self.location, self.revision, hashes, adapter, self.route or msgspec.UNSET)

    @property
    def place(self) -> Path:
        """The folder or the file that was opened."""
        return self.weights[0] if self.gguf else self.root

    def files(self) -> dict[str, Path]:
        """The weight and configuration files by their names, without the tokenizer's, which every bundle contains."""
        if self.gguf:
            return {path.name: path for path in self.weights}
        configurations = [self.folder / name for name in (CONFIG, *PROCESSORS, RECORD, MATRICES, early_exit.RECORD)]
        present = [path for path in configurations if path.is_file()]
        own = [path.relative_to(self.root).as_posix() for path in (*self.weights, *present)]
        return {name: self.root / name for name in (*own, *module_files(self.root, self.modules))}

    def shapes(self) -> list[tuple[int, ...]]:
        """Of all tensors of the files."""
        if self.gguf:
            return [each.shape for each in self.gguf.file.tensors.values()]
        return [tuple(each.shape) for path in self.weights for each in read_entries(path)[0].values()]

    def tensors(self) -> dict[str, FloatTensor]:
        """Every tensor of the files, mapped into memory and not yet read, with the adapter merged into it."""
        return self._merged(self._mapped())

    def parameters(self) -> dict[str, StoredTensor]:
        """The same with the parts of each quantised weight joined under its own name."""
        found = dict(self.gguf.parameters()) if self.gguf else joined(self._mapped(), self.config)
        merged = self._merged(found)
        return merged if self.activation_bits == ACTIVATION_BITS else with_activation_bits(merged, self.activation_bits)

    def _mapped(self) -> dict[str, MappedTensor]:
        scaled = format_of(self.config) is not None
        return {name: tensor for path in self.weights for name, tensor in map_tensors(path, scaled).items()}

    def _merged(self, tensors: Mapping[str, Stored]) -> dict[str, Stored | FloatTensor]:
        if self.adapter is None:
            return dict(tensors)
        names = ParameterNames(tensors, self.architecture, self.folder)
        return Merging(tensors, names, self.adapter, self.config).tensors

    def drafts(self, depth: int) -> Drafts | None:
        """The drafts trained for this model of `depth` blocks, or None. Raises `SourceError`."""
        record = read_drafts(self.folder, depth)
        counted = {f"{matrix_path(step)}.weight" for step in range(record.steps if record else 0)}
        if record and (unexpected := sorted(self.draft_tensors().keys() - counted)):
            raise SourceError(
                f"{self.folder}: {MATRICES} has an unexpected tensor {unexpected[0]}: {RECORD} has {record.steps} "
                "steps. Copy the whole folder again, or train the drafts again."
            )
        return record

    def early_exit(self, depth: int) -> early_exit.EarlyExit | None:
        """The early exits of this model of `depth` blocks, or None. Raises `SourceError`."""
        record = early_exit.read_early_exit(self.folder, depth)
        if record and (self.folder / RECORD).is_file():
            raise SourceError(
                f"{self.folder}: has both {early_exit.RECORD} and {RECORD}, but a graph supports only one of them. "
                "Remove one."
            )
        return record

    def draft_tensors(self) -> dict[str, MappedTensor]:
        """The matrices of the drafts by name; empty without drafts."""
        path = self.folder / MATRICES
        return map_tensors(path) if path.is_file() else {}


def read_config(
    root: Path, modules: Sequence[Module], given: str, check: Check | None = None
) -> tuple[Path, dict[str, Any]]:
    """The folder of the weights in `root`, and its config.json, of what passes `check` and is not quantised.

    `modules`: those of sentence-transformers in `root`. `given`: the source as named by the user. Raises `SourceError`.
    """
    folder = transformer_folder(root, modules)
    if (folder / BUNDLE).is_file() or not (folder / CONFIG).is_file():
        raise adapter_alone(folder, given) or refuse_folder(folder, given)
    check_folder(folder)
    check_downloaded(configurations(folder))
    config = with_settings(folder, read_json(folder / CONFIG))
    check_no_adapter(folder, config)
    check_configuration(folder, config)
    if check is not None:
        check(config, str(folder), bool(modules))
    return folder, config


def _all_files(location: str, revision: str | None, download: bool) -> list[str] | None:
    return hub.list_files(location, revision) if download else None


def has_weights(folder: Path) -> bool:
    """Whether `folder` has weights in safetensors under the names that `transformers` gives them."""
    return (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()


def _weight_files(folder: Path, given: str) -> tuple[Path, ...]:
    if (path := folder / WEIGHTS).is_file():
        return (path,)
    if path.is_symlink():
        raise SourceError(f"{path}: a link to {path.readlink()}, which is missing. Download or copy the file again.")
    if (folder / INDEX).is_file():
        return indexed_files(folder, INDEX)
    raise refuse_folder(folder, given)


def indexed_files(folder: Path, index: str) -> tuple[Path, ...]:
    """The files of weights that the file `index` in `folder` lists. Raises `SourceError` if one is missing."""
    names = read_json(folder / index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise SourceError(f"{folder / index}: no weight_map from names to files. Download or copy the file again.")
    try:
        paths = tuple(inside(folder, name, str(folder / index)) for name in dict.fromkeys(names.values()))
    except BundleError as error:
        raise SourceError(str(error)) from error
    if missing := next((path for path in paths if not path.is_file()), None):
        raise SourceError(f"{missing}: listed in {index} but missing. Download or copy the whole checkpoint.")
    return paths
