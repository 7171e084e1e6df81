"""The launch of products with packed weights, for LutMatMul and GroupMatMul; the kernels are in product.cuh.

Few rows of x (one while decoding, some more while drafts are verified) are bound by reading the weights, many rows by
multiplying, and the two want different blocks. But a node of TensorRT is one kernel whose rows may be a symbol, so a
kernel has both shapes, and the scalar `few` says up to how many rows it takes the first:

- few: blocks of 16 channels. 4096 channels are then 256 blocks, two for each of the 108 multiprocessors of an A100 or
  the 132 of an H100; larger blocks would leave some without work, and each scheduler with one warp. The four warps of a
  block share out k among themselves. The numbers are unpacked once for up to 64 rows; the matrix unit multiplies eights
  of rows, and those that do not exist are left out.
- many: blocks of 128 channels. Each warp unpacks 32 channels and multiplies them with all the rows, for which it gives
  the matrix unit as many cycles as it takes itself to unpack, counted by instructions (32 numbers of a lane, two to
  three instructions each, to 32 products). Larger blocks would need more shared memory than a plugin may have (48 KiB),
  and more registers than two blocks of a multiprocessor can share.

Both have up to 64 rows. Where the second begins to pay depends on the blocks that it makes: `few_rows`. On an H100 with
4 bits, few rows of 4096 x 4096 took 24 us for 64 rows and 43 for 128, with blocks of 32 channels and eight warps, and
many 66 (GroupMatMul) and 50 (LutMatMul); of 4096 x 14336, 56 and 65 for 16 rows, and many 88 and 74. There is more in
benchmarks/results/; benchmarks/cuda_products.py measures it.

float32 x, for which there is no matrix unit, is multiplied in blocks of 4 channels and 8 rows: offered so that a graph
in float32 runs, not for speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intaglio.plugins.cuda.launching.geometry import Launch, Length, Tensor, at_least_1, blocks, choose, product

THREADS, ROWS = 128, 64  # as all numbers here, in product.cuh and those it includes
FEW_CHANNELS, MANY_CHANNELS = 16, 128
LEAST = 16  # rows for which the blocks are those of few rows, however many there are
FEW_BYTES = 8 << 10  # of shared memory, in which a block of few rows adds its warps' sums
LIMIT = 48 << 10  # bytes of shared memory that a plugin may have
MOST = 64  # blocks of many rows that those of few take the place of
FLOAT32_CHANNELS, FLOAT32_ROWS = 4, 8


def packed_launch(
    name: str,
    inputs: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    sm: int,
    suffix: str = "",
    scalars: Sequence[Length] = (),
) -> Launch:
    """The launch of the kernel `<name>_<bits><suffix>`, or with float32 x of `<name>_float32<suffix>`.

    `inputs`: x, packed, and what the numbers mean. The scalars are rows, depth and channels, for float16 `few_rows`,
    the bytes of an element of the third input, `scalars`, and for float32 the bits.
    """
    x, packed, table = inputs[:3]
    assert x is not None and packed is not None and table is not None
    rows, channels, bits = product(x.shape[:-1]), packed.shape[0], attributes["bits"]
    sizes, last = (rows, attributes["K"], channels), (np.dtype(table.dtype).itemsize, *scalars)
    if x.dtype == "float32":
        count = product([blocks(channels, FLOAT32_CHANNELS), blocks(rows, FLOAT32_ROWS)])
        return Launch(f"{name}_float32{suffix}", (count, 1, 1), (THREADS, 1, 1), (*sizes, *last, bits))
    few = few_rows(channels)
    tiles = choose(rows < few + 1, blocks(channels, FEW_CHANNELS), blocks(channels, MANY_CHANNELS))
    shared = choose(rows < few + 1, FEW_BYTES, many_bytes(bits, sm))
    count = product([tiles, blocks(rows, ROWS)])
    return Launch(f"{name}_{bits}{suffix}", (count, 1, 1), (THREADS, 1, 1), (*sizes, few, *last), shared)


def few_rows(channels: Length) -> Length:
    """The most rows of x for which the blocks are those of few rows."""
    if not isinstance(channels, int):
        return LEAST
    return max(MOST // at_least_1(blocks(channels, MANY_CHANNELS)) * ROWS, LEAST)


def many_bytes(bits: int, sm: int) -> int:
    """The bytes of shared memory of a block of many rows: stages of its channels and rows (struct Stage)."""
    length = 128 if bits == 3 else 64
    packed, unit = length * bits // 8, 32 if bits == 8 else 16
    pitch = packed + (0 if packed // unit % 2 else unit)
    stage = MANY_CHANNELS * pitch + ROWS * 2 * length
    return stage * (min(LIMIT // stage, 5) if sm >= 80 else 2)
