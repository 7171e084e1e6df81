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

if TYPE_CHECKING:
    import torch

BITS = (2, 3, 4, 8)


class Groups(NamedTuple):
    """What GroupMatMul gets: w[n, order[k]] = scales[n, g]·(codes[n, k] - zero_points[n, g]), g = k // group_size.

    With `minimums`, each weight is less by the one of its group.
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
        weight = unpack(groups.packed, self.bits).reshape(self.shape[0], -1, self.group_size).astype(np.float32)
        weight -= groups.zero_points[:, :, None]
        weight *= groups.scales[:, :, None]
        if groups.minimums is not None:
            weight -= groups.minimums[:, :, None]
        weight = weight.reshape(self.shape)
        if self.order is None:
            return torch.from_numpy(weight)
        result = np.empty(self.shape, np.float32)
        result[:, self.order] = weight
        return torch.from_numpy(result)


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
        return each.bits, each.group_size, each.has_minimums, each.shape[1], order

    if len(set(map(grouping, weights))) > 1:
        return None

    def read() -> Groups:
        packed, scales, zero_points, minimums = zip(*(each.read() for each in weights), strict=True)
        below = np.concatenate(minimums) if weights[0].has_minimums else None
        return Groups(np.concatenate(packed), np.concatenate(scales), np.concatenate(zero_points), below)

    shape = sum(each.shape[0] for each in weights), weights[0].shape[1]
    return replace(weights[0], shape=shape, read=read)


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


def usable_group(name: str, inputs: int, groups: int, group_size: int) -> int:
    """The group size to store `groups` groups of `group_size` (the last may be shorter) of a row of `inputs` weights.

    A smaller one, of which each group has several with equal scales, where `group_size` does not divide the row.
    Raises `SourceError` if none is a multiple of 32, or the groups do not fill the row.
    """
    if group_size < 1 or -(-inputs // group_size) != groups:
        raise SourceError(
            f"{name}: {groups} groups of {group_size} for {inputs} inputs. Download the checkpoint again."
        )
    usable = gcd(group_size, inputs) if inputs % group_size else group_size
    if usable % WORD or inputs % WORD:
        raise SourceError(
            f"{name}: groups of {group_size} for {inputs} inputs are not kept: groups have to be multiples of {WORD}. "
            "Export the checkpoint that it was made from."
        )
    return usable


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
