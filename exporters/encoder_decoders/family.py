"""What a family of encoder-decoders is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from intaglio.bundle import Decoder
from intaglio.exporters.encoder_decoders.graph import EncoderGraph, ReadingDecoderGraph


@dataclass(frozen=True)
class EncoderDecoderFamily:
    """A family of encoder-decoders. The configurations are those of `transformers`, with its defaults filled in.

    `blocks` are the paths of the lists of Transformer blocks, `embedding` that of the token embedding, `copies` the
    paths in the two parts under which a checkpoint may hold it again. `describe` reads what the manifest records of
    the decoder and refuses configurations that are not supported; `encode` and `decode` write the two graphs.
    """

    model_type: str
    architecture: str  # the one with a language model's head
    blocks: tuple[str, ...]
    embedding: str
    copies: tuple[str, ...]
    describe: Callable[[dict[str, Any]], Decoder]
    encode: Callable[[EncoderGraph, dict[str, Any]], None]
    decode: Callable[[ReadingDecoderGraph, dict[str, Any]], None]
