"""Merge an adapter into the tensors of a checkpoint: each merged weight is computed when it is read.

What peft's `merge_and_unload` does to a model in float32. A parameter that config.json ties to another changes with it,
except where the adapter has all weights of one of their modules (modules_to_save): peft takes a copy of that module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.lora.adapter import FIRST, MAGNITUDE, SECOND, Adapter
from intaglio.exporters.checkpoints.lora.low_rank import LowRank, with_rows
from intaglio.exporters.checkpoints.lora.parameter_names import ParameterNames
from intaglio.exporters.checkpoints.quantized.formats import CodedWeight, StoredTensor
from intaglio.exporters.checkpoints.quantized.grouped_weight import StackedWeight
from intaglio.exporters.files.computed_tensor import FloatTensor
from intaglio.exporters.files.safetensors_file import MappedTensor

TRANSPOSED = ("gpt2", "openai-gpt")  # model_type of models with Conv1D in the place of Linear
HEAD = (
    "If it is of a head that the checkpoint has not: load that with the class of the head, such as "
    "AutoModelForSequenceClassification, save it with save_pretrained, and export that with the adapter."
)
GIVE = "Give the checkpoint that the adapter was trained for."


Stored = TypeVar("Stored", bound=StoredTensor)


class Merging(Generic[Stored]):
    """The tensors of a checkpoint while an adapter is merged into them; `tensors` is the result."""

    def __init__(
        self, tensors: Mapping[str, Stored], names: ParameterNames, adapter: Adapter, config: Mapping[str, Any]
    ):
        """`config`: config.json of the checkpoint. Raises `SourceError` for an adapter of another model."""
        self.tensors: dict[str, Stored | FloatTensor] = dict(tensors)
        self._before, self._names, self._adapter, self._config = tensors, names, adapter, config
        self._own: dict[str, str] = {}  # bare paths of parameters that are no longer tied -> their tensors' names
        parts = adapter.parts()
        for path, value in parts.values.items():
            self._replace(path, value)
        for module, rows in parts.rows.items():
            self._replace_rows(module, rows)
        for module, each in parts.matrices.items():
            self._add(module, each, embedding=False)
        for module, each in parts.embeddings.items():
            self._add(module, each, embedding=True)

    def _tensors_of(self, path: str) -> list[str]:
        """The names of the tensors of a parameter and of those tied to it, at least one. Raises `SourceError`."""
        if name := self._own.get(self._names.bare(path)):
            return [name]
        paths = [path, *self._names.others(path)]
        names = [name for each in paths if (name := self._names.find(each))]
        if not names:
            fix = HEAD if self._adapter.settings.saves(path) else GIVE
            raise SourceError(f"{self._adapter.path}: {path} is not in the checkpoint. {fix}")
        if len(names) > 1 and not self._are_equal(names):
            return names[:1]  # transformers does not tie them either
        return names

    def _are_equal(self, names: list[str]) -> bool:
        first, *others = (self._before[name] for name in names)
        return all(each.shape == first.shape and bool((each.tensor == first.tensor).all()) for each in others)

    def _replace(self, path: str, value: MappedTensor) -> None:
        names = self._tensors_of(path)
        self._check_shape(path, value.shape, self.tensors[names[0]].shape)
        others = self._names.others(path)
        if others and self._adapter.settings.saves(path):
            if len(others) > 1:
                raise SourceError(
                    f"{self._adapter.path}: {path} is in modules_to_save, and config.json ties it to "
                    f"{', '.join(others)}, expected one of them. Merge the adapter with peft, and export the result."
                )
            self._untie(path, others[0], names[0])
            names = [self._own[self._names.bare(path)]]
        for name in names:
            self.tensors[name] = value

    def _untie(self, path: str, other: str, stored: str) -> None:
        """Give both parameters a tensor of their own, from the tensor `stored`."""
        for each in (path, other):
            own = self._own.setdefault(self._names.bare(each), self._names.find(each) or each)
            self.tensors.setdefault(own, self.tensors[stored])

    def _replace_rows(self, module: str, rows: MappedTensor) -> None:
        path = f"{module}.weight"
        indices = self._adapter.settings.tokens(module) or []
        for name in self._tensors_of(path):
            base = self._float(path, self.tensors[name])
            self._check_shape(path, rows.shape, (len(indices), *base.shape[1:]))
            if beyond := next((index for index in indices if index >= base.shape[0]), None):
                raise SourceError(
                    f"{self._adapter.path}: trainable_token_indices has {beyond}, but {path} of the checkpoint has "
                    f"{base.shape[0]} rows. {GIVE}"
                )
            self.tensors[name] = with_rows(base, rows, indices)

    def _add(self, module: str, parts: Mapping[str, MappedTensor], embedding: bool) -> None:
        path = f"{module}.weight"
        if wrong := next((each for key, each in parts.items() if each.tensor.ndim != 2 - (key == MAGNITUDE)), None):
            raise SourceError(
                f"{self._adapter.path}: {path} is changed by a tensor {list(wrong.shape)}, expected two matrices. "
                "Convolutions are not merged: merge the adapter with peft, and export the result."
            )
        settings = self._adapter.settings
        first, second = parts[FIRST], parts[SECOND]
        inputs_first = embedding
        names = self._tensors_of(path)
        if not embedding and self._config.get("model_type") in TRANSPOSED:
            inputs_first = tuple(self.tensors[names[0]].shape) == (first.shape[1], second.shape[0])
        change = LowRank(first, second, settings.scale(module), inputs_first, parts.get(MAGNITUDE))
        if change.rank != (settings.rank(module),) * 2:
            raise SourceError(
                f"{self._adapter.path}: the matrices for {module} have rank {change.rank[0]} and {change.rank[1]}, "
                f"expected {settings.rank(module)}, as r and rank_pattern say. Save the adapter again."
            )
        for name in names:
            base = self._float(path, self.tensors[name])
            self._check_shape(path, change.shape, base.shape)
            if change.magnitude:
                self._check_shape(f"the magnitude of {module}", change.magnitude.shape, second.shape[:1])
            self.tensors[name] = change.added_to(base)

    def _float(self, path: str, stored: StoredTensor) -> FloatTensor:
        if isinstance(stored, CodedWeight | StackedWeight):
            raise SourceError(
                f"{self._adapter.path}: {path} of the checkpoint is quantised, and merging would change its codes. "
                "Merge the adapter into the checkpoint that was quantised, in floating point, or leave --adapter out."
            )
        return stored

    def _check_shape(self, path: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if got == tuple(expected):
            return
        fix = GIVE
        if len(got) == len(expected) == 2 and got[1] == expected[1] and path.endswith("weight"):
            fix = (
                "If tokens were added in training: resize the model's embeddings with resize_token_embeddings"
                f"({got[0]}), save it, and export that with the adapter."
            )
        raise SourceError(f"{self._adapter.path}: {path} is {list(got)}, expected {list(expected)}. {fix}")
