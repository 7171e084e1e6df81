"""The launch of GroupMatMul's CUDA kernels; cuda/packed_weights/geometry.py explains the block sizes."""

from __future__ import annotations

from collections.abc import Iterator

from intaglio.errors import EngineError
from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors
from intaglio.plugins.cuda.packed_weights.geometry import CHUNK, packed_alternatives, packed_launch

RECIPROCAL = 2**30  # of the 32 numbers of a chunk in a group: RECIPROCAL_BITS of kernel.cu


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """The launch that changes its blocks at our number of rows; see `_launch`."""
    return _launch(inputs, attributes, sm)


def alternatives(inputs: Tensors, attributes: Attributes, sm: int) -> Iterator[Launch]:
    """The launches that change their blocks at other numbers of rows."""
    return packed_alternatives(inputs, attributes, lambda few: _launch(inputs, attributes, sm, few))


def _launch(inputs: Tensors, attributes: Attributes, sm: int, few: int | None = None) -> Launch:
    """Rows are all axes of x but the last; the kernel is chosen by x's dtype, bits, and whether there are zero points
    or levels.

    `activation_bits` is for CPUs. Raises `EngineError` for minimums, for groups so large that the kernel could not tell
    them apart, and for smaller ones than it has.
    """
    if len(inputs) > 5 and inputs[5] is not None:
        raise EngineError("group_matmul: minimums, which kernels of GPUs do not take. Use standard operators for them.")
    x, depth, group_size = inputs[0], attributes["K"], attributes["group_size"]
    kinds = zip(("_zero_points", "_levels"), inputs[3:5], strict=False)
    suffix = next((kind for kind, given in kinds if given is not None), "")
    is_float32 = x is not None and x.dtype == "float32"
    if is_float32:
        return packed_launch("group_matmul", inputs, attributes, sm, suffix, (group_size,))
    chunks = group_size // CHUNK
    if group_size % CHUNK:
        raise EngineError(
            f"group_matmul: groups of {group_size} in float16, and the GPU's kernel has those of multiples of {CHUNK}. "
            "Export the checkpoint with --dtype float16, which decodes smaller groups."
        )
    if depth // CHUNK * chunks >= RECIPROCAL:
        raise EngineError(f"group_matmul: groups of {group_size} of {depth} in_features. Use smaller groups.")
    scalars = (depth // group_size, RECIPROCAL // chunks + 1)
    return packed_launch("group_matmul", inputs, attributes, sm, suffix, scalars, few)
