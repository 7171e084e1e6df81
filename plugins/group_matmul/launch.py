"""The launch of GroupMatMul's CUDA kernels; cuda/packed_weights/geometry.py explains the block sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.plugins.cuda.launching.geometry import Launch, Tensor
from intaglio.plugins.cuda.packed_weights.geometry import packed_launch


def launch(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], sm: int) -> Launch:
    """Rows are all axes of x but the last; the kernel is chosen by x's dtype, bits, and whether there are zero points.

    `activation_bits` is for CPUs.
    """
    suffix = "_zero_points" if len(inputs) > 3 and inputs[3] is not None else ""
    return packed_launch("group_matmul", inputs, attributes, sm, suffix, (attributes["group_size"],))
