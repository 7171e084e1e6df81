"""The description of a family of decoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.decoders.context import switches
from intaglio.exporters.decoders.written.graph import DecoderGraph


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

    def takes(self, config: Mapping[str, Any]) -> bool:
        """Whether all layers have the same window or none, and rotary frequencies that do not depend on the length."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            return True  # and refused later
        kind = rope.get("rope_type", rope.get("type", "default"))
        kinds = config.get("layer_types")
        if isinstance(kinds, list):
            some = len(set(map(str, kinds))) > 1 and config.get("sliding_window") is not None
        else:
            some = bool(config.get("use_sliding_window"))  # from the layer max_window_layers on
        return not some and not switches(str(kind))
