"""The launch of ScaledClamp's CUDA kernels: one block for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.plugins.cuda.launching.geometry import Launch, Tensor, float_halves, product

THREADS = 128  # as in kernel.cu


def launch(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], sm: int) -> Launch:
    """Rows are all axes but the last; each limit is two scalars."""
    x, *factor = (tensor for tensor in inputs if tensor)
    limits = (*float_halves(attributes["low"]), *float_halves(attributes["high"]))
    rows = product(x.shape[:-1])
    lengths = (rows, x.shape[-1], *(each.shape[0] for each in factor))
    entry = "scaled_clamp_factor" if factor else "scaled_clamp"
    return Launch(entry, (rows, 1, 1), (THREADS, 1, 1), (*lengths, *limits))
