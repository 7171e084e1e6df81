"""Write weights as blocks of GGUF's types Q4_K, Q5_K and Q6_K, as `blocks` decodes them.

The scales of a block's groups, and their minimums, are small integers times one number of float16 each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.exporters.checkpoints.gguf.blocks import Bytes, Floats
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight
from intaglio.plugins.bit_packing import unpack

ELEMENTS = 256  # of a block


class Factors(NamedTuple):
    """Values [blocks, groups] as halves·integers."""

    halves: Bytes  # uint8 [blocks, 2], the bytes of float16
    integers: npt.NDArray[np.int16]  # [blocks, groups]


class SuperBlock(NamedTuple):
    """How weights of this form become blocks of the type `TYPES[type]`; its integers are `lowest` to `highest`."""

    type: int
    bits: int
    group_size: int
    zero_point: int
    has_minimums: bool
    lowest: int
    highest: int
    write: Callable[[Bytes, Factors, Factors | None], Bytes]


def _nibbles(codes: Bytes, length: int) -> Bytes:
    """[blocks, 256] codes to [blocks, 128] bytes: of each 2·length of them, the first half in the lower halves."""
    parts = codes.reshape(len(codes), -1, 2, length) & 15
    bytes_: Bytes = parts[:, :, 0] | parts[:, :, 1] << 4
    return bytes_.reshape(len(codes), -1)


def _of_k(scales: Factors, minimums: Factors | None) -> list[Bytes]:
    """Both halves, and the 12 bytes of 8 scales and 8 minimums of 6 bits."""
    assert minimums is not None
    low, high = np.split(scales.integers.astype(np.uint8), 2, 1)
    below, above = np.split(minimums.integers.astype(np.uint8), 2, 1)
    return [
        scales.halves,
        minimums.halves,
        low | high >> 4 << 6,
        below | above >> 4 << 6,
        high & 15 | (above & 15) << 4,
    ]


def _q4_k(codes: Bytes, scales: Factors, minimums: Factors | None) -> Bytes:
    return np.concatenate([*_of_k(scales, minimums), _nibbles(codes, 32)], 1)


def _q5_k(codes: Bytes, scales: Factors, minimums: Factors | None) -> Bytes:
    fifth = np.packbits(codes.reshape(len(codes), 8, 32) >> 4 & 1, axis=1, bitorder="little")
    return np.concatenate([*_of_k(scales, minimums), fifth.reshape(len(codes), 32), _nibbles(codes, 32)], 1)


def _q6_k(codes: Bytes, scales: Factors, minimums: Factors | None) -> Bytes:
    upper = (codes >> 4).reshape(len(codes), 2, 4, 32)
    pairs = upper[:, :, 0] | upper[:, :, 1] << 2 | upper[:, :, 2] << 4 | upper[:, :, 3] << 6
    integers = scales.integers.astype(np.int8).view(np.uint8)
    return np.concatenate([_nibbles(codes, 64), pairs.reshape(len(codes), 64), integers, scales.halves], 1)


SUPER_BLOCKS = (
    SuperBlock(12, 4, 32, 0, True, 0, 63, _q4_k),
    SuperBlock(13, 5, 32, 0, True, 0, 63, _q5_k),
    SuperBlock(14, 6, 16, 32, False, -128, 127, _q6_k),
)


def super_blocks(weights: list[GroupedWeight]) -> tuple[int, Bytes] | None:
    """The type, and the blocks [rows, bytes] of `weights` below each other; None if no type here holds them exactly."""
    forms = {each.kind for each in weights}
    kinds = (each for each in SUPER_BLOCKS if {(each.bits, each.group_size, each.has_minimums, None)} == forms)
    kind = next(kinds, None)
    if kind is None:
        return None
    parts = [_written(weight, kind) for weight in weights]
    found = [each for each in parts if each is not None]
    return (kind.type, np.concatenate(found)) if len(found) == len(parts) else None


def _written(weight: GroupedWeight, kind: SuperBlock) -> Bytes | None:
    if weight.order is not None or weight.shape[1] % ELEMENTS:
        return None
    groups, count = weight.read(), ELEMENTS // kind.group_size
    if (groups.zero_points != kind.zero_point).any():
        return None
    scales = factored(groups.scales.reshape(-1, count), kind.lowest, kind.highest)
    minimums = None
    if groups.minimums is not None:
        minimums = factored(groups.minimums.reshape(-1, count), kind.lowest, kind.highest)
    if scales is None or (minimums is None) == kind.has_minimums:
        return None
    codes = unpack(groups.packed, weight.bits).reshape(-1, ELEMENTS)
    return kind.write(codes, scales, minimums).reshape(weight.shape[0], -1)


def factored(values: Floats, lowest: int, highest: int) -> Factors | None:
    """Values [blocks, groups] as float16 times integers from `lowest` to `highest`, to the bit; None if they are not.

    The largest magnitude of a block gets the largest integer that fits, as in files of llama.cpp.
    """
    pivots = np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)
    halves, integers = np.zeros(pivots.shape, np.float16), np.zeros(values.shape, np.int16)
    left = np.flatnonzero(pivots)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for integer in sorted({*range(lowest, highest + 1)} - {0}, key=lambda each: (-abs(each), each)):
            if not left.size:
                break
            half = (pivots[left] / np.float64(integer)).astype(np.float16)
            steps = np.rint(values[left] / half.astype(np.float32))
            fits = (half.astype(np.float32) * steps == values[left]) & (lowest <= steps) & (steps <= highest)
            done = fits.all(1)
            halves[left[done]], integers[left[done]] = half[done], steps[done]
            left = left[~done]
    return None if left.size else Factors(halves.view(np.uint8), integers)
