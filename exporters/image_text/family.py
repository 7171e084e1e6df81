"""Which decoders that read images are exported with their image encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.decoders.traced.family import TracedFamily, find_traced

# Of other types that read images, the text alone is exported.
TYPES = ("idefics3", "smolvlm")
CHANNELS = 3


def find_image_text(config: Mapping[str, Any]) -> TracedFamily | None:
    """The family of a config.json of a decoder that is exported with its image encoder; None for another model."""
    return find_traced(config) if config.get("model_type") in TYPES else None


def check_vision(config: Any, where: str) -> tuple[int, int]:
    """Height and width of the images that the encoder of a `transformers` configuration reads, and tokens of each.

    Raises `SourceError` for sizes that do not fit.
    """
    vision, scale = config.vision_config, config.scale_factor
    numbers = {name: getattr(vision, name) for name in ("image_size", "patch_size")} | {"scale_factor": scale}
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise SourceError(f"{where}: {name} is {str(value)[:40]} in config.json, expected 1 or more. Fix it.")
    if vision.num_channels != CHANNELS:
        raise SourceError(
            f"{where}: config.json: num_channels is {vision.num_channels}, only images with {CHANNELS} are supported. "
            "Export another model."
        )
    side = int(vision.image_size)
    patches = side // vision.patch_size
    if not patches or patches % scale:
        raise SourceError(
            f"{where}: config.json: the {patches} patches of a side (image_size / patch_size) are not a multiple of "
            f"scale_factor {scale}. Fix them."
        )
    return side, (patches // scale) ** 2
