"""The description of a family of decoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.decoders.graph import DecoderGraph
from intaglio.exporters.writing.rotary import KINDS


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
        """Whether all layers are alike, and turn whole heads at frequencies that do not depend on the length."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            return True  # and refused later
        kind = rope.get("rope_type", rope.get("type", "default"))
        kinds = config.get("layer_types")
        alike = not isinstance(kinds, list) or len(set(map(str, kinds))) < 2
        return alike and kind in KINDS and rope.get("partial_rotary_factor", 1.0) == 1.0
