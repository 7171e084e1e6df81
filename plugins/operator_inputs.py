"""Check a node's inputs against the operator's signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError
from intaglio.plugins.signature import ANY, OR_ONE, Input

Array = npt.NDArray[np.generic]
Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Given:
    """The known properties of a tensor given for an input: each may be None, and lengths may be symbols."""

    dtype: str | None
    shape: Shape | None
    values: Array | None = None


def given(array: Array | None) -> Given | None:
    """The properties of an array; None for a missing one."""
    return None if array is None else Given(array.dtype.name, array.shape, array)


def check_inputs(specs: Sequence[Input], groups: Sequence[Sequence[str]], inputs: Sequence[Given | None]) -> None:
    """Raise `GraphError` for an input that does not match its spec, as far as known.

    `inputs`: one for each spec, None for one left out. `groups`: the names of optional inputs that come together.
    """
    lengths: dict[str, int] = {}
    for spec, each in zip(specs, inputs, strict=True):
        if each is not None:
            _check(spec, each, lengths)
        elif not spec.optional:
            raise GraphError(f"input {spec.name} is missing. Give {spec}.")
    left_out = {spec.name for spec, each in zip(specs, inputs, strict=True) if each is None}
    for group in groups:
        if left_out.intersection(group) and not left_out.issuperset(group):
            missing = [name for name in group if name in left_out]
            raise GraphError(f"inputs {', '.join(group)}: {', '.join(missing)} left out. Give all or none of them.")


def _check(spec: Input, each: Given, lengths: dict[str, int]) -> None:
    if each.dtype is not None and each.dtype not in spec.dtypes:
        raise GraphError(f"input {spec.name} is {each.dtype}, expected {spec}.")
    if each.shape is not None:
        _check_shape(spec, each.shape, lengths)
    if each.values is not None and spec.bounds is not None and each.values.size:
        low, high = spec.bounds
        values = each.values.astype(np.int64)
        outside = values[(values < low) | (values > high)]
        if outside.size:
            raise GraphError(f"input {spec.name} holds {outside.flat[0]}, expected {low} to {high}.")


def _check_shape(spec: Input, shape: Shape, lengths: dict[str, int]) -> None:
    """Check and complete `lengths`, the lengths known so far by name."""
    axes = spec.axes[1:] if spec.axes[0] == ANY else spec.axes
    fits = len(shape) >= len(axes) if spec.axes[0] == ANY else len(shape) == len(axes)
    for axis, length in zip(axes[::-1], shape[::-1], strict=False):
        if not isinstance(length, int) or (axis.endswith(OR_ONE) and length == 1):
            continue
        name = axis.removesuffix(OR_ONE)
        fits = fits and length == (int(name) if name.isdigit() else lengths.setdefault(name, length))
    if not fits:
        known = ", ".join(f"{name} = {length}" for name, length in lengths.items())
        shown = ", ".join(map(str, shape))
        raise GraphError(f"input {spec.name} has shape [{shown}], expected {spec}{known and f' with {known}'}.")


def check_shape_of(name: str, given: str, shape: Shape | None, of: str, expected: Shape | None) -> None:
    """Raise `GraphError` unless operator `name` has its input `given` in the shape `of` another; unknown ones match."""
    if shape is None or expected is None:
        return
    pairs = zip(shape, expected, strict=False)
    different = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    if different or len(shape) != len(expected):
        raise GraphError(f"{name}: {given} has shape {list(shape)}, expected that of {of}, {list(expected)}.")


def check_channels(name: str, channels: int | str | None, factors: Sequence[Given | None]) -> None:
    """Raise `GraphError` unless operator `name` has one factor, or one per channel."""
    for factor in factors:
        length = factor.shape[0] if factor is not None and factor.shape else None
        if isinstance(length, int) and isinstance(channels, int) and length not in (1, channels):
            raise GraphError(f"{name}: factors of length {length}, expected {channels} or 1.")
