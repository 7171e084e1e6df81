"""Weights as HQQ stores them: integers with a scale and a zero point, a floating-point number, for each group.

    W_q           groups of numbers, several in a byte or, of 3 bits, ten in an int32; the first are the uppermost
    scale, zero   of each group: [groups, 1] for groups along rows (axis 1), [1, groups] for others (axis 0)
    shape         [N, K]
    nbits, group_size, axis, packing, view_as_float and others: settings, as tensors

w = (number - zero)·scale, which in HQQ is rounded to the dtype that it computes in. Here it is not: scale·number less
scale·zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import BITS, GroupedWeight, Groups
from intaglio.exporters.checkpoints.quantized.parts import Parts, array, described
from intaglio.exporters.files.computed_tensor import ComputedTensor
from intaglio.plugins.bit_packing import WORD, pack
from intaglio.plugins.group_matmul.signature import smallest_group

if TYPE_CHECKING:
    import torch

SETTINGS = (
    "nbits", "group_size", "axis", "packing", "view_as_float", "unpack_view_dtype", "compute_dtype", "quant_zero",
    "quant_scale", "channel_wise", "optimize", "round_zero", "offload_meta", "encoded_state_dict",
    "stores_quant_config",
)  # fmt: skip
QUANTISED = ("zero_q", "scale_q", "zero_scale", "meta_zero", "meta_scale")  # of scales that are packed or quantised
PER_WORD = {8: 1, 4: 2, 3: 10, 2: 4}  # numbers in a byte, or of 3 bits in an int32


def weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight | ComputedTensor:
    """The weight `name` from its parts. Raises `SourceError` where they disagree."""
    if found := [each for each in QUANTISED if each in parts]:
        raise SourceError(
            f"{name}: its scales are stored as {found[0]}, which is not read. Quantise the model with HQQ without "
            "quantised scales and without offload_meta."
        )
    (bits, *_), (axis, *_), shape = ([*_integers(parts, key), 0] for key in ("nbits", "axis", "shape"))
    shape.pop()
    groups = parts["scale"].shape[0] * parts["scale"].shape[1] if len(parts["scale"].shape) == 2 else 0
    total = shape[0] * shape[1] if len(shape) == 2 and min(shape) > 0 else 0
    if bits not in BITS or axis not in (0, 1) or not total or not groups or total % groups:
        raise SourceError(
            f"{name}: {described(parts)}, {bits} bits along axis {axis}, do not form a weight of HQQ in {BITS} bits. "
            "Export the checkpoint that it was made from."
        )
    size = total // groups
    rows, lanes = (groups, size) if axis == 1 else (size, groups)  # of the numbers before they are packed
    expected = (groups, 1) if axis == 1 else (1, groups)
    fits = parts["scale"].shape == parts["zero"].shape == expected
    if not fits or parts["W_q"].shape != (-(-rows // PER_WORD[bits]), lanes) or parts["W_q"].dtype.is_floating_point:
        raise SourceError(f"{name}: {described(parts)} do not form a weight of HQQ in {bits} bits. Download it again.")

    def numbers() -> npt.NDArray[np.uint8]:
        return _unpacked(array(parts["W_q"]), bits)[:rows]

    def factors() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        scale = array(parts["scale"]).astype(np.float32)
        return scale, scale * array(parts["zero"]).astype(np.float32)

    if axis == 1 and size % smallest_group(bits) == 0 and shape[1] % WORD == shape[1] % size == 0:

        def read() -> Groups:
            scales, minimums = (each.reshape(shape[0], -1) for each in factors())
            zeros = np.zeros(scales.shape, np.uint8)
            return Groups(pack(numbers().reshape(shape), bits), scales, zeros, minimums)

        return GroupedWeight((shape[0], shape[1]), bits, size, read, has_minimums=True)

    def decode() -> torch.Tensor:
        import torch

        scales, minimums = factors()
        return torch.from_numpy((scales * numbers() - minimums).reshape(shape))

    return ComputedTensor((shape[0], shape[1]), decode, f"HQQ's {bits} bits")


def _integers(parts: Parts, key: str) -> list[int]:
    """The numbers of a setting; none where it is missing."""
    return [int(number) for number in array(parts[key]).reshape(-1)] if key in parts else []


def _unpacked(packed: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint8]:
    """The numbers: those of the uppermost bits first, then those below."""
    shifts = range((PER_WORD[bits] - 1) * bits, -1, -bits)
    return np.concatenate([(packed >> shift & (2**bits - 1)).astype(np.uint8) for shift in shifts])
