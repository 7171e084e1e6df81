"""The source model of a decoder that reads images, as validation runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.decoders.reference import source_model
from intaglio.extras import load

if TYPE_CHECKING:
    from intaglio.exporters.image_text.modules import ImageTextModule


def load_image_text(checkpoint: Checkpoint, family: Family, context: str | None = None) -> ImageTextModule:
    """The decoder as a float32 module in eval mode, with the inputs and outputs of a bundle's model.onnx."""
    load("torch")
    from intaglio.exporters.image_text.modules import ImageTextModule

    module = ImageTextModule(source_model(checkpoint, family.architecture, context)).eval().requires_grad_(False)
    module.cached = sorted(module.cache_shapes())
    return module
