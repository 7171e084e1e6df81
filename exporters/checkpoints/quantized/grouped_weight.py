"""A weight that a checkpoint stores as small integers in groups, as GroupMatMul multiplies by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.plugins.bit_packing import WORD, unpack
from intaglio.plugins.group_matmul.signature import LARGEST_GROUP, smallest_group

if TYPE_CHECKING:
    import torch

BITS = (2, 3, 4, 8)
ACTIVATION_BITS = 16  # as in the recipes


class Groups(NamedTuple):
    """What GroupMatMul gets: w[n, order[k]] = scales[n, g]·(codes[n, k] - zero_points[n, g]), g = k // group_size.

    With `minimums`, each weight is less by the one of its group. Codes of a weight with levels stand for these; their
    zero points are the middle, which says nothing.
    """

    packed: npt.NDArray[np.int32]  # [N, K·bits/32], the codes as `bit_packing` packs them
    scales: npt.NDArray[np.float32]  # [N, K/group_size]
    zero_points: npt.NDArray[np.uint8]  # [N, K/group_size]
    minimums: npt.NDArray[np.float32] | None = None  # [N, K/group_size]


@dataclass(frozen=True)
class GroupedWeight:
    """A weight [N, K] whose codes stay in their files until `read` reads them; it takes the place of a float one."""

    shape: tuple[int, int]
    bits: int
    group_size: int
    read: Callable[[], Groups]
    order: npt.NDArray[np.int64] | None = None  # [K], the input that each column is for; None if they are in order
    has_minimums: bool = False
    levels: npt.NDArray[np.float32] | None = None  # [2^bits], what codes stand for; None: themselves, less a zero point
    activation_bits: int = ACTIVATION_BITS  # precision of x in the product: 8, 16 or 32

    @property
    def kind(self) -> tuple[Any, ...]:
        """What weights have in common that can be one: the bits, the groups, the levels."""
        levels = None if self.levels is None else self.levels.tobytes()
        return self.bits, self.group_size, self.has_minimums, levels

    @property
    def dtype(self) -> torch.dtype:
        """Of `tensor`: float32, in which a float16 scale times an integer is exact."""
        import torch

        return torch.float32

    @property
    def tensor(self) -> torch.Tensor:
        """The numbers that the codes stand for, float32 [N, K], computed now."""
        import torch

        groups = self.read()
        # In float32: a product is rounded once, and where a minimum follows, it is exact before.
        codes = unpack(groups.packed, self.bits).reshape(self.shape[0], -1, self.group_size)
        if self.levels is None:
            weight = codes.astype(np.float32)
            weight -= groups.zero_points[:, :, None]
        else:
            weight = self.levels[codes]
        weight *= groups.scales[:, :, None]
        if groups.minimums is not None:
            weight -= groups.minimums[:, :, None]
        weight = weight.reshape(self.shape)
        if self.order is None:
            return torch.from_numpy(weight)
        result = np.empty(self.shape, np.float32)
        result[:, self.order] = weight
        return torch.from_numpy(result)


def codes_by_input(weight: GroupedWeight, groups: Groups) -> npt.NDArray[np.uint8]:
    """The codes [N, K] of what `weight.read` returned, in the order of the inputs."""
    codes = unpack(groups.packed, weight.bits)
    if weight.order is None:
        return codes
    result = np.empty_like(codes)
    result[:, weight.order] = codes
    return result


def group_index(weight: GroupedWeight) -> npt.NDArray[np.int32]:
    """The group of each input, [K]: what `sorted_inputs` sorts by."""
    ascending = (np.arange(weight.shape[1]) // weight.group_size).astype(np.int32)
    if weight.order is None:
        return ascending
    index = np.empty_like(ascending)
    index[weight.order] = ascending
    return index


def to_write(name: str, weight: GroupedWeight, form: str, bits: Sequence[int]) -> Groups:
    """What `weight.read` returns, for the format `form` of codes in `bits` with zero points.

    Raises `SourceError` for levels, other bits, minimums, and zero points that are no codes.
    """
    if weight.levels is not None:
        raise SourceError(f"{name}: {levels_refused(form)}")
    if weight.bits not in bits:
        known = ", ".join(map(str, bits))
        raise SourceError(f"{name}: {weight.bits} bits, and {form} has {known}. Compress to these, or skip this layer.")
    if weight.has_minimums:
        raise SourceError(
            f"{name}: its groups have minimums, as GGUF has them, and {form} has zero points alone. "
            "Write --format gguf, or compress the checkpoint in floating point."
        )
    groups = weight.read()
    if (highest := int(groups.zero_points.max())) >= 2**weight.bits:
        raise SourceError(
            f"{name}: a zero point of {highest}, and {form} has those below {2**weight.bits}. Compress the "
            "checkpoint in floating point, or skip this layer."
        )
    return groups


def levels_refused(form: str) -> str:
    """Why a weight with levels is not written in `form`, and what to do."""
    return (
        f"its codes stand for levels, such as those of FP8, NF4 or MXFP4, and {form} is written with equal steps. Keep "
        "the checkpoint that it came from, or compress its model in floating point."
    )


def common_group_size(weights: Mapping[str, GroupedWeight], form: str) -> tuple[int, int]:
    """Bits and group size of all `weights`, -1 for whole rows, of which the format `form` states one.

    Raises `SourceError` that names two weights that differ.
    """
    first, *rest = weights.items()

    def sizes(weight: GroupedWeight) -> set[tuple[int, int]]:
        size = weight.group_size
        return {(weight.bits, size), *([(weight.bits, -1)] if size == weight.shape[1] else [])}

    found = sizes(first[1])
    for path, weight in rest:
        if not (common := found & sizes(weight)):
            raise SourceError(
                f"{path}: {weight.bits} bits in groups of {weight.group_size}, and {first[0]} has {first[1].bits} bits "
                f"in groups of {first[1].group_size}: {form} states one for all. Compress with a group size that "
                "divides all rows, or write --format compressed-tensors."
            )
        found = common
    return min(found)


@dataclass(frozen=True)
class StackedWeight:
    """Weights of experts [experts, inputs, outputs], each stored for itself as [outputs, inputs]."""

    experts: tuple[Any, ...]  # tensors of a checkpoint, alike

    @property
    def shape(self) -> tuple[int, int, int]:
        """[experts, inputs, outputs]."""
        outputs, inputs = self.experts[0].shape
        return len(self.experts), inputs, outputs

    @property
    def dtype(self) -> torch.dtype:
        """Of `tensor`."""
        dtype: torch.dtype = self.experts[0].dtype
        return dtype

    @property
    def tensor(self) -> torch.Tensor:
        """The numbers of all, computed now."""
        import torch

        return torch.stack([each.tensor.T for each in self.experts])


def below_each_other(weights: Sequence[GroupedWeight]) -> GroupedWeight | None:
    """One weight of the rows of all, which multiply the same inputs; None if they are grouped differently."""

    def grouping(each: GroupedWeight) -> tuple[Any, ...]:
        order = None if each.order is None else each.order.tobytes()
        return *each.kind, each.shape[1], order

    if len(set(map(grouping, weights))) > 1:
        return None

    def read() -> Groups:
        packed, scales, zero_points, minimums = zip(*(each.read() for each in weights), strict=True)
        below = np.concatenate(minimums) if weights[0].has_minimums else None
        return Groups(np.concatenate(packed), np.concatenate(scales), np.concatenate(zero_points), below)

    shape = sum(each.shape[0] for each in weights), weights[0].shape[1]
    return replace(weights[0], shape=shape, read=read)


def rows_of(weight: GroupedWeight, rows: slice | npt.NDArray[np.int64]) -> GroupedWeight:
    """The weight of some of the outputs, or of all in another order."""

    def read() -> Groups:
        return Groups(*(None if each is None else each[rows] for each in weight.read()))  # type: ignore[arg-type]

    return replace(weight, shape=(len(np.arange(weight.shape[0])[rows]), weight.shape[1]), read=read)


def alternating(even: GroupedWeight, odd: GroupedWeight) -> GroupedWeight:
    """One weight of the rows of both in turns; they are grouped alike, and in order."""

    def in_turns(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.stack([first, second], 1).reshape(-1, first.shape[1])

    def read() -> Groups:
        pairs = zip(even.read(), odd.read(), strict=True)
        packed, scales, zeros, minimums = (None if a is None or b is None else in_turns(a, b) for a, b in pairs)
        assert packed is not None and scales is not None and zeros is not None
        return Groups(packed, scales, zeros, minimums)

    return replace(even, shape=(2 * even.shape[0], even.shape[1]), read=read)


def stated_group_size(name: str, settings: Mapping[str, Any], keys: Sequence[str], inputs: int, groups: int) -> int:
    """The group size under one of `keys` of the settings; a whole row if it is -1. Raises `SourceError`."""
    given = next((settings[key] for key in keys if key in settings), -1)
    if not isinstance(given, int) or isinstance(given, bool) or given == 0 or given < -1:
        raise SourceError(f"{name}: {keys[0]} is {given!r}, expected a number of weights, or -1. Fix it.")
    return inputs if given == -1 or groups == 1 else given


def usable_group(name: str, inputs: int, groups: int, group_size: int, bits: int) -> int:
    """The group size to store `groups` groups of `group_size` (the last may be shorter) of a row of `inputs` weights.

    A smaller one, of which each group has several with equal scales, where `group_size` does not divide the row.
    Raises `SourceError` if none is a multiple of what GroupMatMul has in `bits`, or the groups do not fill the row.
    """
    if group_size < 1 or -(-inputs // group_size) != groups:
        raise SourceError(
            f"{name}: {groups} groups of {group_size} for {inputs} inputs. Download the checkpoint again."
        )
    usable, least = gcd(group_size, inputs) if inputs % group_size else group_size, smallest_group(bits)
    if usable % least or inputs % WORD:
        raise SourceError(
            f"{name}: groups of {group_size} for {inputs} inputs are not kept: groups have to be multiples of {least}, "
            f"and inputs of {WORD}. Export the checkpoint that it was made from."
        )
    return usable


def is_usable_group(inputs: int, group_size: int, bits: int) -> bool:
    """Whether GroupMatMul has groups of `group_size` in a row of `inputs` weights."""
    whole = inputs % WORD == 0 and inputs % group_size == 0
    return whole and group_size % smallest_group(bits) == 0 and group_size <= LARGEST_GROUP


def spread(per_group: npt.NDArray[Any], group_size: int, usable: int, inputs: int) -> npt.NDArray[Any]:
    """Values [N, groups] of groups of `group_size` for groups of `usable`: [N, inputs/usable]."""
    return np.repeat(per_group, group_size // usable, 1)[:, : inputs // usable]


def sorted_inputs(
    name: str, index: npt.NDArray[Any] | None, inputs: int, group_size: int
) -> npt.NDArray[np.int64] | None:
    """The inputs sorted by their groups, from the group of each, `index` [K]; None if they are in order.

    Raises `SourceError` if the groups are not of `group_size` inputs each.
    """
    ascending = np.arange(inputs) // group_size
    if index is None or np.array_equal(index, ascending):
        return None
    if not np.array_equal(np.sort(index), ascending):
        raise SourceError(f"{name}: g_idx does not put {group_size} inputs into each group. Download it again.")
    return np.argsort(index, kind="stable")
