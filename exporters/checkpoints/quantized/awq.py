"""Weights as AWQ's tools store them (AutoAWQ).

layout "gemm"
qweight  int32 [K, N/8], eight codes of a row in a word, in the order of `ORDER`
qzeros   int32 [groups, N/8], the zero points in the same way
scales   [groups, N]

layout "gemv"
qweight  int32 [N, K/8], the codes in order
qzeros   int32 [N, words], the zero points of a row in order, then padding
scales   [N, 8·words], then padding
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import (
    GroupedWeight,
    Groups,
    codes_by_input,
    common_group_size,
    spread,
    stated_group_size,
    to_write,
    usable_group,
)
from intaglio.exporters.checkpoints.quantized.parts import Arrays, Parts, array, described, half, packed, unpacked
from intaglio.plugins.bit_packing import pack

HEAD = "lm_head"
GEMM, GEMV = "gemm", "gemv"
BITS = 4
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the channel of each four bits of a word, from the lowest


def weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight:
    """The weight `name` from its parts. Raises `SourceError` where they disagree or cannot be kept."""
    layout = str(settings.get("version", GEMM)).lower()
    if layout not in (GEMM, GEMV):
        raise SourceError(
            f"{name}: AWQ's layout {layout!r} is not read, {GEMM!r} and {GEMV!r} are. Export the original checkpoint."
        )
    by_row = layout == GEMV
    lines, words = parts["qweight"].shape
    channels, inputs = (lines, words * len(ORDER)) if by_row else (words * len(ORDER), lines)
    wide, deep = parts["scales"].shape[::-1] if not by_row else parts["scales"].shape  # channels, groups
    zeros = (channels, -(-deep // len(ORDER))) if by_row else (deep, words)
    if wide != channels or parts["qzeros"].shape != zeros or not deep:
        raise SourceError(f"{name}: {described(parts)} do not form a weight of AWQ in {BITS} bits. Download it again.")
    size = stated_group_size(name, settings, ("group_size", "q_group_size"), inputs, 0 if by_row else deep)
    groups = min(deep, -(-inputs // size)) if by_row else deep
    usable = usable_group(name, inputs, groups, size, BITS)

    def read() -> Groups:
        if by_row:
            codes, scales = unpacked(array(parts["qweight"]), BITS), array(parts["scales"])[:, :groups]
            middles = unpacked(array(parts["qzeros"]), BITS)[:, :groups]
        else:
            codes, scales = np.ascontiguousarray(_channels(array(parts["qweight"])).T), array(parts["scales"]).T
            middles = _channels(array(parts["qzeros"])).T
        spread_scales = spread(scales.astype(np.float32), size, usable, inputs)
        return Groups(pack(codes, BITS), spread_scales, spread(middles, size, usable, inputs))

    return GroupedWeight((channels, inputs), BITS, usable, read)


def _channels(words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """[rows, N/8] words to [rows, N] numbers."""
    stored = unpacked(words, BITS).reshape(len(words), -1, len(ORDER))
    numbers = np.empty_like(stored)
    numbers[:, :, ORDER] = stored
    return numbers.reshape(len(words), -1)


def stored(name: str, weight: GroupedWeight) -> Arrays:
    """The parts of `weight` in the layout "gemm", as `weight` reads them.

    Raises `SourceError` for one that they cannot hold.
    """
    groups = to_write(name, weight, "AWQ", (BITS,))
    if weight.shape[0] % len(ORDER):
        raise SourceError(
            f"{name}: {weight.shape[0]} outputs, and AWQ has multiples of {len(ORDER)}. Skip this layer, or write "
            "--format compressed-tensors."
        )
    if weight.order is not None:
        raise SourceError(
            f"{name}: its inputs are in the order of their groups (desc_act), and AWQ has them in their own. Write "
            "--format gptq or compressed-tensors."
        )
    return {
        "qweight": _words(codes_by_input(weight, groups).T),
        "qzeros": _words(groups.zero_points.T),
        "scales": np.ascontiguousarray(half(name, groups.scales, "AWQ").T),
    }


def _words(numbers: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """[rows, N] numbers to the [rows, N/8] words that `_channels` reads."""
    by_word = numbers.reshape(len(numbers), -1, len(ORDER))[:, :, ORDER]
    return packed(by_word.reshape(len(numbers), -1), BITS)


def settings(weights: Mapping[str, GroupedWeight], floats: Sequence[str]) -> dict[str, Any]:
    """The quantization_config of `weights`, by their paths, beside linear layers `floats` in floating point.

    Raises `SourceError` for weights that are grouped differently.
    """
    if HEAD in weights:
        raise SourceError(
            f"{HEAD}: quantised, and AWQ's tools read a head in floating point. Compress with skip: [{HEAD}], or write "
            "--format gptq or compressed-tensors."
        )
    _, group_size = common_group_size(weights, "AWQ")
    return {
        "quant_method": "awq",
        "bits": BITS,
        "group_size": group_size,
        "zero_point": True,  # of symmetric weights, too: all are 8
        "version": GEMM,
        "modules_to_not_convert": list(floats) or None,
    }
