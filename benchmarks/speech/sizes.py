"""The published sizes (thesis, table 5.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

from intaglio.networks.speech.configuration import ConformerConfig, SqueezeformerConfig, Subsampling


class Size(NamedTuple):
    """One row of the table; `reduce` is the block before which a Squeezeformer halves the frame rate."""

    layers: int
    width: int
    heads: int
    millions: float  # of parameters, with a vocabulary of 128 tokens
    gflops: float  # for 30 seconds, as printed
    reduce: int = 0


SQUEEZEFORMERS = {
    "XS": Size(16, 144, 4, 9.0, 15.8, 7),
    "S": Size(18, 196, 4, 18.6, 26.3, 8),
    "SM": Size(16, 256, 4, 28.2, 42.7, 7),
    "M": Size(20, 324, 4, 55.6, 72.0, 9),
    "ML": Size(18, 512, 8, 125.1, 169.2, 8),
    "L": Size(22, 640, 8, 236.3, 277.9, 10),
}
CONFORMERS = {
    "S": Size(16, 144, 4, 8.7, 26.2),
    "M": Size(16, 256, 4, 27.4, 71.7),
    "L": Size(18, 512, 8, 121.5, 280.6),
}
TOKENS = 128  # SentencePiece; thesis, section 5.3


def squeezeformer_of(name: str) -> SqueezeformerConfig:
    """The Squeezeformer of a size, XS to L."""
    size = SQUEEZEFORMERS[name]
    return SqueezeformerConfig(model_type="squeezeformer", time_reduce_layer=size.reduce, **_shared(size))


def conformer_of(name: str) -> ConformerConfig:
    """The Conformer-CTC of a size, S, M or L."""
    subsampling = Subsampling(kind="convolution")
    return ConformerConfig(model_type="conformer-ctc", subsampling=subsampling, **_shared(CONFORMERS[name]))


def _shared(size: Size) -> dict[str, Any]:
    return {
        "vocab_size": TOKENS,
        "blank_token_id": 0,
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
    }
