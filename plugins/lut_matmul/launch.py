"""The launch of LutMatMul's CUDA kernels; cuda/packed_weights/geometry.py explains the block sizes."""

from __future__ import annotations

from collections.abc import Iterator

from intaglio.errors import EngineError
from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors
from intaglio.plugins.cuda.packed_weights.geometry import packed_alternatives, packed_launch


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """Rows are all axes of x but the last; the kernel is chosen by x's dtype and bits. `activation_bits` is CPUs'."""
    if len(inputs) > 3 and inputs[3] is not None:
        raise EngineError("lut_matmul: sparse values, which kernels of GPUs do not take. Use standard operators for them.")
    return packed_launch("lut_matmul", inputs, attributes, sm)


def alternatives(inputs: Tensors, attributes: Attributes, sm: int) -> Iterator[Launch]:
    """The launches that change their blocks at other numbers of rows."""
    return packed_alternatives(
        inputs, attributes, lambda few: packed_launch("lut_matmul", inputs, attributes, sm, few=few)
    )
