"""The launch of products with packed weights, for LutMatMul and GroupMatMul; the kernels are in packed_product.cuh.

Few rows of x (one while decoding, some more while drafts are verified) are bound by reading the weights, many rows by
multiplying, and the two want different blocks. But a node of TensorRT is one kernel whose rows may be a symbol, so a
kernel has both shapes, chooses by the number of rows, and the grid has enough blocks for either:

- up to FEW rows: blocks of 32 channels and 8 rows. 4096 channels are then 128 blocks, for the 108 multiprocessors of an
  A100 and the 132 of an H100; larger blocks would leave some without work. The four warps of a block share out k among
  themselves. Rows come in eights since that is what the matrix unit multiplies at once: one to eight of them take the
  same instructions. The weights are read once for 8 rows; a second group of 8 follows the first and finds them in the
  cache.
- more: blocks of 128 channels and 64 rows. Each warp unpacks 32 channels and multiplies them with all the rows, for
  which it gives the matrix unit as many cycles as it takes itself to unpack, counted by instructions (32 numbers of a
  lane, two to three instructions each, to 32 products). Larger blocks would need more shared memory than a plugin may
  have (48 KiB), and more registers than two blocks of a multiprocessor can share.

Where the second shape begins to pay depends on the channels and the GPU: its 32 blocks of 4096 channels are few for 17
rows, and two groups of the first shape unpack everything twice. FEW lies between, by that count; it is not measured.

All of a block's shared memory is stages of packed weights and x on their way from global memory, as many bytes as its
shape needs: so two narrow blocks fit a multiprocessor of a T4, one alone cannot keep enough loads in flight. Tables are
not in it: the float16 kernels look entries up in registers.

`columns` = ceil(channels / 128) are 4·columns blocks of the first shape for each 8 rows, and columns for each 64 of the
second. `columns·(4 + 4·ceil((rows - FEW/2) / 256))` is 4·columns up to 8 rows, 8·columns or more beyond, and never less
than columns·ceil(rows / 64); what is too many ends at once. It takes only operations that TensorRT's symbols have.

float32 x, for which there is no matrix unit, is multiplied in blocks of 4 channels and 8 rows: offered so that a graph
in float32 runs, not for speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intaglio.plugins.cuda.launching.geometry import Launch, Length, Tensor, blocks, choose, product

THREADS = 128  # as all numbers here, in packed_product.cuh and packed_product_float32.cuh
FEW = 16
NARROW, WIDE = (32, 8, 256), (128, 64, 64)  # channels, rows, and numbers of a stage
LIMIT = 48 << 10  # bytes of shared memory that a plugin may have
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

    `inputs`: x, packed, and what the numbers mean: its first tensor's bytes of an element are the fourth scalar, after
    rows, depth and channels; then come `scalars`, and for float32 the bits.
    """
    x, packed, table = inputs[:3]
    assert x is not None and packed is not None and table is not None
    rows, channels, bits = product(x.shape[:-1]), packed.shape[0], attributes["bits"]
    common = (rows, attributes["K"], channels, np.dtype(table.dtype).itemsize, *scalars)
    if x.dtype == "float32":
        count = product([blocks(channels, FLOAT32_CHANNELS), blocks(rows, FLOAT32_ROWS)])
        return Launch(f"{name}_float32{suffix}", (count, 1, 1), (THREADS, 1, 1), (*common, bits))
    count = product([blocks(channels, WIDE[0]), (rows + (255 - FEW // 2)) // 256 * 4 + 4])
    narrow, wide = shared_bytes(bits, *NARROW, sm), shared_bytes(bits, *WIDE, sm)
    shared = choose(rows < FEW + 1, narrow, wide)
    return Launch(f"{name}_{bits}{suffix}", (count, 1, 1), (THREADS, 1, 1), common, shared)


def shared_bytes(bits: int, channels: int, rows: int, length: int, sm: int) -> int:
    """The bytes of shared memory of a block: stages of `length` numbers of its channels and rows (struct Shape)."""
    length *= 2 if bits == 3 else 1
    packed, unit = length * bits // 8, 32 if bits == 8 else 16
    pitch = packed + (0 if packed // unit % 2 else unit)
    stage = channels * pitch + rows * 2 * length
    return stage * (min(LIMIT // stage, 5) if sm >= 80 else 2)
