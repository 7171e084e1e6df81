"""An adapter as peft saves it: a folder with its settings and its tensors, by what they change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from intaglio.bundle.manifest import AdapterSource
from intaglio.bundle.recorded_name import recorded_name
from intaglio.errors import SourceError
from intaglio.exporters.files.safetensors_file import MappedTensor, map_tensors
from intaglio.files.hashes import sha256
from intaglio.files.safetensors_header import read_header
from intaglio.runtime.adapters.folder import WEIGHTS
from intaglio.runtime.adapters.settings import CONFIG, LoraSettings, read_settings

PREFIX = "base_model.model."  # peft's, before the path in the model
BASE = ".base_layer."  # within a path: the module that an adapter's takes the place of
COPY = ".original_module."  # within a path: weights of the model that the adapter replaces with others
SAVED = re.compile(r"\.modules_to_save(\.default)?\.")  # within a path: those others
TOKENIZER_FILES = ("tokenizer.json", "chat_template.jinja")
LOW_RANK = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_embedding_A|lora_embedding_B"
    r"|lora_magnitude_vector(\.weight)?)"
)
TOKENS = ".token_adapter.trainable_tokens_delta"
FIRST, SECOND, MAGNITUDE = "A", "B", "magnitude"


@dataclass
class AdapterParts:
    """The tensors of an adapter, by the paths in the model of what they change."""

    values: dict[str, MappedTensor]  # path of a parameter -> its numbers
    rows: dict[str, MappedTensor]  # path of an embedding -> the rows of some tokens
    matrices: dict[str, dict[str, MappedTensor]]  # path of a Linear -> its tensors by FIRST, SECOND, MAGNITUDE
    embeddings: dict[str, dict[str, MappedTensor]]  # the same of an Embedding

    def __len__(self) -> int:
        return len(self.values) + len(self.rows) + len(self.matrices) + len(self.embeddings)


@dataclass(frozen=True)
class Adapter:
    """The folder of an adapter and its settings; its tensors stay in their file."""

    folder: Path
    settings: LoraSettings

    @classmethod
    def open(cls, folder: Path) -> Adapter:
        """Open a folder with both files. Raises `SourceError` for an adapter that export does not merge."""
        settings = read_settings(folder)
        read_header(folder / WEIGHTS)
        return cls(folder, settings)

    @property
    def path(self) -> Path:
        """The file with its tensors."""
        return self.folder / WEIGHTS

    def source(self) -> AdapterSource:
        """The entry for the bundle's manifest."""
        return AdapterSource(recorded_name(self.folder), {name: sha256(path) for name, path in self.files().items()})

    def files(self) -> dict[str, Path]:
        """The files that affect the computation, by their names."""
        return {name: self.folder / name for name in (CONFIG, WEIGHTS)}

    def parts(self) -> AdapterParts:
        """Its tensors, mapped and not read. Raises `SourceError` if it has none, or a part of a change alone."""
        parts = AdapterParts({}, {}, {}, {})
        for name, tensor in map_tensors(self.path).items():
            path = name.removeprefix(PREFIX)
            if not tensor.dtype.is_floating_point:
                dtype = str(tensor.dtype).removeprefix("torch.")
                raise SourceError(f"{self.path}: {name} is {dtype}, expected floating point. Save the adapter again.")
            if found := LOW_RANK.fullmatch(path):
                part, of = found["part"].removesuffix(".weight"), found["module"].replace(BASE, ".")
                group = parts.embeddings if "embedding" in part else parts.matrices
                group.setdefault(of, {})[MAGNITUDE if "magnitude" in part else part[-1]] = tensor
            elif path.endswith(TOKENS):
                parts.rows[path.removesuffix(TOKENS)] = tensor
            elif SAVED.search(path):  # another copy of what has a name of its own, of biases
                parts.values.setdefault(SAVED.sub(".", path), tensor)
            elif COPY not in path:
                parts.values[path.replace(BASE, ".")] = tensor
        for of in [of for of in parts.matrices if of in parts.embeddings]:  # the name of a magnitude tells not which
            parts.embeddings[of].update(parts.matrices.pop(of))
        if not len(parts):
            raise SourceError(f"{self.path}: no tensors in it. Save the adapter again.")
        for group in (parts.matrices, parts.embeddings):
            for of, tensors in group.items():
                self._check_complete(of, tensors)
        return parts

    def _check_complete(self, of: str, tensors: Mapping[str, MappedTensor]) -> None:
        expected = [FIRST, SECOND, *([MAGNITUDE] if self.settings.use_dora else [])]
        if sorted(tensors) != sorted(expected):
            raise SourceError(
                f"{self.path}: {of} has the tensors {', '.join(sorted(tensors))} of LoRA, expected "
                f"{', '.join(expected)}, as use_dora is {str(self.settings.use_dora).lower()}. Save the adapter again."
            )

    def notes(self, folder: Path) -> list[str]:
        """A line on what is merged into the checkpoint in `folder`, and one for each file that is left out."""
        lines = [f"{self.folder.name}: an adapter, merged into {len(self.parts())} weights"]
        for name in TOKENIZER_FILES:
            own, other = self.folder / name, folder / name
            if own.is_file() and not (other.is_file() and own.read_bytes() == other.read_bytes()):
                lines.append(f"{self.folder.name} has another {name}, which is left out: copy it into the checkpoint")
        return lines
