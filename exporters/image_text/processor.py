"""The image processor of a decoder that reads images: how an image becomes frames, and a prompt's tokens."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.bundle.image_records import FILTERS
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.processor_settings import processor_settings
from intaglio.exporters.vision.image_processor import WITHOUT_EFFECT, library_processor, scaling_of

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")
RESAMPLE = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
READ = {
    "do_image_splitting", "do_normalize", "do_pad", "do_rescale", "do_resize", "image_mean", "image_std",
    "max_image_size", "resample", "rescale_factor", "size",
}  # fmt: skip
# Whether rows and columns are returned; and settings of videos, which are not read.
UNUSED = {"return_row_col_info", "video_sampling"}
LARGEST = 4096  # pixels of a side; the library reduces images to it


@dataclass(frozen=True)
class FrameProcessor:
    """How an image becomes frames: see `ImageEncoder`; then times `factor`, less `mean`, divided by `deviation`."""

    side: int
    longest_edge: int
    resample: str
    splits: bool
    factor: float
    mean: tuple[float, ...]  # of red, green and blue
    deviation: tuple[float, ...]

    def scaled(self, pixels: Tensor) -> Tensor:
        """`pixels` uint8 [batch, 3, height, width] as the encoder's input, in float32."""
        import torch

        mean, deviation = (torch.tensor(numbers)[:, None, None] for numbers in (self.mean, self.deviation))
        return (pixels.float() * self.factor - mean) / deviation


def read_frame_processor(folder: Path, side: int) -> FrameProcessor:
    """The image processor of the checkpoint in `folder`, with the defaults of its class in `transformers`.

    `side`: height and width of the images that the encoder reads. Raises `SourceError` if it is missing, damaged, or
    does something else; `MissingExtraError` without Pillow.
    """
    file, given = processor_settings(folder, "image_processor", "images")
    processor = library_processor(folder)
    name = type(processor).__name__.removesuffix("Pil")
    if name not in CLASSES:
        raise SourceError(f"{file}: image processor {name[:80]} is not supported, only {', '.join(CLASSES)}.")
    for key in sorted(given.keys() - READ - WITHOUT_EFFECT - UNUSED):
        if given[key] not in (None, False):
            raise SourceError(f"{file}: {key} is not supported: {str(given[key])[:80]!r}. Export another model.")
    edge, largest = (_edge(getattr(processor, name), name, file) for name in ("size", "max_image_size"))
    if largest != side:
        raise SourceError(
            f"{file}: max_image_size is {largest} pixels, and image_size of config.json is {side}. Make them equal."
        )
    if not processor.do_resize:
        raise SourceError(f"{file}: do_resize is false, so images of any size would be read. Set it to true.")
    resample = RESAMPLE.get(processor.resample) if isinstance(processor.resample, int) else None
    if resample is None:
        raise SourceError(f"{file}: resample {processor.resample!r} is not supported, only {', '.join(FILTERS)}.")
    return FrameProcessor(side, edge, resample, bool(processor.do_image_splitting), *scaling_of(processor, file))


def _edge(given: Any, key: str, file: Path) -> int:
    """The longest edge, the one length that a size has."""
    found = {name: value for name, value in dict(given or {}).items() if value is not None}
    edge = found.get("longest_edge")
    if set(found) != {"longest_edge"} or not isinstance(edge, int) or not 1 <= edge <= LARGEST:
        raise SourceError(
            f"{file}: {key} is {str(found)[:80]}, expected a longest_edge of 1 to {LARGEST} pixels. Fix it."
        )
    return edge


def library_prompt(rows: int, columns: int, tokens: int, around: str, token: str, whole: str) -> str:
    """What `transformers` writes for an image of `rows` and `columns` in a prompt."""
    known = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    return str(known.get_image_prompt_string(rows, columns, tokens, around, token, whole))
