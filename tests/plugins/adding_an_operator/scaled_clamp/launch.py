"""The launch of ScaledClamp's CUDA kernels: one block for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intaglio.plugins.cuda.geometry import Launch, Tensor, product

THREADS = 128  # as in kernel.cu


def launch(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> Launch:
    """Rows are all axes but the last; the limits are passed as the bits of float32, since all scalars are int32."""
    x, *factor = (tensor for tensor in inputs if tensor)
    limits = (int(np.float32(attributes[name]).view(np.int32)) for name in ("low", "high"))
    lengths = (x.shape[-1], *(each.shape[0] for each in factor))
    entry = "scaled_clamp_factor" if factor else "scaled_clamp"
    return Launch(entry, (product(x.shape[:-1]), 1, 1), (THREADS, 1, 1), (*lengths, *limits))
