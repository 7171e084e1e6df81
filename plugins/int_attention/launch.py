"""The launch of IntAttention's CUDA kernels: one block for each 64 queries of each head."""

from __future__ import annotations

from intaglio.errors import EngineError
from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors, blocks, constants, four_axes
from intaglio.plugins.int_attention.spec import PACKED
from intaglio.plugins.integer_math import exp_constants

QUERIES, THREADS = 64, 128  # of a block, as in kernel.cu
DEPTHS = (32, 64, 128)  # for each there is a kernel; a smaller head counts as filled up with zeros


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """The depth of a head is a number, which chooses the kernel. Raises `EngineError` for one above 128."""
    query, key, _, *factors = inputs
    assert query is not None and key is not None
    batch, queries, width = query.shape
    heads = attributes["num_heads"]
    packed = attributes["packed"]
    depth = width // (PACKED * heads if packed else heads)
    entry = next((f"int_attention_{most}" for most in DEPTHS if depth <= most), None)
    if entry is None:
        raise EngineError(f"IntAttention: heads of {depth} channels, expected at most {DEPTHS[-1]}. Leave it unfused.")
    lengths = (factor.shape[0] for factor in factors[:2] if factor)
    scalars = (batch, queries, key.shape[1], depth, packed, *lengths, *constants(exp_constants(attributes["scale"])))
    grid, block = (blocks(queries, QUERIES), heads, batch), (THREADS, 1, 1)
    mask = factors[2] if len(factors) > 2 else None
    if mask is None:
        return Launch(entry, grid, block, scalars)
    scalars = (*scalars, *four_axes(mask.shape, "IntAttention"))
    bias = factors[3] if len(factors) > 3 else None
    if bias is None:
        return Launch(f"{entry}_masked", grid, block, scalars)
    return Launch(f"{entry}_masked_biased", grid, block, (*scalars, *four_axes(bias.shape, "IntAttention")))
