"""A checkpoint: a local folder, or a hub id that is downloaded to one. Reading it never executes code from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from intaglio import early_exit
from intaglio.bundle import Source
from intaglio.drafts import MATRICES, RECORD, Drafts, matrix_path, read_drafts
from intaglio.errors import BundleError, SourceError, one_line
from intaglio.exporters.checkpoints.safetensors_file import MappedTensor, map_tensors, read_header
from intaglio.extras import load
from intaglio.files import inside, restore, sha256

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_JSON = 16 << 20  # bytes; parsing takes 20 times that in memory. The largest real index has 9 MB
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_FILES = ["*.json", "*.txt", "*.jinja", "*.safetensors"]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder, its parsed config.json, and its weight files, with verified headers."""

    folder: Path
    config: dict[str, Any]
    weights: tuple[Path, ...]
    kind: str  # "local" or "hub"
    location: str  # as the user gave it
    revision: str | None

    @classmethod
    def open(cls, location: str, revision: str | None = None, download: bool = True) -> Checkpoint:
        """Open a local folder, or download a hub id. Raises `SourceError` if it cannot be exported.

        `download`: False takes what an earlier download left on this machine, and contacts nobody.
        """
        restore(Path(location))
        if Path(location).is_dir():
            return cls._read(Path(location), "local", str(Path(location).absolute()), None)
        if Path(location).exists() or not HUB_ID.fullmatch(location):
            raise SourceError(f"source {location}: not a directory. Give a checkpoint's folder, or a hub id ORG/NAME.")
        hub = load("huggingface_hub")
        try:
            options = {"allow_patterns": HUB_FILES, "local_files_only": not download}
            folder = Path(hub.snapshot_download(location, revision=revision, **options))
        except (hub.errors.HfHubHTTPError, hub.errors.LocalEntryNotFoundError, OSError, ValueError) as error:
            if not download:
                raise SourceError(
                    f"source {location}: a checkpoint of the hub, not on this machine. Give --against pytorch to "
                    "download it, or compare with --against reference."
                ) from error
            reason = one_line(error, 200)
            raise SourceError(
                f"source {location}: no such directory, and it could not be downloaded from the hub ({reason}). "
                "Check the name and the connection, or give a local folder."
            ) from error
        return cls._read(folder, "hub", location, folder.name)

    @classmethod
    def _read(cls, folder: Path, kind: str, location: str, revision: str | None) -> Checkpoint:
        if not (folder / CONFIG).is_file():
            raise SourceError(f"{folder}: no {CONFIG}. Give the folder of a checkpoint as transformers saves it.")
        config = read_json(folder / CONFIG)
        weights = _weight_files(folder)
        for path in weights:
            read_header(path)
        return cls(folder, config, weights, kind, location, revision)

    def source(self) -> Source:
        """The entry for the bundle's manifest, with a hash of every file that affects the computation."""
        return Source(
            self.kind, self.location, self.revision, {name: sha256(self.folder / name) for name in self.files()}
        )

    def files(self) -> list[str]:
        """The weight and configuration files below the folder, without the tokenizer's, which every bundle contains."""
        configurations = [
            CONFIG,
            RECORD,
            MATRICES,
            early_exit.RECORD,
            "modules.json",
            *(f"{path.parent.name}/{CONFIG}" for path in self._module_configs()),
        ]
        present = [name for name in configurations if (self.folder / name).is_file()]
        return [*(path.name for path in self.weights), *present]

    def _module_configs(self) -> list[Path]:
        return sorted(self.folder.glob(f"*_*/{CONFIG}"))  # sentence-transformers numbers its modules: 1_Pooling

    def tensors(self) -> dict[str, MappedTensor]:
        """Every weight, mapped into memory and not yet read."""
        return {name: tensor for path in self.weights for name, tensor in map_tensors(path).items()}

    def drafts(self, depth: int) -> Drafts | None:
        """The drafts trained for this model of `depth` blocks, or None. Raises `SourceError`."""
        record = read_drafts(self.folder, depth)
        counted = {f"{matrix_path(step)}.weight" for step in range(record.steps if record else 0)}
        if record and (strange := sorted(self.draft_tensors().keys() - counted)):
            raise SourceError(
                f"{self.folder}: {MATRICES} has an unexpected tensor {strange[0]}: {RECORD} has {record.steps} steps. "
                "Copy the whole folder again, or train the drafts again."
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


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises `SourceError` if the file has none, or is larger than `MAX_JSON`."""
    try:
        if (size := path.stat().st_size) > MAX_JSON:
            raise SourceError(f"{path}: {size} bytes, expected at most {MAX_JSON}. Download or copy the file again.")
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{path}: not a JSON object ({error}). Download or copy the file again.") from error
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}. Download or copy the file again.") from error


def _weight_files(folder: Path) -> tuple[Path, ...]:
    if (folder / WEIGHTS).is_file():
        return (folder / WEIGHTS,)
    if (folder / INDEX).is_file():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
            raise SourceError(f"{folder / INDEX}: no weight_map from names to files. Download or copy the file again.")
        return tuple(_shard(folder, name) for name in dict.fromkeys(names.values()))
    for name in PICKLED:
        if (folder / name).is_file():
            raise SourceError(
                f"{folder}: the weights are in {name}, a pickle, which can run code when it is read; expected "
                f'{WEIGHTS}. If you trust it, convert it: python -c "from transformers import AutoModel; '
                f"AutoModel.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\""
            )
    raise SourceError(f"{folder}: found neither {WEIGHTS} nor {INDEX}. Give the folder of a checkpoint.")


def _shard(folder: Path, name: str) -> Path:
    try:
        path = inside(folder, name, str(folder / INDEX))
    except BundleError as error:
        raise SourceError(str(error)) from error
    if not path.is_file():
        raise SourceError(f"{path}: listed in {INDEX} but missing. Download or copy the whole checkpoint.")
    return path
