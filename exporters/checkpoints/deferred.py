"""Tensors of a checkpoint that are computed when they are needed, and take no memory before.

`transformers` renames, splits, merges and permutes the tensors of a checkpoint while it loads them. With these in their
place the model that it builds has no weights, but each of its parameters knows how to compute it from the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized import grouped_weight, tabled_weight
from intaglio.exporters.checkpoints.quantized.formats import CodedWeight, StoredTensor
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, StackedWeight
from intaglio.exporters.checkpoints.quantized.tabled_weight import TabledWeight

aten = torch.ops.aten
VALUES = (aten.equal.default, aten._local_scalar_dense.default)  # operations whose result depends on the numbers
# Operations that return the numbers of their argument in its order and shape.
SAME_NUMBERS = (aten.alias.default, aten.detach.default, aten.clone.default, aten._to_copy.default)


@dataclass(frozen=True)
class _Call:
    """An operation of torch on deferred tensors; `output` is which of its outputs, if it returns several."""

    operation: Any
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    output: int | None = None


class DeferredTensor(torch.Tensor):
    """A tensor with a shape and a dtype; operations on it are recorded, and carried out by `compute`."""

    like: torch.Tensor  # on the meta device: shape, strides and dtype
    made: tuple[str, StoredTensor] | _Call  # from a tensor of the checkpoint, with its name, or by a call

    @staticmethod
    def __new__(cls, like: torch.Tensor, made: Any) -> DeferredTensor:  # noqa: D102
        return torch.Tensor._make_wrapper_subclass(
            cls, like.shape, like.stride(), like.storage_offset(), dtype=like.dtype, device=torch.device("cpu")
        )

    def __init__(self, like: torch.Tensor, made: Any):
        self.like, self.made = like, made

    @classmethod
    def of(cls, name: str, source: StoredTensor) -> DeferredTensor:
        """The tensor `name` of a checkpoint."""
        if isinstance(source, StackedWeight):
            experts: Any = [cls.of(f"{name}.{index}", each) for index, each in enumerate(source.experts)]
            return torch.stack(experts).transpose(1, 2)  # type: ignore[return-value]
        return cls(torch.empty(source.shape, dtype=source.dtype, device="meta"), (name, source))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        if operation in VALUES:
            return operation(*_mapped(DeferredTensor.compute, arguments))
        options = {name: value for name, value in (named or {}).items() if name not in ("device", "pin_memory")}
        found = operation(*_mapped(lambda each: each.like, arguments), **_mapped(lambda each: each.like, options))
        if isinstance(found, torch.Tensor):
            return cls(found, _Call(operation, arguments, options))
        if isinstance(found, list | tuple):
            return [cls(each, _Call(operation, arguments, options, index)) for index, each in enumerate(found)]
        return found

    def compute(self) -> torch.Tensor:
        """The numbers, read from the files and computed now."""
        if not isinstance(self.made, _Call):
            return self.made[1].tensor
        call = self.made
        found = call.operation(
            *_mapped(DeferredTensor.compute, call.arguments), **_mapped(DeferredTensor.compute, call.options)
        )
        return found if call.output is None else found[call.output]  # type: ignore[no-any-return]

    def unchanged(self) -> tuple[str, StoredTensor] | None:
        """The tensor of the checkpoint, with its name, whose numbers these are in the same order; of any dtype."""
        made = self._same_numbers().made
        return None if isinstance(made, _Call) else made

    def coded(self) -> CodedWeight | None:
        """The quantised weight whose numbers these are, or several of them below each other; None for other numbers.

        Raises `SourceError` for numbers that are computed in another way from quantised ones; those with levels are
        decoded then.
        """
        if (found := self.unchanged()) is not None:
            return found[1] if isinstance(found[1], CodedWeight) else None
        call = self._same_numbers().made
        if isinstance(call, _Call) and call.operation is aten.cat.default and call.arguments[1:] in ((), (0,)):
            parts = [each.coded() for each in call.arguments[0] if isinstance(each, DeferredTensor)]
            kept = [each for each in parts if each is not None]
            if kept and len(kept) == len(call.arguments[0]) and (joined := _below_each_other(kept)) is not None:
                return joined
        lost = (name for name, each in self._sources() if isinstance(each, CodedWeight) and not _is_decoded(each))
        if name := next(lost, None):
            raise SourceError(
                f"{name}: transformers changes this quantised weight while it loads it, so its codes cannot be kept. "
                "Export the checkpoint that it was made from."
            )
        return None

    def untransposed(self) -> DeferredTensor | None:
        """The matrix that this one is the transpose of; None where it is none, or its numbers are computed."""
        call = self._same_numbers().made
        transposes = (
            isinstance(call, _Call) and call.operation in (aten.transpose.int, aten.t.default) and self.ndim == 2
        )
        return call.arguments[0] if isinstance(call, _Call) and transposes else None

    def _same_numbers(self) -> DeferredTensor:
        """The first tensor, before casts and copies, that has these numbers in this order."""
        inner = self
        while isinstance(call := inner.made, _Call):
            whole = call.operation is aten.slice.Tensor and inner.shape == call.arguments[0].shape
            if call.operation not in SAME_NUMBERS and not whole:
                break
            inner = call.arguments[0]
        return inner

    def _sources(self) -> Iterator[tuple[str, StoredTensor]]:
        """The tensors of the checkpoint from which this one is computed, with their names."""
        if not isinstance(self.made, _Call):
            yield self.made
            return
        for each in tree_leaves((self.made.arguments, dict(self.made.options))):
            if isinstance(each, DeferredTensor):
                yield from each._sources()

    def part(self, index: int) -> DeferredTensor:
        """The part at `index` of the first axis; where that axis was stacked, from its part of the checkpoint alone."""
        found: Any = self[index]
        if not isinstance(call := self.made, _Call):
            return found  # type: ignore[no-any-return]
        operation, (first, *rest) = call.operation, call.arguments
        axes = [number % self.ndim for number in rest[:2] if isinstance(number, int)]
        if operation in SAME_NUMBERS:
            found = operation(first.part(index), *rest, **call.options)
        elif operation is aten.slice.Tensor and (axes or [0])[0] > 0:
            found = operation(first.part(index), axes[0] - 1, *rest[1:])
        elif operation is aten.slice.Tensor and self.shape == first.shape:
            found = first.part(index)
        elif operation is aten.transpose.int and 0 not in axes:
            found = operation(first.part(index), axes[0] - 1, axes[1] - 1)
        elif operation is aten.stack.default and axes in ([], [0]):
            found = first[index]
        elif operation is aten.cat.default and axes and axes[0] > 0:
            found = torch.cat([each.part(index) for each in first], axes[0] - 1)
        return found  # type: ignore[no-any-return]


def _is_decoded(weight: CodedWeight) -> bool:
    """Whether a weight whose codes cannot be kept is decoded: one with levels."""
    return isinstance(weight, GroupedWeight) and weight.levels is not None


def _below_each_other(weights: Sequence[CodedWeight]) -> CodedWeight | None:
    """One weight of the rows of all, which multiply the same inputs; None if they cannot be joined."""
    grouped = [each for each in weights if isinstance(each, GroupedWeight)]
    tabled = [each for each in weights if isinstance(each, TabledWeight)]
    if grouped and tabled:
        return None
    return grouped_weight.below_each_other(grouped) if grouped else tabled_weight.below_each_other(tabled)


def _mapped(function: Any, tree: Any) -> Any:
    return tree_map_only(DeferredTensor, function, tree)
