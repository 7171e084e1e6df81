"""Weights as compressed-tensors stores them in the format "int-quantized" (llm-compressor, vLLM: W8A8).

weight             int8 [N, K]
weight_scale       [N, groups], [N], or one number
weight_zero_point  int8, of the scale's shape; of asymmetric weights

Scales of activations are left out: the graph computes with activations that are not rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, Groups, spread, usable_group
from intaglio.exporters.checkpoints.quantized.parts import Parts, array, described
from intaglio.plugins.bit_packing import pack

BITS, CENTRE = 8, 128  # the codes are the numbers plus 128


def weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight:
    """The weight `name` from its parts. Raises `SourceError` where they disagree or cannot be kept."""
    import torch

    numbers, scale, zeros = parts["weight"], parts["weight_scale"], parts.get("weight_zero_point")
    channels, inputs = numbers.shape
    groups = scale.shape[1] if len(scale.shape) == 2 else 1
    fits = scale.shape in ((), (1,), (1, 1), (channels,), (channels, groups)) and groups > 0
    if zeros is not None:
        fits = fits and zeros.shape == scale.shape and zeros.dtype == torch.int8
    if numbers.dtype != torch.int8 or not scale.dtype.is_floating_point or not fits:
        raise SourceError(
            f"{name}: {described(parts)}, of {numbers.dtype}, do not form a weight of compressed-tensors in 8 bits. "
            "Download it again."
        )
    size = -(-inputs // groups)
    usable = usable_group(name, inputs, groups, size, 8)

    def per_group(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return spread(np.broadcast_to(values.reshape(-1, groups), (channels, groups)), size, usable, inputs)

    def read() -> Groups:
        codes = (array(numbers).astype(np.int16) + CENTRE).astype(np.uint8)
        scales = per_group(array(scale).astype(np.float32))
        centres = np.full(scales.shape, CENTRE, np.uint8)
        if zeros is not None:
            centres = per_group((array(zeros).astype(np.int16) + CENTRE).astype(np.uint8))
        return Groups(pack(codes, BITS), np.ascontiguousarray(scales), np.ascontiguousarray(centres))

    return GroupedWeight((channels, inputs), BITS, usable, read)
