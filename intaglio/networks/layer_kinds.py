"""The kinds of a decoder's layers, as the configurations of `transformers` name them."""

from __future__ import annotations

from typing import Any

FULL, SLIDING, CHUNKED, CONVOLUTION = "full_attention", "sliding_attention", "chunked_attention", "conv"


def layer_kinds(config: Any) -> tuple[str, ...]:
    """The kind of each layer of a text model's configuration; empty if it does not say."""
    return tuple(getattr(config, "layer_types", None) or ())
