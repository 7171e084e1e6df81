"""The launch of CachedAttention's CUDA kernel: one block for each token of each head."""

from __future__ import annotations

import numpy as np

from intaglio.errors import EngineError
from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors, four_axes

THREADS = 128  # as in kernel.cu


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """Raises `EngineError` for a scale that is not above 0, as scalars are not negative."""
    query, key, value, mask = inputs
    assert query is not None and key is not None and value is not None and mask is not None
    batch, heads, tokens, depth = query.shape
    width = attributes["value_depth"] or value.shape[-1]
    scale = np.float32(attributes["scale"])
    if not scale > 0:
        raise EngineError(f"CachedAttention: scale {scale}, expected above 0. Scale the query.")
    scalars = (
        tokens, heads, key.shape[1], key.shape[2], depth, width, int(scale.view(np.int32)),
        *four_axes(mask.shape, "CachedAttention"),
    )  # fmt: skip
    entry = f"cached_attention_{attributes['key_bits']}_{attributes['value_bits']}"
    return Launch(entry, (tokens, heads, batch), (THREADS, 1, 1), scalars)
