"""Tensors that are computed later have the numbers of those that are computed at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPE = (3, 4, 6)
# Functions of a tensor of `SHAPE` that return another of that shape.
STEPS: dict[str, Callable[..., Any]] = {
    "float16 and back": lambda x: x.half().float(),
    "whole": lambda x: x[...],
    "transposed twice": lambda x: (x.transpose(1, 2) * 2).transpose(-1, -2),
    "halves exchanged": lambda x: _torch().cat(x.chunk(2, 1)[::-1], 1),
    "reversed": lambda x: x.flip(0),
    "stacked": lambda x: _torch().stack([x[2], x[0], x[1]]),
    "stacked behind": lambda x: _torch().stack(list(x.unbind(2)), 2),
    "joined": lambda x: _torch().cat([x[:, :1], x[:, 1:]], 1),
    "joined in front": lambda x: _torch().cat([x[1:], x[:1]]),
    "permuted": lambda x: x.permute(2, 0, 1).reshape(SHAPE),
}


def _torch() -> Any:
    import torch

    return torch


def deferred(*arrays: Any) -> list[Any]:
    """The arrays as tensors of a file that are deferred."""
    from intaglio.exporters.checkpoints.deferred import DeferredTensor
    from intaglio.exporters.files.safetensors_file import MappedTensor

    return [DeferredTensor.of(f"w{index}", MappedTensor(array, Path("w"), 0)) for index, array in enumerate(arrays)]


@settings(max_examples=examples(30))
@given(st.lists(st.sampled_from(list(STEPS)), max_size=5), st.integers(0, 2))
def test_any_steps_compute_the_same(names: list[str], part: int) -> None:
    wanted = _torch().randn(SHAPE).half().float()
    (found,) = deferred(wanted)
    for name in names:
        found, wanted = STEPS[name](found), STEPS[name](wanted)
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    assert found.compute().equal(wanted)
    assert found.part(part).compute().equal(wanted[part])


def test_comparison_reads_the_numbers() -> None:
    torch = _torch()
    array = torch.randn(SHAPE)
    first, same, other = deferred(array, array.clone(), array + 1)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert float(first[0, 0, 0]) == float(array[0, 0, 0])


def test_part_of_stacked_experts_reads_only_its_own() -> None:
    torch = _torch()
    arrays = [torch.randn(4, 6) for _ in range(6)]
    tensors = deferred(*arrays)
    joined = torch.cat([torch.stack(tensors[:3]), torch.stack(tensors[3:])], 1).to(torch.float64)
    part = joined.part(1)
    assert sorted(_sources(part)) == ["w1", "w4"]
    assert part.compute().equal(torch.cat([arrays[1], arrays[4]]).double())


@pytest.mark.parametrize("same", ["float16 and back", "whole"])
def test_unchanged_names_the_tensor_of_the_checkpoint(same: str) -> None:
    (tensor,) = deferred(_torch().randn(SHAPE))
    assert STEPS[same](tensor).unchanged()[0] == "w0"
    assert STEPS["reversed"](tensor).unchanged() is None


def _sources(tensor: Any) -> list[str]:
    from torch.utils._pytree import tree_leaves

    from intaglio.exporters.checkpoints.deferred import DeferredTensor

    if isinstance(tensor.made, tuple):
        return [tensor.made[0]]
    inner = [each for each in tree_leaves(tensor.made.arguments) if isinstance(each, DeferredTensor)]
    return [name for each in inner for name in _sources(each)]
