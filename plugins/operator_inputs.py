"""What the inputs of an operator have to be, and whether those that are given are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError

Array = npt.NDArray[np.generic]
Shape = tuple[int | str | None, ...]

ANY = "..."  # any number of axes
OR_ONE = "|1"  # after the name of a length that may be 1 as well

# A multiplier and its shift, which bring integers to another scale: q·multiplier / 2^shift.
SHIFTS = (0, 62)
FACTORS = ("multiplier", "shift")


@dataclass(frozen=True)
class Input:
    """An input: its name, the dtypes it may have, and its axes.

    `axes`: the names of its lengths, equal names being equal lengths in all inputs of one node, and a number being
    itself; "C|1" may be 1 too, and a first "..." stands for any axes before the others. `bounds`: the smallest and the
    largest value. `note`: what else it has to be, in words.
    """

    name: str
    dtypes: tuple[str, ...]
    axes: tuple[str, ...] = (ANY,)
    bounds: tuple[int, int] | None = None
    optional: bool = False
    note: str = ""

    def __str__(self) -> str:
        """Dtype, axes and bounds, as "int32 [C or 1], 0 to 62"."""
        axes = ", ".join(axis.replace(OR_ONE, " or 1") for axis in self.axes)
        bounds = "" if self.bounds is None else f", {self.bounds[0]} to {self.bounds[1]}"
        return f"{' or '.join(self.dtypes)} [{axes}]{bounds}{self.note and ', ' + self.note}"


def factors(axis: str, optional: bool = False, prefix: str = "") -> tuple[Input, Input]:
    """The inputs `multiplier` and `shift`, with one entry or one for each of `axis`."""
    multiplier = Input(f"{prefix}multiplier", ("int32",), (axis + OR_ONE,), optional=optional)
    return multiplier, Input(f"{prefix}shift", ("int32",), (axis + OR_ONE,), SHIFTS, optional)


@dataclass(frozen=True)
class Given:
    """What is known of a tensor that is given for an input: each may be None, and lengths may be symbols."""

    dtype: str | None
    shape: Shape | None
    values: Array | None = None


def given(array: Array | None) -> Given | None:
    """All there is to know of an array; None for one that is left out."""
    return None if array is None else Given(array.dtype.name, array.shape, array)


def check_inputs(specs: Sequence[Input], groups: Sequence[Sequence[str]], inputs: Sequence[Given | None]) -> None:
    """Raise `GraphError` for an input that is not what its spec says, as far as that is known.

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
    """`lengths`: those that are known by now, by name; completed."""
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


def check_channels(name: str, channels: int | str | None, factors: Sequence[Given | None]) -> None:
    """Raise `GraphError` for factors of operator `name` that are neither one nor one for each channel."""
    for factor in factors:
        length = factor.shape[0] if factor is not None and factor.shape else None
        if isinstance(length, int) and isinstance(channels, int) and length not in (1, channels):
            raise GraphError(f"{name}: factors of length {length}, expected {channels} or 1.")
