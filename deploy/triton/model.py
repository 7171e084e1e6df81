"""One model of a repository: its configuration and files; and the fields that all configurations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from intaglio.bundle.bundle import Bundle, FileRecord
from intaglio.deploy.triton.config import Message, Word, parameters, tensor
from intaglio.deploy.triton.serving.settings import TEXT
from intaglio.files.hashes import copy_file, sha256
from intaglio.targets import DEFAULT, TARGETS

BACKENDS = ("python", "onnxruntime", "tensorrt")
WARM_UP = "A cat sits on the mat."
TEXTS_IN = tensor(TEXT, "str", [1])


@dataclass(frozen=True)
class TritonOptions:
    """The options of `deploy_triton`, which describes them."""

    backend: str = BACKENDS[0]
    gpus: Sequence[str] = ()
    target: str = DEFAULT
    threads: int | None = None
    batch_size: int = 32
    queue_delay: int = 2000  # µs
    instances: int = 1
    rows: int = 8
    prompt_name: str | None = None
    strategy: str | None = None
    cache_bits: int | None = None
    draft: Bundle | None = None
    mounted_at: str = "/models"
    version: int = 1  # the name of the folder

    @property
    def kind(self) -> Word:
        """Where the instances of a model on `target` run."""
        return Word("KIND_GPU" if TARGETS[self.target].needs_gpu else "KIND_CPU")


@dataclass(frozen=True)
class TritonModel:
    """A folder of the repository."""

    name: str
    backend: str
    config: Message  # besides its name and its backend
    version_files: Mapping[str, bytes | Path]  # path below the version's folder -> content, or its file
    files: Mapping[str, bytes | Path] = field(default_factory=dict)  # the same, of all versions, below the folder

    @property
    def runs_on(self) -> Message:
        """The field of its backend, or of the platform where Triton has a name of its own."""
        platform = {"tensorrt": "tensorrt_plan", "ensemble": "ensemble"}.get(self.backend)
        return {"platform": platform} if platform else {"backend": self.backend}

    @property
    def whole_config(self) -> Message:
        """All fields of config.pbtxt."""
        return {"name": self.name, **self.runs_on, **self.config}


def batched(options: TritonOptions, maximum: int | None) -> dict[str, Any]:
    """The fields of a model whose requests Triton batches; `maximum`: texts that the model takes at a time."""
    size = min(options.batch_size, maximum or options.batch_size)
    return {"max_batch_size": size, "dynamic_batching": {"max_queue_delay_microseconds": options.queue_delay}}


def instances(options: TritonOptions, kind: Word | None = None) -> dict[str, Any]:
    """The field `instance_group`; `kind`: by default that of the options' target."""
    return {"instance_group": {"count": options.instances, "kind": kind or options.kind}}


def python_code(module: str) -> dict[str, bytes | Path]:
    """The model.py that runs a module of `serving`."""
    place = f"intaglio.deploy.triton.serving.{module}"
    return {"model.py": f"from {place} import TritonPythonModel as TritonPythonModel\n".encode()}


def settings(given: msgspec.Struct) -> dict[str, Any]:
    """The field `parameters`, which `serving` reads."""
    return {"parameters": parameters(msgspec.structs.asdict(given))}


def warm_up(name: str, tensors: Mapping[str, tuple[Message, bytes]]) -> tuple[Message, dict[str, bytes | Path]]:
    """A request that each instance runs before the model is ready, and the files with its tensors.

    `tensors`: name -> the fields that describe it, and its content.
    """
    inputs = [
        {"key": key, "value": {**described, "input_data_file": f"{name}_{key}"}}
        for key, (described, _) in tensors.items()
    ]
    files: dict[str, bytes | Path] = {f"warmup/{name}_{key}": content for key, (_, content) in tensors.items()}
    return {"name": name, "batch_size": 1, "inputs": inputs}, files


def write_files(contents: Mapping[str, bytes | Path], folder: Path, below: str) -> dict[str, FileRecord]:
    """Write files below `folder`/`below`, and return them by their paths in `folder`."""
    found = {}
    for relative, content in contents.items():
        path = folder / below / relative
        if isinstance(content, Path):
            copy_file(content, path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        found[f"{below}/{relative}"] = FileRecord(sha256(path), path.stat().st_size)
    return found


def bundle_files(bundle: Bundle, folder: str) -> dict[str, bytes | Path]:
    """All files of a bundle, below `folder` of the version."""
    return {f"{folder}/{relative}": bundle.path / relative for relative in (*bundle.manifest.files, "bundle.json")}
