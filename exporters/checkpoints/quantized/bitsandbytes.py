"""Weights as bitsandbytes stores them: NF4 and FP4 with a table, and int8.

weight                  uint8 [N·K/2, 1], two indices of the table in a byte, the first in its upper half
weight.quant_map        float32 [16], the table
weight.absmax           float32 [blocks], what a block of the rows' numbers is multiplied by; or uint8, see below
weight.nested_absmax, weight.nested_quant_map   of scales that are quantised themselves, to uint8, less an offset
weight.quant_state.bitsandbytes__nf4 (or fp4)   JSON: shape, block sizes, the offset

weight                  int8 [N, K]
SCB                     float32 [N], the largest magnitude of each row, that of 127

Blocks follow each other through all rows. Where each lies in one row, they are the groups of GroupMatMul, and the table
is its levels; other weights are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import (
    GroupedWeight,
    Groups,
    is_usable_group,
    usable_group,
)
from intaglio.exporters.checkpoints.quantized.parts import Parts, array, described
from intaglio.exporters.files.computed_tensor import ComputedTensor
from intaglio.plugins.bit_packing import pack

if TYPE_CHECKING:
    import torch

STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
TABLE, TABLE_BITS, MIDDLE = 16, 4, 8  # entries
BITS, CENTRE, LARGEST = 8, 128, 127


class _State(msgspec.Struct):
    """What is written about a weight, as far as it matters."""

    quant_type: str
    blocksize: int
    shape: tuple[int, int]
    nested_blocksize: int = 0
    nested_offset: float = 0.0


def of_4_bits(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight | ComputedTensor:
    """The weight `name` from its parts. Raises `SourceError` where they disagree."""
    state = _read_state(name, parts)
    table, scales, codes = parts.get("weight.quant_map"), parts["weight.absmax"], parts["weight"]
    rows, columns = state.shape
    blocks = -(-rows * columns // state.blocksize)
    nested = scales.dtype.itemsize == 1
    outer, outer_table = parts.get("weight.nested_absmax"), parts.get("weight.nested_quant_map")
    fits = table is not None and table.shape == (TABLE,) and scales.shape == (blocks,)
    fits = fits and codes.shape[0] * codes.shape[1] * 2 == rows * columns and codes.dtype.itemsize == 1
    if nested:
        fits = fits and outer is not None and outer_table is not None and outer_table.shape == (1 << 8,)
        fits = fits and state.nested_blocksize > 0 and outer.shape == (-(-blocks // state.nested_blocksize),)  # type: ignore[union-attr]
    if not fits:
        raise SourceError(f"{name}: {described(parts)} do not form a weight of {state}. Download it again.")

    assert table is not None

    def factors_of_blocks() -> npt.NDArray[np.float32]:
        factors: npt.NDArray[np.float32] = array(scales)
        if nested:
            assert outer is not None and outer_table is not None
            of_blocks = array(outer_table)[factors]
            of_blocks *= np.repeat(array(outer), state.nested_blocksize)[:blocks]
            factors = of_blocks + np.float32(state.nested_offset)
        return factors

    def read() -> Groups:
        bytes_ = array(codes)  # here the first index of a byte is in its lower half
        factors = factors_of_blocks().astype(np.float32).reshape(rows, -1)
        packed = (bytes_ >> 4 | bytes_ << 4).reshape(rows, -1).view("<i4")
        return Groups(packed, factors, np.full(factors.shape, MIDDLE, np.uint8))

    def decode() -> torch.Tensor:
        import torch

        factors, bytes_ = factors_of_blocks(), array(codes).reshape(-1)
        numbers = array(table)[np.stack([bytes_ >> 4, bytes_ & np.uint8(15)], -1)].reshape(-1)
        whole, rest = divmod(len(numbers), state.blocksize)
        numbers[: whole * state.blocksize].reshape(whole, state.blocksize)[:] *= factors[:whole, None]
        if rest:
            numbers[-rest:] *= factors[-1]
        return torch.from_numpy(numbers.reshape(rows, columns))

    if is_usable_group(columns, state.blocksize, TABLE_BITS):
        levels = array(table).astype(np.float32)
        return GroupedWeight((rows, columns), TABLE_BITS, state.blocksize, read, levels=levels)
    return ComputedTensor((rows, columns), decode, state.quant_type.upper())


def _read_state(name: str, parts: Parts) -> _State:
    stored = next((parts[each] for each in STATES if each in parts), None)
    try:
        if stored is None:
            raise msgspec.DecodeError("missing")
        state = msgspec.json.decode(array(stored).tobytes(), type=_State)
        if state.blocksize < 1 or min(state.shape) < 1 or state.shape[0] * state.shape[1] % 2:
            raise msgspec.DecodeError(f"a shape of {list(state.shape)} in blocks of {state.blocksize}")
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise SourceError(f"{name}: its quant_state cannot be read ({error}). Download it again.") from error
    return state


def of_8_bits(name: str, parts: Parts, settings: Mapping[str, Any]) -> GroupedWeight:
    """The weight `name` from its parts. Raises `SourceError` where they disagree or cannot be kept."""
    import torch

    numbers, largest = parts["weight"], parts["SCB"]
    channels, inputs = numbers.shape
    if numbers.dtype != torch.int8 or largest.shape != (channels,) or not largest.dtype.is_floating_point:
        raise SourceError(
            f"{name}: {described(parts)}, of {numbers.dtype}, do not form a weight of bitsandbytes in 8 bits. "
            "Download it again."
        )
    form = int(array(parts["weight_format"]).reshape(-1)[0]) if "weight_format" in parts else 0
    if form != 0:
        raise SourceError(f"{name}: weight_format is {form}, expected 0, rows. Save the model with bitsandbytes again.")
    usable_group(name, inputs, 1, inputs, 8)

    def read() -> Groups:
        codes = (array(numbers).astype(np.int16) + CENTRE).astype(np.uint8)
        scales = array(largest).astype(np.float32)[:, None] / np.float32(LARGEST)
        return Groups(pack(codes, BITS), scales, np.full(scales.shape, CENTRE, np.uint8))

    return GroupedWeight((channels, inputs), BITS, inputs, read)
