"""Which models that read images can be exported: classifiers and encoders of `transformers`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.family import Family, listed_architecture
from intaglio.exporters.encoders.traced import settings_of
from intaglio.extras import load

CHANNELS = 3
TOWERS = {"clip": "CLIPModel", "metaclip_2": "MetaClip2Model", "siglip": "SiglipModel"}  # for images and texts


@dataclass(frozen=True)
class VisionFamily(Family):
    """A family of models that read one image; `tasks` maps its architectures to ours, "classify" and "embed"."""

    tasks: Mapping[str, str]

    @property
    def architectures(self) -> Collection[str]:
        """See `Family`."""
        return self.tasks.keys()

    @property
    def unread(self) -> Collection[str]:
        """See `Family`: BEiT's configuration has the vocabulary of its training."""
        return ("vocab_size",)

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """See `Family`: images with other than three channels, and inputs beside the image, are not supported."""
        settings = settings_of(config, where)
        channels = getattr(getattr(settings, "vision_config", settings), "num_channels", CHANNELS)
        if channels != CHANNELS:
            raise SourceError(
                f"{where}: config.json: num_channels is {channels}, only images with {CHANNELS} are supported. "
                "Export another model."
            )
        architecture = listed_architecture(config) or self.architecture
        if others := sorted(_needed(architecture) - {"pixel_values"}):
            raise SourceError(
                f"{where}: architecture {architecture} is not supported: it reads {', '.join(others)} beside an image. "
                "Export another model."
            )

    def reads_texts(self, architecture: str) -> bool:
        """Whether it compares images with texts, each read by a part of its own."""
        return architecture == TOWERS.get(self.model_type)

    def load_options(self, architecture: str, tensors: Collection[str]) -> dict[str, bool]:
        """See `Family`: with the pooler if it has weights."""
        if "add_pooling_layer" not in inspect.signature(_class(architecture).__init__).parameters:
            return {}
        return {"add_pooling_layer": any("pooler." in name for name in tensors)}


def find_vision(config: Mapping[str, Any]) -> VisionFamily | None:
    """The family of a config.json of a model that reads images, and nothing else; None for another model."""
    model_type, listed = config.get("model_type"), listed_architecture(config)
    if not isinstance(model_type, str) or not model_type:
        return None
    load("transformers")
    known = importlib.import_module("transformers.models.auto.modeling_auto")
    bases = _names(known.MODEL_MAPPING_NAMES.get(model_type))
    heads = _names(known.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.get(model_type))
    found = dict.fromkeys(bases, "embed") | dict.fromkeys(heads, "classify")
    tasks = {name: task for name, task in found.items() if _reads_images(name) or name == TOWERS.get(model_type)}
    if not tasks or listed not in ("", *tasks):
        return None
    return VisionFamily(model_type, next(iter(tasks)), tasks)


def _names(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given or ()


def _class(architecture: str) -> Any:
    return getattr(load("transformers"), architecture)


def _reads_images(architecture: str) -> bool:
    parameters = inspect.signature(_class(architecture).forward).parameters
    return "pixel_values" in parameters and "input_ids" not in parameters


def _needed(architecture: str) -> set[str]:
    """The inputs that a model needs."""
    parameters = inspect.signature(_class(architecture).forward).parameters.values()
    named = (each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL))
    return {each.name for each in named if each.name != "self" and each.default is each.empty}
