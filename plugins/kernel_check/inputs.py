"""The sizes at which `gpu-check` runs every kernel, and inputs like those of a real model."""

from __future__ import annotations

import msgspec
import numpy as np

from intaglio.plugins.bit_packing import pack
from intaglio.plugins.kernel_check.case import Array

Random = np.random.Generator


class Sizes(msgspec.Struct, frozen=True):
    """Rows around the block sizes of all kernels, and the widths of models."""

    rows: tuple[int, ...] = (0, 1, 8, 16, 17, 64, 65, 512)
    few_rows: tuple[int, ...] = (1, 17, 65)  # for the variants of a kernel, as references take time
    width: int = 768  # hidden size of BERT-base
    inner: int = 3072  # its feed-forward networks
    depth: int = 4096  # in_features of LLaMA 3 8B
    channels: int = 1024  # out_features of its keys and values
    hidden: int = 896  # hidden size of Qwen2.5 0.5B
    vocabulary: int = 151_936  # its vocabulary
    wide: int = (
        8_400  # out_features that make the blocks of products with packed weights those of many rows, for 65 rows
    )


def int8s(random: Random, *shape: int) -> Array:
    """Any int8."""
    return random.integers(-128, 128, shape).astype(np.int8)


def int32s(random: Random, *shape: int, bits: int = 16) -> Array:
    """int32 of `bits` bits and a sign."""
    return random.integers(-(2**bits), 2**bits, shape).astype(np.int32)


def factors(random: Random, channels: int, shift: int) -> tuple[Array, Array]:
    """multiplier and shift of each channel, together about 2^(30 - shift)."""
    multipliers = random.integers(2**29, 2**30, channels).astype(np.int32)
    return multipliers, np.full(channels, shift, np.int32)


def floats(random: Random, *shape: int, dtype: str = "float16", scale: float = 1.0) -> Array:
    """Normally distributed floats with the standard deviation `scale`."""
    return (scale * random.standard_normal(shape, np.float32)).astype(dtype)


def codes(random: Random, channels: int, depth: int, bits: int) -> Array:
    """Packed codes of `bits` bits of a weight [channels, depth]."""
    packed: Array = pack(random.integers(0, 2**bits, (channels, depth), np.uint8), bits)
    return packed
