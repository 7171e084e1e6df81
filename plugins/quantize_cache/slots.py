"""The bytes of a slot of a quantised cache: the keys or values of one head and token.

Channels are in groups of 32, each with a scale of its own, since some channels of keys are far larger than others
(Qwen2.5's by a factor of 100). A scale is float32 rounded to 9 bits: its exponent in one byte, 8 bits of its mantissa
in the next.

    8 bits  x ≈ scale·c·|c|, c from -127 to 127: steps are finer near zero, so that a large channel costs its group less
            than it would in equal steps. Codes of all channels, then a scale for each group.
    4 bits  x ≈ scale·(c + zero), c from 0 to 15, zero from -127 to 127. A group's 16 bytes hold its channel i in the
            lower half of byte i, i + 16 in the upper half; then a scale for each group, then a zero for each.

Zeros fill the last word of 4 bytes: TensorRT has no caches of bytes, so its slots are words, as elements of float32.

A group with a number that is none, or infinite, or, in 4 bits, with a range that is, is read back as NaN. One whose
scale would be below 2^-126 is read back as zeros.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

GROUP = 32  # channels
WORD = 4  # bytes
LARGEST = {8: 127, 4: 15}  # codes
NAN_SCALE = 0x7FC00000


def groups_of(depth: int) -> int:
    """The number of groups of `depth` channels; the last one may be smaller."""
    return -(-depth // GROUP)


def slot_bytes(depth: int, bits: int) -> int:
    """The length of a slot."""
    return -(-used_bytes(depth, bits) // WORD) * WORD


def used_bytes(depth: int, bits: int) -> int:
    """The bytes of a slot before its padding."""
    return depth + 2 * groups_of(depth) if bits == 8 else 19 * groups_of(depth)


def quantize(x: Floats, bits: int) -> Bytes:
    """Slots uint8 [..., slot_bytes] of x float32 [..., depth]."""
    depth, groups = x.shape[-1], groups_of(x.shape[-1])
    # The last group is filled up with its first channel, which changes neither its least nor its largest value.
    index = np.arange(groups * GROUP)
    grouped = x[..., np.where(index < depth, index, index // GROUP * GROUP)].reshape(*x.shape[:-1], groups, GROUP)
    padding = np.zeros((*x.shape[:-1], slot_bytes(depth, bits) - used_bytes(depth, bits)), np.uint8)
    with np.errstate(all="ignore"):
        if bits == 8:
            codes, scales = _squares(grouped)
            flat = codes.reshape(*x.shape[:-1], groups * GROUP)[..., :depth].view(np.uint8)
            return np.concatenate([flat, _scale_bytes(scales), padding], axis=-1)
        steps, scales, zeros = _steps(grouped)
    halves = (steps[..., : GROUP // 2] | steps[..., GROUP // 2 :] << 4).reshape(*x.shape[:-1], groups * GROUP // 2)
    return np.concatenate([halves, _scale_bytes(scales), zeros.view(np.uint8), padding], axis=-1)


def dequantize(slots: Bytes, depth: int, bits: int) -> Floats:
    """x float32 [..., depth] of slots uint8 [..., slot_bytes]."""
    groups, leading = groups_of(depth), slots.shape[:-1]
    first = depth if bits == 8 else groups * GROUP // 2
    pairs = slots[..., first : first + 2 * groups].reshape(*leading, groups, 2).astype(np.uint32)
    scales = _float((pairs[..., 0] << 23 | pairs[..., 1] << 15).astype(np.uint32))
    with np.errstate(all="ignore"):
        if bits == 8:
            codes = slots[..., :depth].view(np.int8).astype(np.float32)
            return np.repeat(scales, GROUP, axis=-1)[..., :depth] * (codes * np.abs(codes))
        halves = slots[..., :first].reshape(*leading, groups, GROUP // 2)
        codes = np.concatenate([halves & 15, halves >> 4], axis=-1).astype(np.float32)
        zeros = slots[..., first + 2 * groups : first + 3 * groups].view(np.int8).astype(np.float32)
        return (scales[..., None] * (codes + zeros[..., None])).reshape(*leading, groups * GROUP)[..., :depth]


def _float(bits: npt.NDArray[np.uint32]) -> Floats:
    return bits.view(np.float32)


def _scale_bytes(scales: npt.NDArray[np.uint32]) -> Bytes:
    """[..., 2·groups] of the bits of scales [..., groups]."""
    pairs = np.stack([scales >> 23, scales >> 15 & 255], axis=-1).astype(np.uint8)
    return pairs.reshape(*scales.shape[:-1], 2 * scales.shape[-1])


def _scale(wanted: Floats, finite: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """The bits of scales: `wanted` rounded to 9 bits, halves up; NaN where a group is not `finite`."""
    bits = wanted.view(np.uint32)
    rounded = np.where(bits >> 23 == 0, np.uint32(0), (bits + np.uint32(1 << 14)) >> 15 << 15)
    return np.where(finite, rounded, np.uint32(NAN_SCALE)).astype(np.uint32)


def _squares(x: Floats) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.uint32]]:
    """Codes [..., GROUP] and the bits of scales [...] in 8 bits."""
    largest = np.abs(x).max(-1)
    finite = np.asarray(np.isfinite(x).all(axis=-1))
    scales = _scale(largest / np.float32(127**2), finite)
    ratio = np.abs(x) / _float(scales)[..., None]
    codes = np.copysign(np.rint(np.sqrt(ratio)), x)  # at most 127.2, as the scale is rounded to 9 bits
    codes = np.where(_usable(scales)[..., None], codes, 0)
    return codes.astype(np.int8), scales


def _steps(x: Floats) -> tuple[Bytes, npt.NDArray[np.uint32], npt.NDArray[np.int8]]:
    """Codes [..., GROUP], the bits of scales [...] and zeros [...] in 4 bits."""
    least, greatest = x.min(-1), x.max(-1)
    largest = np.maximum(np.abs(least), np.abs(greatest))
    wanted = np.maximum((greatest - least) / np.float32(15), largest / np.float32(127))
    finite = np.isfinite(x).all(axis=-1) & np.isfinite(wanted)
    scales = _scale(wanted, finite)
    usable, scale = _usable(scales), _float(scales)
    zeros = np.where(usable, np.clip(np.rint(least / scale), -127, 127), 0)
    codes = np.clip(np.rint(x / scale[..., None]) - zeros[..., None], 0, 15)
    return np.where(usable[..., None], codes, 0).astype(np.uint8), scales, zeros.astype(np.int8)


def _usable(scales: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    usable: npt.NDArray[np.bool_] = (scales != 0) & (scales != NAN_SCALE)
    return usable
