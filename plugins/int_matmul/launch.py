"""The launch of IntMatMul's CUDA kernels: one block for each tile of 64 rows and 128 columns of each product."""

from __future__ import annotations

from intaglio.plugins.cuda.launching.geometry import (
    Attributes,
    Launch,
    Tensors,
    blocks,
    broadcast_length,
    four_axes,
    product,
)

TILE_ROWS, TILE_COLUMNS, THREADS = 64, 128, 128  # wide ones, as in cuda/gemm.cuh


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """At most four axes, unless b is one matrix: then a is one as well, of all rows."""
    a, b, *factors = (tensor for tensor in inputs if tensor)
    rows = a.shape[-2] if len(b.shape) > 2 else product(a.shape[:-1])
    inner, columns = b.shape[-2:]
    a0, a1 = four_axes(a.shape, "IntMatMul")[:2] if len(b.shape) > 2 else (1, 1)
    b0, b1 = four_axes(b.shape, "IntMatMul")[:2]
    batch1 = broadcast_length(a1, b1)
    batches = product([broadcast_length(a0, b0), batch1])
    grid = (batches, blocks(rows, TILE_ROWS), blocks(columns, TILE_COLUMNS))
    lengths = (factor.shape[0] for factor in factors) if attributes["bits"] != 32 else ()
    scalars = (rows, inner, columns, batch1, a0, a1, b0, b1, *lengths)
    return Launch(f"int_matmul_{attributes['bits']}", grid, (THREADS, 1, 1), scalars)
