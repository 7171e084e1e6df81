"""The description of a family of decoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.decoders.graph import DecoderGraph


@dataclass(frozen=True)
class DecoderFamily(Family):
    """A family of decoders; `architecture` is the one with a language model's head.

    Configurations have the format of `transformers`, with its defaults filled in.

    `base` is the path of the model below its head, `blocks` that of the list of Transformer blocks, `embedding` that
    of the token embedding. `describe` reads the manifest's entry and rejects configurations that are not supported;
    `build` writes the graph.
    """

    base: str
    blocks: str
    embedding: str
    describe: Callable[[dict[str, Any]], Decoder]
    build: Callable[[DecoderGraph, dict[str, Any]], None]
