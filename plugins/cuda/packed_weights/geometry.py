"""The launch of products with packed weights, for LutMatMul and GroupMatMul; the kernels are in product.cuh.

Few rows of x (one while decoding, some more while drafts are verified) are bound by reading the weights, many rows by
multiplying, and the two want different blocks. But a node of TensorRT is one kernel whose rows may be a symbol, so a
kernel has both shapes, and the scalar `few` says up to how many rows it takes the first:

- few: blocks of 16 channels, whose eight warps share out k among themselves. 4096 channels are then 256 blocks, two for
  each of the 108 multiprocessors of an A100 or the 132 of an H100; larger blocks would leave some without work. The
  numbers are unpacked once for up to 32 rows; the matrix unit multiplies eights of rows, and those that do not exist
  are left out.
- many: blocks of 128 channels and 64 rows. Each warp unpacks 16 channels and multiplies them with all the rows. Larger
  blocks would need more shared memory than a plugin may have (48 KiB), and more registers than two blocks of a
  multiprocessor can share.

Where the second begins to pay depends on the blocks that it makes: `few_rows`. There is more in benchmarks/results/;
benchmarks/weights/cuda_products.py measures it.

float32 x, for which there is no matrix unit, is multiplied in blocks of 4 channels and 8 rows: offered so that a graph
in float32 runs, not for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from intaglio.plugins.cuda.launching.geometry import (
    Launch,
    Length,
    Tensor,
    at_least_1,
    blocks,
    choose,
    limits_around,
    product,
)

THREADS = 256  # as all numbers here, in product.cuh and those it includes
FEW_CHANNELS, FEW_ROWS = 16, 32
MANY_CHANNELS, MANY_ROWS = 128, 64
STEP = 128  # depth has to be a multiple of it for blocks of few rows
FEW_BYTES = 8 * FEW_ROWS * (FEW_CHANNELS + 4) * 4  # of shared memory, in which eight warps add their sums
LIMIT = 48 << 10  # bytes of shared memory that a plugin may have
MOST = 64  # blocks of many rows that those of few take the place of
CHUNK = 32  # numbers that share what they mean
FLOAT32_THREADS, FLOAT32_CHANNELS, FLOAT32_ROWS = 128, 4, 8


def packed_launch(
    name: str,
    inputs: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    sm: int,
    suffix: str = "",
    scalars: Sequence[Length] = (),
    few: int | None = None,
) -> Launch:
    """The launch of the kernel `<name>_<bits><suffix>`, or with float32 x of `<name>_float32<suffix>`.

    `inputs`: x, packed, and what the numbers mean. `few`: up to how many rows the blocks have the first shape, by
    default `few_rows`. The scalars are rows, depth and channels, for float16 `few`, the bytes of an element of the
    third input, `scalars`, and for float32 the bits.
    """
    x, packed, table = inputs[:3]
    assert x is not None and packed is not None and table is not None
    rows, channels, bits = product(x.shape[:-1]), packed.shape[0], attributes["bits"]
    sizes, last = (rows, attributes["K"], channels), (np.dtype(table.dtype).itemsize, *scalars)
    if x.dtype == "float32":
        count = product([blocks(channels, FLOAT32_CHANNELS), blocks(rows, FLOAT32_ROWS)])
        return Launch(f"{name}_float32{suffix}", (count, 1, 1), (FLOAT32_THREADS, 1, 1), (*sizes, *last, bits))
    few = few_rows(attributes["K"], channels) if few is None else few
    is_few = rows < few + 1
    tiles = choose(is_few, blocks(channels, FEW_CHANNELS), blocks(channels, MANY_CHANNELS))
    shared = choose(is_few, FEW_BYTES, many_bytes(bits, sm))
    count = product([tiles, choose(is_few, blocks(rows, FEW_ROWS), blocks(rows, MANY_ROWS))])
    return Launch(f"{name}_{bits}{suffix}", (count, 1, 1), (THREADS, 1, 1), (*sizes, few, *last), shared)


def packed_alternatives(
    inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], launch: Callable[[int], Launch]
) -> Iterator[Launch]:
    """The launches with blocks of few rows up to more rows, and up to fewer; `launch` makes them."""
    x, packed = inputs[:2]
    assert x is not None and packed is not None
    limit = few_rows(attributes["K"], packed.shape[0])
    if x.dtype == "float16" and isinstance(packed.shape[0], int) and limit > 0:
        yield from (launch(few) for few in limits_around(limit))


def few_rows(depth: int, channels: Length) -> Length:
    """The most rows of x that the blocks for few rows take."""
    if depth % STEP:
        return 0
    if not isinstance(channels, int):
        return FEW_ROWS
    return max(MOST // at_least_1(blocks(channels, MANY_CHANNELS)) * MANY_ROWS, FEW_ROWS)


def many_bytes(bits: int, sm: int) -> int:
    """The bytes of shared memory of a block of many rows: stages of its channels and rows (struct Stage)."""
    length = 128 if bits == 3 else 64
    packed, unit = -(-length * bits // 128) * 16, 32 if bits == 8 else 16
    pitch = packed + (0 if packed // unit % 2 else unit)
    stage = MANY_CHANNELS * pitch + MANY_ROWS * 2 * length
    return stage * (min(LIMIT // stage, 5) if sm >= 80 else 2)
