"""Write weights in groups as blocks of GGUF, as `blocks` decodes them: the smallest type that has the same numbers.

Those of Q4_K, Q5_K and Q6_K are in `super_blocks`. Of levels, IQ4_NL and MXFP4 are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.gguf.blocks import TYPES, Bytes, Floats
from intaglio.exporters.checkpoints.gguf.super_blocks import super_blocks
from intaglio.exporters.checkpoints.quantized.float4 import BIAS
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, levels_refused
from intaglio.plugins.bit_packing import unpack

ELEMENTS = 32  # of the blocks below


class BlockEncoder(NamedTuple):
    """How codes become blocks of the type `TYPES[type]`: `write(numbers, scales, minimums)` returns their bytes.

    Numbers are 0 to `span`; of a type without minimums `zero_point` stands for 0.
    """

    type: int
    span: int
    zero_point: int
    write: Callable[[Bytes, Floats, Floats | None], Bytes]


def _half(numbers: Floats) -> Bytes:
    return np.frombuffer(numbers.astype("<f2").tobytes(), np.uint8).reshape(len(numbers), -1)


def _nibbles(numbers: Bytes) -> Bytes:
    """[blocks, 32] numbers below 16 to [blocks, 16] bytes: the first half of them in the lower halves."""
    bytes_: Bytes = numbers[:, : ELEMENTS // 2] | numbers[:, ELEMENTS // 2 :] << 4
    return bytes_


def _fifth_bits(numbers: Bytes) -> Bytes:
    return np.packbits(numbers >> 4 & 1, axis=-1, bitorder="little")


def _q4_0(numbers: Bytes, scales: Floats, minimums: Floats | None) -> Bytes:
    return np.concatenate([_half(scales), _nibbles(numbers)], 1)


def _q4_1(numbers: Bytes, scales: Floats, minimums: Floats | None) -> Bytes:
    assert minimums is not None
    return np.concatenate([_half(scales), _half(-minimums), _nibbles(numbers)], 1)


def _q5_0(numbers: Bytes, scales: Floats, minimums: Floats | None) -> Bytes:
    return np.concatenate([_half(scales), _fifth_bits(numbers), _nibbles(numbers & 15)], 1)


def _q5_1(numbers: Bytes, scales: Floats, minimums: Floats | None) -> Bytes:
    assert minimums is not None
    return np.concatenate([_half(scales), _half(-minimums), _fifth_bits(numbers), _nibbles(numbers & 15)], 1)


def _q8_0(numbers: Bytes, scales: Floats, minimums: Floats | None) -> Bytes:
    return np.concatenate([_half(scales), numbers ^ np.uint8(128)], 1)


# From the smallest blocks to the largest; the first three hold every asymmetric weight of 4 bits and fewer.
ENCODERS = (
    BlockEncoder(2, 15, 8, _q4_0),
    BlockEncoder(3, 15, 0, _q4_1),
    BlockEncoder(6, 31, 16, _q5_0),
    BlockEncoder(7, 31, 0, _q5_1),
    BlockEncoder(8, 255, 128, _q8_0),
)


def _of_levels(weights: list[GroupedWeight]) -> tuple[int, Bytes] | None:
    """The type and the blocks of weights whose codes stand for the levels of a type; None if none has them exactly."""
    for type_, write in ((20, _iq4_nl), (39, _mxfp4)):
        levels = TYPES[type_].levels
        assert levels is not None
        kinds = {(each.kind, each.order is None) for each in weights}
        if kinds != {((4, ELEMENTS, False, levels.tobytes()), True)}:
            continue
        groups = [each.read() for each in weights]
        codes = np.concatenate([unpack(each.packed, 4) for each in groups])
        blocks = write(codes.reshape(-1, ELEMENTS), np.concatenate([each.scales for each in groups]).reshape(-1, 1))
        return None if blocks is None else (type_, blocks.reshape(len(codes), -1))
    return None


def _iq4_nl(numbers: Bytes, scales: Floats) -> Bytes | None:
    return np.concatenate([_half(scales), _nibbles(numbers)], 1) if _is_half(scales) else None


def _mxfp4(numbers: Bytes, scales: Floats) -> Bytes | None:
    halves, exponents = np.frexp(scales)  # half of a scale 2^(e - 127) is 1/2 times 2^(e - 127)
    exponents = exponents + BIAS
    fits = bool((halves == 0.5).all() and (exponents >= 0).all() and (exponents < 256).all())
    return np.concatenate([exponents.astype(np.uint8), _nibbles(numbers)], 1) if fits else None


def encoded(name: str, weights: list[GroupedWeight]) -> tuple[int, Bytes]:
    """The type of GGUF, and the blocks [rows, bytes] of `weights` below each other, which share it.

    Raises `SourceError` for weights that no type holds exactly.
    """
    if (found := super_blocks(weights) or _of_levels(weights)) is not None:
        return found
    blocks = [_blocks(name, weight) for weight in weights]
    for encoder in ENCODERS:
        parts = [_fitted(each, encoder) for each in blocks]
        if not any(each is None for each in parts):
            rows = sum(weight.shape[0] for weight in weights)
            written = [encoder.write(*each) for each in parts if each is not None]
            return encoder.type, np.concatenate(written).reshape(rows, -1)
    raise SourceError(f"{name}: {_reason(blocks)}")


def _reason(blocks: list[_Blocks]) -> str:
    """Why no type holds the weights, and what to do."""
    if not all(_is_half(each.scales) for each in blocks):
        return (
            "its scales are no float16 numbers, and GGUF's blocks have no others. Compress with scale_dtype: float16 "
            "in the recipe file."
        )
    if any(each.minimums is not None for each in blocks):
        return (
            "its minimums are no float16 numbers, or its codes have more than 5 bits, and no type of GGUF that is "
            "written holds them. Compress the checkpoint in floating point."
        )
    return (
        "codes less zero points of 8 bits are not all from -128 to 127, which GGUF's type Q8_0 holds. Compress with "
        "symmetric: true in the recipe file."
    )


class _Blocks(NamedTuple):
    """Of blocks: codes [blocks, 32]; zero points, scales, minimums [blocks, 1]."""

    codes: Bytes
    zeros: npt.NDArray[np.int16]
    scales: Floats
    minimums: Floats | None


def _blocks(name: str, weight: GroupedWeight) -> _Blocks:
    if weight.levels is not None:
        raise SourceError(f"{name}: {levels_refused('GGUF, but for IQ4_NL and MXFP4,')}")
    if weight.order is not None:
        raise SourceError(
            f"{name}: its inputs are in the order of their groups (desc_act), and GGUF has them in their own. Write "
            "--format gptq or compressed-tensors."
        )
    if weight.group_size % ELEMENTS:
        raise SourceError(
            f"{name}: groups of {weight.group_size}, and only those of Q6_K are written; other types of GGUF have "
            f"blocks of {ELEMENTS}. Keep the GGUF file that it came from, or compress the checkpoint in floating point."
        )
    groups = weight.read()

    def per_block(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.repeat(values, weight.group_size // ELEMENTS, 1).reshape(-1, 1)

    codes, zeros = unpack(groups.packed, weight.bits).reshape(-1, ELEMENTS), per_block(groups.zero_points)
    minimums = None if groups.minimums is None else per_block(groups.minimums)
    return _Blocks(codes, zeros.astype(np.int16), per_block(groups.scales), minimums)


def _fitted(blocks: _Blocks, encoder: BlockEncoder) -> tuple[Bytes, Floats, Floats | None] | None:
    """What `encoder` writes for `blocks`; None if it cannot hold them."""
    if not _is_half(blocks.scales):
        return None
    if not TYPES[encoder.type].has_minimums:
        numbers = blocks.codes - blocks.zeros + encoder.zero_point
        fits = blocks.minimums is None and numbers.min() >= 0 and numbers.max() <= encoder.span
        return (numbers.astype(np.uint8), blocks.scales, None) if fits else None
    lowest: npt.NDArray[Any] = blocks.zeros * blocks.scales.astype(np.float64)
    if blocks.minimums is not None:
        lowest = lowest + blocks.minimums
    if blocks.codes.max() > encoder.span or not _is_half(lowest):
        return None
    return blocks.codes, blocks.scales, lowest.astype(np.float32)


def _is_half(values: npt.NDArray[Any]) -> bool:
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float16) == values).all())
