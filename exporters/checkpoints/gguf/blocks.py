"""The types of GGUF's tensors: what their blocks of bytes say, as small integers, scales and minimums.

    w = scale·(number - zero point) - minimum

Names and orders follow ggml's quantisation code (ggml-quants.c). The numbers of some types stand for levels
instead: w = scale·levels[number].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.exporters.checkpoints.quantized.float4 import BIAS, TWICE_E2M1

Bytes = npt.NDArray[Any]  # uint8 [blocks, bytes of a block]
Floats = npt.NDArray[np.float32]


class Codes(NamedTuple):
    """Of `blocks`: numbers [blocks, elements], and [blocks, groups] for the groups in a block."""

    numbers: npt.NDArray[np.uint8]
    scales: Floats
    zero_point: int
    minimums: Floats | None = None


class BlockType(NamedTuple):
    """A type: elements and bytes of a block; the bits that its numbers need in GroupMatMul, and its decoder.

    Without a decoder the elements are numbers of the torch dtype `dtype`.
    """

    name: str
    elements: int
    bytes: int
    bits: int = 0
    decode: Callable[[Bytes], Codes] | None = None
    groups: int = 1  # in a block
    has_minimums: bool = False
    dtype: str = ""
    levels: Floats | None = None  # [2^bits]


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """[..., n] bytes to [..., 2n] numbers: all lower halves, then all upper ones."""
    return np.concatenate([data & 15, data >> 4], -1)


def _bits(data: Bytes) -> Bytes:
    """[blocks, bytes] to their bits, the lowest of each byte first."""
    return np.unpackbits(np.ascontiguousarray(data), axis=-1, bitorder="little")


def _q4_0(blocks: Bytes) -> Codes:
    return Codes(_nibbles(blocks[:, 2:]), _half(blocks, 0), 8)


def _q4_1(blocks: Bytes) -> Codes:
    return Codes(_nibbles(blocks[:, 4:]), _half(blocks, 0), 0, -_half(blocks, 2))


def _q5_0(blocks: Bytes) -> Codes:
    return Codes(_nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4, _half(blocks, 0), 16)


def _q5_1(blocks: Bytes) -> Codes:
    return Codes(_nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4, _half(blocks, 0), 0, -_half(blocks, 2))


def _q8_0(blocks: Bytes) -> Codes:
    return Codes(blocks[:, 2:] ^ np.uint8(128), _half(blocks, 0), 128)  # of two's complement, the number plus 128


def _pairs(data: Bytes) -> Bytes:
    """[blocks, 64] bytes to [blocks, 2, 4, 32] numbers of 2 bits: of each half, the pairs of bits one after another."""
    return _shifted(data.reshape(-1, 2, 1, 32), range(0, 8, 2)) & np.uint8(3)


def _shifted(data: Bytes, shifts: range) -> Bytes:
    """[..., 1, n] bytes, shifted right by each of `shifts`: [..., shifts, n]."""
    return np.right_shift(data, np.array(shifts, np.uint8)[:, None])


def _q2_k(blocks: Bytes) -> Codes:
    scales = blocks[:, :16]
    minimums = _half(blocks, 82) * (scales >> 4)
    return Codes(_pairs(blocks[:, 16:80]).reshape(-1, 256), _half(blocks, 80) * (scales & 15), 0, minimums)


def _q3_k(blocks: Bytes) -> Codes:
    upper = _shifted(blocks[:, None, :32], range(8)) & np.uint8(1)
    numbers = _pairs(blocks[:, 32:96]).reshape(-1, 8, 32) | upper << 2
    high = _shifted(blocks[:, None, 104:108], range(0, 8, 2)) & np.uint8(3)
    scales = _nibbles(blocks[:, 96:104]) | high.reshape(-1, 16) << 4
    return Codes(numbers.reshape(-1, 256), _half(blocks, 108) * (scales.astype(np.float32) - 32), 4)


def _scales_and_minimums(data: Bytes) -> tuple[Bytes, Bytes]:
    """[blocks, 12] bytes to 8 scales and 8 minimums of 6 bits."""
    first, second, last = data[:, :4], data[:, 4:8], data[:, 8:]
    scales = np.concatenate([first & 63, last & 15 | first >> 6 << 4], 1)
    return scales, np.concatenate([second & 63, last >> 4 | second >> 6 << 4], 1)


def _of_k(blocks: Bytes, numbers: Bytes) -> Codes:
    scales, minimums = _scales_and_minimums(blocks[:, 4:16])
    return Codes(numbers.reshape(-1, 256), _half(blocks, 0) * scales, 0, _half(blocks, 2) * minimums)


def _q4_k(blocks: Bytes) -> Codes:
    return _of_k(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)))


def _q5_k(blocks: Bytes) -> Codes:
    upper = _shifted(blocks[:, None, 16:48], range(8)) & np.uint8(1)
    return _of_k(blocks, _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | upper << 4)


def _q6_k(blocks: Bytes) -> Codes:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64))
    numbers = low.reshape(-1, 256) | _pairs(blocks[:, 128:192]).reshape(-1, 256) << 4
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return Codes(numbers, _half(blocks, 208) * scales, 32)


IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
MIDDLE = 8  # the zero point of numbers that have none


def _iq4_nl(blocks: Bytes) -> Codes:
    return Codes(_nibbles(blocks[:, 2:]), _half(blocks, 0), MIDDLE)


def _iq4_xs(blocks: Bytes) -> Codes:
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], -1).reshape(-1, 8)
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high.astype(np.uint8) << 4).astype(np.float32) - 32
    numbers = _nibbles(blocks[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256)
    return Codes(numbers, _half(blocks, 0) * scales, MIDDLE)


def _mxfp4(blocks: Bytes) -> Codes:
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - BIAS - 1)  # half of the scale
    return Codes(_nibbles(blocks[:, 1:]), scales, MIDDLE)


# By the number in the file, that of `enum ggml_type`.
TYPES = {
    0: BlockType("F32", 1, 4, dtype="float32"),
    1: BlockType("F16", 1, 2, dtype="float16"),
    2: BlockType("Q4_0", 32, 18, 4, _q4_0),
    3: BlockType("Q4_1", 32, 20, 4, _q4_1, has_minimums=True),
    6: BlockType("Q5_0", 32, 22, 5, _q5_0),
    7: BlockType("Q5_1", 32, 24, 5, _q5_1, has_minimums=True),
    8: BlockType("Q8_0", 32, 34, 8, _q8_0),
    10: BlockType("Q2_K", 256, 84, 2, _q2_k, groups=16, has_minimums=True),
    11: BlockType("Q3_K", 256, 110, 4, _q3_k, groups=16),  # in 3 bits, groups have 32 numbers
    12: BlockType("Q4_K", 256, 144, 4, _q4_k, groups=8, has_minimums=True),
    13: BlockType("Q5_K", 256, 176, 5, _q5_k, groups=8, has_minimums=True),
    14: BlockType("Q6_K", 256, 210, 6, _q6_k, groups=16),
    20: BlockType("IQ4_NL", 32, 18, 4, _iq4_nl, levels=IQ4),
    23: BlockType("IQ4_XS", 256, 136, 4, _iq4_xs, groups=8, levels=IQ4),
    30: BlockType("BF16", 1, 2, dtype="bfloat16"),
    39: BlockType("MXFP4", 32, 17, 4, _mxfp4, levels=TWICE_E2M1),
}
