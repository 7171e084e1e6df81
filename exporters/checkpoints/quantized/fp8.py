"""Weights of 8-bit floating-point numbers (E4M3) and their scales, as DeepSeek, vLLM and FBGEMM store them.

weight             float8_e4m3fn [N, K]
weight_scale_inv   [N/rows, K/columns], rounded up: what the numbers of a block are multiplied by, despite its name
weight_scale       [N], [N, 1] or one number: the same of a channel, or of all; or, of compressed-tensors, of a block

Scales are float32, bfloat16 or powers of two (E8M0). A number times its scale is rounded to float32, and then as any
weight of the model. GroupMatMul's codes are the bytes, and each row has the scales of its blocks; blocks whose columns
are no groups of it are decoded. Scales of activations are left out: the graph computes with activations that are not
rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, Groups, is_usable_group
from intaglio.exporters.checkpoints.quantized.parts import Parts, described, layer_groups
from intaglio.exporters.files.computed_tensor import ComputedTensor

if TYPE_CHECKING:
    import torch


BITS, MIDDLE = 8, 128


def weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight | ComputedTensor:
    """The weight `name` from its parts. Raises `SourceError` where they disagree."""
    import torch

    numbers, scale = parts["weight"], parts.get("weight_scale_inv") or parts["weight_scale"]
    rows, columns = numbers.shape
    if numbers.dtype != torch.float8_e4m3fn or not scale.dtype.is_floating_point:
        raise SourceError(
            f"{name}: weight is {numbers.dtype} and its scale {scale.dtype}, expected float8_e4m3fn and floats. "
            "Export the checkpoint that it was made from."
        )
    block = _block(name, parts, scale.shape, settings)

    def scales() -> torch.Tensor:  # of each row
        of_blocks = scale.tensor.to(torch.float32).reshape(-(-rows // block[0]), -(-columns // block[1]))
        return of_blocks.repeat_interleave(block[0], 0)[:rows]

    def read() -> Groups:
        codes = numbers.tensor.view(torch.uint8).contiguous().numpy()
        factors = scales().contiguous().numpy()
        return Groups(codes.view("<i4"), factors, np.full(factors.shape, MIDDLE, np.uint8))

    def decode() -> torch.Tensor:
        by_column = scales().repeat_interleave(block[1], 1)[:, :columns]
        return numbers.tensor.to(torch.float32).mul_(by_column)

    if is_usable_group(columns, block[1], BITS):
        levels = torch.arange(1 << BITS).to(torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()
        return GroupedWeight((rows, columns), BITS, block[1], read, levels=levels)
    return ComputedTensor((rows, columns), decode, "8-bit floating point")


def _block(name: str, parts: Parts, scales: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[int, int]:
    """The rows and columns that share a scale."""
    rows, columns = parts["weight"].shape
    if scales in ((), (1,), (1, 1)):
        return rows, columns
    if scales in ((rows,), (rows, 1)):
        return 1, columns
    given = settings.get("weight_block_size") or _of_groups(settings)
    sides = given if isinstance(given, list) and all(type(side) is int and side > 0 for side in given) else []
    if len(sides) == 2 and scales == (-(-rows // sides[0]), -(-columns // sides[1])):
        return sides[0], sides[1]
    raise SourceError(
        f"{name}: {described(parts)} do not form a weight in blocks of {given!r}. Download the checkpoint again."
    )


def _of_groups(settings: Mapping[str, Any]) -> Any:
    """The blocks that compressed-tensors states for its first group of layers that has any."""
    for group in layer_groups(settings):
        weights = group.get("weights")
        if isinstance(weights, dict) and weights.get("block_structure"):
            return weights["block_structure"]
    return None
