"""Weights as compressed-tensors stores them in the format "pack-quantized" (llm-compressor, vLLM).

weight_packed      int32 [N, K·bits/32], the codes of a row as a little-endian stream of bits, plus 2^(bits - 1)
weight_scale       [N, groups]
weight_zero_point  int32 [N·bits/32, groups], packed along the channels, plus 2^(bits - 1); of asymmetric weights
weight_g_idx       int32 [K], the group of each input, with `actorder: group`
weight_shape       int64 [2], N and K
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import (
    GroupedWeight,
    Groups,
    codes_by_input,
    group_index,
    sorted_inputs,
    spread,
    to_write,
    usable_group,
)
from intaglio.exporters.checkpoints.quantized.parts import Arrays, Parts, array, described, packed, unpacked
from intaglio.plugins.bit_packing import WORD, pack

BITS = (2, 3, 4, 8)
NO_GROUP = -1  # in g_idx, of weights without an order
NAME, FORMAT = "compressed-tensors", "pack-quantized"


def weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight:
    """The weight `name` from its parts. Raises `SourceError` where they disagree or cannot be kept."""
    channels, words = parts["weight_packed"].shape
    rows, groups = parts["weight_scale"].shape
    stored = [int(length) for length in array(parts["weight_shape"]).reshape(-1)] if "weight_shape" in parts else []
    bits = words * WORD // stored[1] if len(stored) == 2 and stored[1] > 0 else 0
    if bits not in BITS or stored != [channels, words * WORD // bits] or rows != channels or not groups:
        raise SourceError(
            f"{name}: {described(parts)} do not form a weight of compressed-tensors in {BITS} bits. Download it again."
        )
    inputs = stored[1]
    size = -(-inputs // groups)
    usable = usable_group(name, inputs, groups, size, bits)
    index = array(parts["weight_g_idx"]) if "weight_g_idx" in parts else None
    order = sorted_inputs(name, None if index is None or (index == NO_GROUP).all() else index, inputs, size)
    zeros = parts.get("weight_zero_point")
    if zeros is not None and zeros.shape != (-(-channels * bits // WORD), groups):
        raise SourceError(f"{name}: {described(parts)}: unexpected zero points. Download the checkpoint again.")

    def read() -> Groups:
        packed = array(parts["weight_packed"])
        if order is not None:
            packed = pack(unpacked(packed, bits)[:, order], bits)
        scales = spread(array(parts["weight_scale"]).astype(np.float32), size, usable, inputs)
        if zeros is None:
            return Groups(packed, scales, np.full(scales.shape, 2 ** (bits - 1), np.uint8))
        numbers = unpacked(np.ascontiguousarray(array(zeros).T), bits)[:, :channels].T
        return Groups(packed, scales, spread(numbers, size, usable, inputs))

    return GroupedWeight((channels, inputs), bits, usable, read, order)


def stored(name: str, weight: GroupedWeight) -> Arrays:
    """The parts of `weight`, as `weight` reads them. Raises `SourceError` for one that they cannot hold."""
    groups = to_write(name, weight, NAME, BITS)
    parts: Arrays = {
        "weight_packed": packed(codes_by_input(weight, groups), weight.bits),
        "weight_scale": groups.scales,
        "weight_shape": np.array(weight.shape, np.int64),
    }
    if not _is_symmetric(groups, weight.bits):
        parts["weight_zero_point"] = np.ascontiguousarray(packed(groups.zero_points.T, weight.bits).T)
    if weight.order is not None:
        parts["weight_g_idx"] = group_index(weight)
    return parts


def settings(weights: Mapping[str, GroupedWeight], floats: Sequence[str]) -> dict[str, Any]:
    """The quantization_config of `weights`, by their paths, beside linear layers `floats` in floating point.

    Weights that are grouped differently become groups of layers with lists of names.
    """
    schemes: dict[tuple[int, int, bool, bool], list[str]] = {}
    for path, weight in weights.items():
        size = NO_GROUP if weight.group_size == weight.shape[1] else weight.group_size
        key = weight.bits, size, _is_symmetric(weight.read(), weight.bits), weight.order is not None
        schemes.setdefault(key, []).append(path)
    groups = {
        f"group_{index}": {
            "targets": ["Linear"] if len(schemes) == 1 else paths,
            "weights": {
                "num_bits": bits,
                "type": "int",
                "symmetric": symmetric,
                "strategy": "channel" if size == NO_GROUP else "group",
                "group_size": None if size == NO_GROUP else size,
                "actorder": "group" if ordered else None,
                "dynamic": False,
            },
            "input_activations": None,
            "output_activations": None,
        }
        for index, ((bits, size, symmetric, ordered), paths) in enumerate(schemes.items())
    }
    common = {"quant_method": NAME, "format": FORMAT, "quantization_status": "compressed"}
    return {**common, "config_groups": groups, "ignore": list(floats)}


def _is_symmetric(groups: Groups, bits: int) -> bool:
    return bool((groups.zero_points == 2 ** (bits - 1)).all())
