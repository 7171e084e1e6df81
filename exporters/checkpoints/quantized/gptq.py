"""Weights as GPTQ's tools store them (AutoGPTQ, GPTQModel, optimum).

    qweight  int32 [K·bits/32, N], the codes of a column as a little-endian stream of bits
    qzeros   int32 [groups, N·bits/32], the zero points of a row in the same way
    scales   [groups, N]
    g_idx    int32 [K], the group of each input; not ascending after `desc_act`

The first version of the format stores zero points less 1. "gptq_p" stores numbers of 3 bits in planes: of each 32, two
words with their lower two bits, and one with the upper ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import (
    BITS,
    GroupedWeight,
    Groups,
    codes_by_input,
    common_group_size,
    group_index,
    sorted_inputs,
    spread,
    stated_group_size,
    to_write,
    usable_group,
)
from intaglio.exporters.checkpoints.quantized.parts import Arrays, Parts, array, described, half, packed, unpacked
from intaglio.plugins.bit_packing import WORD, pack

FIRST, SECOND, PLANES = "gptq", "gptq_v2", "gptq_p"
HEAD = "lm_head"  # which tools leave in floating point, unless the settings name it


def weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight:
    """The weight `name` from its parts. Raises `SourceError` where they disagree or cannot be kept."""
    words, channels = parts["qweight"].shape
    groups = parts["scales"].shape[0]
    bits = parts["qzeros"].shape[1] * WORD // channels if channels else 0
    fits = parts["scales"].shape == (groups, channels) and len(parts["qzeros"].tensor) == groups > 0
    if bits not in BITS or not fits or words % bits or (WORD % bits and channels % WORD):
        raise SourceError(f"{name}: {described(parts)} do not form a weight of GPTQ in {BITS} bits. Download it again.")
    layout = "marlin" if settings.get("is_marlin_format") else settings.get("checkpoint_format") or FIRST
    if layout not in (FIRST, SECOND, PLANES):
        raise SourceError(
            f"{name}: the layout {layout!r} of GPTQ is not read, {FIRST}, {SECOND} and {PLANES} are. Export the "
            "checkpoint that it was made from."
        )
    inputs = words * WORD // bits
    index = array(parts["g_idx"]) if "g_idx" in parts else None
    size = stated_group_size(name, settings, ("group_size",), inputs, groups)
    usable = usable_group(name, inputs, groups, size, bits)
    order = sorted_inputs(name, index, inputs, size)
    in_planes = layout == PLANES and bits == 3
    first = layout == FIRST if not settings.get("sym", True) else _is_first_version(layout, parts, bits)

    def read() -> Groups:
        codes_in_words = np.ascontiguousarray(array(parts["qweight"]).T)
        if order is not None or in_planes:
            codes = _of_planes(codes_in_words) if in_planes else unpacked(codes_in_words, bits)
            codes_in_words = pack(codes if order is None else codes[:, order], bits)
        zeros = _zero_points(array(parts["qzeros"]), bits, first, in_planes)[:, :channels].T
        scales = spread(array(parts["scales"]).T.astype(np.float32), size, usable, inputs)
        return Groups(codes_in_words, scales, spread(zeros, size, usable, inputs))

    return GroupedWeight((channels, inputs), bits, usable, read, order)


def _is_first_version(layout: str, parts: Parts, bits: int) -> bool:
    """Whether zero points of symmetric weights are stored less 1.

    They are all the middle, so the numbers say it, even where the settings are wrong.
    """
    if layout != PLANES:
        stored = unpacked(array(parts["qzeros"]), bits)[:, : parts["scales"].shape[1]]
        for is_first, middle in ((False, 2 ** (bits - 1)), (True, 2 ** (bits - 1) - 1)):
            if (stored == middle).all():
                return is_first
    return layout == FIRST


def _zero_points(words: npt.NDArray[np.int32], bits: int, first: bool, in_planes: bool) -> npt.NDArray[np.uint8]:
    """The zero points [groups, N] of words.

    Tools subtract the 1 from whole words, and a zero point of 0 borrows from its neighbour; not with 3 bits.
    """
    if in_planes:
        return _of_planes(words)
    if not first:
        return unpacked(words, bits)
    if WORD % bits:
        return (unpacked(words, bits) + np.uint8(1)) & np.uint8(2**bits - 1)
    ones = np.uint32((2**WORD - 1) // (2**bits - 1))
    return unpacked((words.view(np.uint32) + ones).view(np.int32), bits)


def _of_planes(words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """[rows, words] with numbers of 3 bits in planes to [rows, numbers]."""
    rows = len(words)
    blocks = words.reshape(rows, -1, 3)
    low = unpacked(np.ascontiguousarray(blocks[..., :2]).reshape(rows, -1), 2)
    high = unpacked(np.ascontiguousarray(blocks[..., 2:]).reshape(rows, -1), 1)
    return low | high << np.uint8(2)


def stored(name: str, weight: GroupedWeight, layout: str = FIRST) -> Arrays:
    """The parts of `weight`, as `weight` reads them. Raises `SourceError` for one that they cannot hold."""
    groups = to_write(name, weight, "GPTQ", BITS)
    channels, bits = weight.shape[0], weight.bits
    if channels * bits % WORD:
        raise SourceError(
            f"{name}: {channels} outputs, and zero points of GPTQ fill whole words of {WORD} bits. Skip this layer, or "
            "write --format compressed-tensors."
        )
    zeros = groups.zero_points
    if layout == FIRST:
        if not zeros.all():
            raise SourceError(
                f"{name}: zero points of 0, which the first version of GPTQ's format has in no way that all tools read "
                f"alike. Write --format {SECOND}."
            )
        zeros = zeros - np.uint8(1)
    return {
        "qweight": np.ascontiguousarray(packed(codes_by_input(weight, groups), bits).T),
        "qzeros": packed(np.ascontiguousarray(zeros.T), bits),
        "scales": np.ascontiguousarray(half(name, groups.scales, "GPTQ").T),
        "g_idx": group_index(weight),
    }


def settings(weights: Mapping[str, GroupedWeight], floats: Sequence[str], layout: str = FIRST) -> dict[str, Any]:
    """The quantization_config of `weights`, by their paths, beside linear layers `floats` in floating point.

    Raises `SourceError` for weights that are grouped differently.
    """
    bits, group_size = common_group_size(weights, "GPTQ")
    symmetric = all((each.read().zero_points == 2 ** (bits - 1)).all() for each in weights.values())
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "sym": symmetric,
        "desc_act": any(each.order is not None for each in weights.values()),
        "checkpoint_format": layout,
        "pack_dtype": "int32",
        "lm_head": HEAD in weights,
        "dynamic": {f"-:^{re.escape(path)}$": {} for path in floats if path != HEAD},
    }
