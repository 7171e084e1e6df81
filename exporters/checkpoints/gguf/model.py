"""A model in GGUF files: configuration and tokenizer, written for transformers, and weights, left in the files."""

from __future__ import annotations

import atexit
import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.gguf.configuration import architecture_of, configuration
from intaglio.exporters.checkpoints.gguf.container import Container, read_container
from intaglio.exporters.checkpoints.gguf.tokenizer import write_tokenizer
from intaglio.exporters.checkpoints.gguf.weights import Stored, parameters
from intaglio.files.atomic import CHECKPOINT
from intaglio.processes.temporary import scratch_directory

PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
COUNT = "split.count"

_folders = ExitStack()
atexit.register(_folders.close)


@dataclass(frozen=True)
class Model:
    """The files, what they hold, and config.json for it."""

    paths: tuple[Path, ...]
    file: Container  # of all parts
    config: dict[str, Any]

    def parameters(self) -> dict[str, Stored]:
        """Its weights by the names of transformers."""
        path = self.paths[0]
        return parameters(path, self.file, architecture_of(path, self.file), self.config)


def open_model(path: Path) -> Model:
    """Read the file, and the other parts of the model if there are any. Raises `SourceError`."""
    first = read_container(path)
    paths, tensors = [path], dict(first.tensors)
    if (count := first.values.get(COUNT, 1)) != 1:
        name = PART.fullmatch(path.name)
        if not name or int(name[2]) != 1 or int(name[3]) != count:
            raise SourceError(f"{path}: a part of a model in {count} files. Give the first, called …-00001-of-….gguf.")
        paths += [path.with_name(f"{name[1]}-{index:05}-of-{name[3]}.gguf") for index in range(2, int(name[3]) + 1)]
        if missing := next((each for each in paths if not each.is_file()), None):
            raise SourceError(f"{missing}: missing, a part of {path.name}. Download or copy all parts.")
        for each in paths[1:]:
            tensors |= read_container(each).tensors
    file = Container(first.values, tensors)
    return Model(tuple(paths), file, configuration(path, file))


def described(model: Model) -> Path:
    """A new folder with config.json and the tokenizer's files of the model, which exists until this process ends."""
    folder = _folders.enter_context(scratch_directory("gguf"))
    write_tokenizer(model.paths[0], model.file, folder)
    (folder / CHECKPOINT).write_text(json.dumps(model.config, indent=2), encoding="utf-8")
    return folder
