"""The source model of an image encoder or classifier, as a torch module: traced, and compared with the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.family import architecture_of
from intaglio.exporters.encoders.traced import blocks_of
from intaglio.exporters.files.computed_tensor import FloatTensor
from intaglio.exporters.reference.source_model import build_model
from intaglio.exporters.vision.family import VisionFamily
from intaglio.exporters.vision.image_processor import read_image_processor
from intaglio.extras import load

if TYPE_CHECKING:
    from intaglio.exporters.vision.modules import FromPixels, ImageTower, VisionModel

CLASS_TOKENS = ("cls_token", "class_token", "class_embedding")  # names of parameters


def load_vision(
    checkpoint: Checkpoint, family: VisionFamily, features: bool = False
) -> FromPixels | VisionModel | ImageTower:
    """The checkpoint as a float32 module in eval mode; weights that are float32 stay mapped, not read.

    With `features` it takes what the image processor returns, else pixels.
    """
    load("torch")
    if features:
        return build_vision(checkpoint, family, checkpoint.tensors())
    from intaglio.exporters.vision.modules import FromPixels

    processor = read_image_processor(checkpoint.folder)
    return FromPixels(build_vision(checkpoint, family, checkpoint.tensors()), processor)


def build_vision(
    checkpoint: Checkpoint, family: VisionFamily, weights: Mapping[str, FloatTensor]
) -> VisionModel | ImageTower:
    """The model behind the image processor. Raises `SourceError` if config.json and the weights do not form one."""
    load("torch")
    from intaglio.exporters.vision.modules import ImageTower, VisionModel

    architecture = architecture_of(checkpoint.config, family)
    options = family.load_options(architecture, weights)
    model = build_model(checkpoint, weights, architecture, blocks_of, **options).eval().requires_grad_(False)
    if family.reads_texts(architecture):
        return ImageTower(model).eval()
    has_class_token = any(name.split(".")[-1] in CLASS_TOKENS for name, _ in model.named_parameters())
    return VisionModel(model, family.tasks[architecture] == "classify", has_class_token).eval()


def reference_outputs(module: FromPixels | VisionModel | ImageTower, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The module's outputs for one batch, as NumPy arrays by name."""
    torch: Any = load("torch")
    with torch.inference_mode():
        outputs = module(*(torch.from_numpy(feeds[name]) for name in module.input_names))
    return {name: output.numpy() for name, output in zip(module.output_names, outputs, strict=True)}
