"""Weights of 4-bit floating-point numbers (E2M1) with scales of blocks: MXFP4 and NVFP4.

    weight_packed or weight   uint8 [N, K/2], two numbers in a byte, the first in its lower half
    weight_scale              MXFP4: uint8 [N, K/32], powers of two (E8M0); NVFP4: E4M3 [N, K/16]
    weight_global_scale       NVFP4 of compressed-tensors: what all scales are divided by
    weight_scale_2            NVFP4 of ModelOpt: what all scales are multiplied by

GPT-OSS stores the experts of a layer together, for weights [experts, inputs, outputs]:

    <name>_blocks             uint8 [experts, outputs, inputs/32, 16]
    <name>_scales             uint8 [experts, outputs, inputs/32], E8M0
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, Groups, StackedWeight
from intaglio.exporters.checkpoints.quantized.parts import Parts, array, described
from intaglio.exporters.files.computed_tensor import ComputedTensor
from intaglio.plugins.bit_packing import WORD

if TYPE_CHECKING:
    import torch

# E2M1 times 2, for half of a scale: so the largest of E8M0, 2^128, is a float32, too.
TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, -0.0, -1, -2, -3, -4, -6, -8, -12], np.float32)
BITS, MIDDLE = 4, 8
MX_BLOCK, NV_BLOCK = 32, 16
BIAS = 127  # of E8M0's exponents


def indices(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[..., K/2] bytes to [..., K] indices of `TWICE_E2M1`."""
    return np.stack([packed & np.uint8(15), packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def mx_weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight:
    """The weight `name` of MXFP4 from its parts. Raises `SourceError` where they disagree."""
    packed, scale = parts["weight_packed"], parts["weight_scale"]
    channels, inputs = packed.shape[0], packed.shape[1] * 2
    if packed.dtype.itemsize != 1 or scale.dtype.itemsize != 1 or scale.shape != (channels, inputs / MX_BLOCK):
        raise SourceError(f"{name}: {described(parts)} do not form a weight of MXFP4. Download it again.")
    shape = channels, inputs
    return GroupedWeight(shape, BITS, MX_BLOCK, lambda: _mx_groups(array(packed), _bytes(scale)), levels=TWICE_E2M1)


def experts(name: str, parts: Parts, settings: Mapping[str, Any]) -> StackedWeight:
    """The weights `name` of all experts in MXFP4 from their parts. Raises `SourceError` where they disagree."""
    packed, scale = parts["_blocks"], parts["_scales"]
    fits = len(packed.shape) == 4 and packed.shape[3] == MX_BLOCK // 2 and scale.shape == packed.shape[:3]
    if not fits or packed.dtype.itemsize != 1 or scale.dtype.itemsize != 1 or 0 in packed.shape:
        raise SourceError(f"{name}: {described(parts)} do not form weights of experts in MXFP4. Download it again.")
    number, channels, blocks, _ = packed.shape

    def read(expert: int) -> Groups:
        import torch

        exponents = scale.tensor[expert].view(torch.uint8).numpy()
        return _mx_groups(packed.tensor[expert].numpy().reshape(channels, -1), exponents)

    shape = channels, blocks * MX_BLOCK
    weights = (GroupedWeight(shape, BITS, MX_BLOCK, partial(read, each), levels=TWICE_E2M1) for each in range(number))
    return StackedWeight(tuple(weights))


def _bytes(scale: Any) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor of uint8 or E8M0."""
    import torch

    return np.ascontiguousarray(scale.tensor.view(torch.uint8).numpy())


def _mx_groups(packed: npt.NDArray[np.uint8], exponents: npt.NDArray[np.uint8]) -> Groups:
    """What GroupMatMul gets for [N, K/2] bytes and [N, K/32] exponents."""
    return _groups(packed, np.ldexp(np.float32(0.5), exponents.astype(np.int32) - BIAS))


def _groups(packed: npt.NDArray[np.uint8], scales: npt.NDArray[np.float32]) -> Groups:
    """What GroupMatMul gets for [N, K/2] bytes and half of each block's scale; its words have the same bytes."""
    return Groups(np.ascontiguousarray(packed).view("<i4"), scales, np.full(scales.shape, MIDDLE, np.uint8))


def nv_weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight | ComputedTensor:
    """The weight `name` of NVFP4 from its parts. Raises `SourceError` where they disagree."""
    import torch

    packed, scale = parts["weight_packed" if "weight_packed" in parts else "weight"], parts["weight_scale"]
    divisor, factor = parts.get("weight_global_scale"), parts.get("weight_scale_2")
    channels, inputs = packed.shape[0], packed.shape[1] * 2
    fits = scale.shape == (channels, inputs / NV_BLOCK) and scale.dtype == torch.float8_e4m3fn
    if packed.dtype != torch.uint8 or not fits or (divisor is None) == (factor is None):
        raise SourceError(f"{name}: {described(parts)} do not form a weight of NVFP4. Download it again.")
    for each in filter(None, (divisor, factor)):
        if each.shape not in ((), (1,)) or not each.dtype.is_floating_point:
            raise SourceError(f"{name}: {described(parts)}: expected one scale of all. Download it again.")

    def half_scales() -> npt.NDArray[np.float32]:
        scales = scale.tensor.to(torch.float32)
        if divisor is not None:
            scales = scales / divisor.tensor.to(torch.float32)
        if factor is not None:
            scales = scales * factor.tensor.to(torch.float32)
        return (scales / 2).numpy()

    def decode() -> torch.Tensor:
        import torch

        numbers = TWICE_E2M1[indices(array(packed))].reshape(channels, -1, NV_BLOCK) * half_scales()[:, :, None]
        return torch.from_numpy(numbers.reshape(channels, inputs))

    if inputs % WORD:
        return ComputedTensor((channels, inputs), decode, "NVFP4")
    shape = channels, inputs
    return GroupedWeight(shape, BITS, NV_BLOCK, lambda: _groups(array(packed), half_scales()), levels=TWICE_E2M1)
