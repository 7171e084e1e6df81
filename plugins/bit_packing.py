"""Pack small unsigned integers into int32 words, in the format of LutMatMul and GroupMatMul.

Number k of a row is bits [k·bits, (k + 1)·bits) of the row's little-endian bit stream: `bits` words hold 32 numbers,
and with 3, 5 and 6 bits, some of them cross the end of a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError

if TYPE_CHECKING:
    import onnx_ir as ir

    from intaglio.plugins.body_arithmetic import BodyArithmetic

WORD, BYTE = 32, 8  # bits


def pack(numbers: npt.NDArray[np.integer[Any]], bits: int) -> npt.NDArray[np.int32]:
    """[N, K] numbers of 0 to 2**bits - 1 as [N, K·bits/32] words. Raises `GraphError` if K is not a multiple of 32."""
    rows, length = numbers.shape
    check_length(length, bits)
    if BYTE % bits == 0:  # no number lies in two bytes: several times faster
        parts = numbers.astype(np.uint8).reshape(rows, length * bits // BYTE, BYTE // bits)
        packed = parts[:, :, 0].copy()
        for index in range(1, BYTE // bits):
            packed |= parts[:, :, index] << np.uint8(index * bits)
        return packed.view("<i4").reshape(rows, length * bits // WORD)
    groups = numbers.reshape(rows, length // WORD, WORD)
    words = np.zeros((rows, length // WORD, bits), np.uint32)
    for index in range(WORD):
        word, shift = divmod(index * bits, WORD)
        number = groups[:, :, index].astype(np.uint32)
        words[:, :, word] |= number << np.uint32(shift)
        if shift + bits > WORD:
            words[:, :, word + 1] |= number >> np.uint32(WORD - shift)
    return words.reshape(rows, length * bits // WORD).view(np.int32)


def unpack(packed: npt.NDArray[np.int32], bits: int) -> npt.NDArray[np.uint8]:
    """[N, K·bits/32] words to the [N, K] numbers given to `pack`."""
    rows, length = packed.shape
    if BYTE % bits == 0:
        whole = np.ascontiguousarray(packed, "<i4").view(np.uint8).reshape(rows, length * WORD // BYTE)
        parts = np.empty((*whole.shape, BYTE // bits), np.uint8)
        for index in range(BYTE // bits):
            parts[:, :, index] = (whole >> np.uint8(index * bits)) & np.uint8(2**bits - 1)
        return parts.reshape(rows, length // bits * WORD)
    words = packed.view(np.uint32).reshape(rows, length // bits, bits)
    numbers = np.empty((rows, length // bits, WORD), np.uint8)
    for index in range(WORD):
        word, shift = divmod(index * bits, WORD)
        number = words[:, :, word] >> np.uint32(shift)
        if shift + bits > WORD:
            number = number | words[:, :, word + 1] << np.uint32(WORD - shift)
        numbers[:, :, index] = number & np.uint32((1 << bits) - 1)
    return numbers.reshape(rows, length // bits * WORD)


def unpack_body(graph: BodyArithmetic, packed: ir.Value, bits: int, length: int, axes: int = 1) -> ir.Value:
    """`unpack` in ONNX: int32 [N, length], N being `axes` axes.

    In int32, since TensorRT's parser supports neither uint32 nor bit shifts.

    floor(word / 2^shift) is (word - word mod 2^shift) / 2^shift, which is exact in int32 also for negative words,
    ONNX's Mod having the sign of the divisor. A shift by 31 is made in two steps, as 2^31 is no int32.
    """
    outer = [0] * axes
    index = np.arange(WORD)
    word, shift = np.divmod(index * bits, WORD)
    below = np.minimum(bits, WORD - shift)  # bits of a number that lie in its first word
    groups = graph.op("Reshape", packed, graph.constant(np.array([*outer, length // WORD, bits])))
    first = graph.op("Gather", groups, graph.constant(word, np.int32), axis=axes + 1)
    for step in (shift // 2, shift - shift // 2):
        first = _shift_right(graph, first, 2**step)
    numbers = graph.op("Mod", first, graph.constant(2**below, np.int32))
    if (below < bits).any():
        after = np.minimum(word + 1, bits - 1)
        rest = graph.op("Gather", groups, graph.constant(after, np.int32), axis=axes + 1)
        rest = graph.op("Mod", rest, graph.constant(2 ** (bits - below), np.int32))
        numbers = graph.op("Add", numbers, graph.op("Mul", rest, graph.constant(2**below, np.int32)))
    return graph.op("Reshape", numbers, graph.constant(np.array([*outer, length])))


def _shift_right(graph: BodyArithmetic, words: ir.Value, power: npt.NDArray[Any]) -> ir.Value:
    divisor = graph.constant(power, np.int32)
    return graph.op("Div", graph.op("Sub", words, graph.op("Mod", words, divisor)), divisor)


def check_length(length: int, bits: int) -> None:
    """Raise `GraphError` if rows of `length` numbers do not fill whole words."""
    if length % WORD:
        raise GraphError(
            f"in_features={length} is not a multiple of {WORD}, expected one for {bits}-bit words. "
            "Leave this layer out with `skip`."
        )
