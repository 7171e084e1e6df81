"""Weights as GPTQ's tools store them (AutoGPTQ, GPTQModel, optimum).

    qweight  int32 [K·bits/32, N], the codes of a column as a little-endian stream of bits
    qzeros   int32 [groups, N·bits/32], the zero points of a row in the same way
    scales   [groups, N]
    g_idx    int32 [K], the group of each input; not ascending after `desc_act`

The first version of the format stores zero points less 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import (
    BITS,
    GroupedWeight,
    Groups,
    sorted_inputs,
    spread,
    usable_group,
)
from intaglio.exporters.checkpoints.quantized.parts import Parts, array, described, unpacked
from intaglio.plugins.bit_packing import WORD, pack

SECOND_VERSION = "gptq_v2"


def weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight:
    """The weight `name` from its parts. Raises `SourceError` where they disagree or cannot be kept."""
    words, channels = parts["qweight"].shape
    groups = parts["scales"].shape[0]
    bits = parts["qzeros"].shape[1] * WORD // channels if channels else 0
    if (
        bits not in BITS
        or parts["scales"].shape != (groups, channels)
        or words % bits
        or not groups
        or len(parts["qzeros"].tensor) != groups
    ):
        raise SourceError(f"{name}: {described(parts)} do not form a weight of GPTQ in {BITS} bits. Download it again.")
    inputs = words * WORD // bits
    index = array(parts["g_idx"]) if "g_idx" in parts else None
    given = int(settings.get("group_size", -1))
    size = inputs if given == -1 or groups == 1 else given
    usable = usable_group(name, inputs, groups, size)
    order = sorted_inputs(name, index, inputs, size)
    second = _is_second_version(settings, parts, bits)

    def read() -> Groups:
        packed = np.ascontiguousarray(array(parts["qweight"]).T)
        if order is not None:
            packed = pack(unpacked(packed, bits)[:, order], bits)
        stored = unpacked(array(parts["qzeros"]), bits).T
        zeros = stored if second else (stored + np.uint8(1)) & np.uint8(2**bits - 1)
        scales = spread(array(parts["scales"]).T.astype(np.float32), size, usable, inputs)
        return Groups(packed, scales, spread(zeros, size, usable, inputs))

    return GroupedWeight((channels, inputs), bits, usable, read, order)


def _is_second_version(settings: Mapping[str, Any], parts: Parts, bits: int) -> bool:
    """Whether zero points are stored as they are.

    Of symmetric weights every zero point is the middle, so the numbers say it, even where the settings are wrong.
    """
    stated = bool(settings.get("checkpoint_format", settings.get("format")) == SECOND_VERSION)
    if settings.get("sym", True):
        stored = unpacked(array(parts["qzeros"]), bits)
        for is_second, middle in ((True, 2 ** (bits - 1)), (False, 2 ** (bits - 1) - 1)):
            if (stored == middle).all():
                return is_second
    return stated
