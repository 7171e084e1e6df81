"""The description of a family of encoder-decoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.encoder_decoders.written.graph import CrossAttentionDecoderGraph, EncoderGraph


@dataclass(frozen=True)
class EncoderDecoderFamily(Family):
    """A family of encoder-decoders; `architecture` is the one with a language model's head.

    Configurations have the format of `transformers`, with its defaults filled in.

    `blocks` are the paths of the lists of Transformer blocks, `embedding` that of the token embedding, `copies` the
    paths in the two parts under which a checkpoint may store it again. `describe` reads the manifest's entry for the
    decoder and rejects configurations that are not supported; `encode` and `decode` write the two graphs.
    """

    blocks: tuple[str, ...]
    embedding: str
    copies: tuple[str, ...]
    describe: Callable[[dict[str, Any]], Decoder]
    encode: Callable[[EncoderGraph, dict[str, Any]], None]
    decode: Callable[[CrossAttentionDecoderGraph, dict[str, Any]], None]
