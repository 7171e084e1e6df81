"""The launch of QuantizeCache's CUDA kernel: one thread for each group of channels."""

from __future__ import annotations

from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors, blocks, product
from intaglio.plugins.quantize_cache.slots import GROUP

THREADS = 128  # as in kernel.cu


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """Rows are all axes but the last."""
    (x,) = inputs
    assert x is not None
    rows, depth = product(x.shape[:-1]), x.shape[-1]
    entry = f"quantize_cache_{attributes['bits']}"
    return Launch(entry, (blocks(product([rows, blocks(depth, GROUP)]), THREADS), 1, 1), (THREADS, 1, 1), (rows, depth))
