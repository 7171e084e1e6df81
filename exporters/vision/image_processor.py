"""The image processor of a checkpoint: what `transformers` does with an image before the model reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.bundle.bundle import Image
from intaglio.errors import SourceError, one_line
from intaglio.exporters.checkpoints.processor_settings import processor_settings
from intaglio.extras import load

FILTERS = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
ALL_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
CROPPING = "ConvNextImageProcessor"  # crops by a share of the image
FLOATING = "DINOv3ViTImageProcessor"  # resizes after rescaling, in floating point; only for torchvision
PLAIN = (
    "BeitImageProcessor", "BitImageProcessor", "CLIPImageProcessor", "DeiTImageProcessor", "PvtImageProcessor",
    "SiglipImageProcessor", "ViTImageProcessor",
)  # fmt: skip
SQUARE = 384  # of a `CROPPING` processor: images of at least this size are not cropped
FLOATING_DEFAULTS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}  # of ImageNet
# What a file may say without any effect on the pixels of an image in RGB.
WITHOUT_EFFECT = {
    "_processor_class", "_valid_processor_keys", "auto_map", "data_format", "default_to_square", "device",
    "disable_grouping", "do_convert_rgb", "do_reduce_labels", "feature_extractor_type", "image_processor_type",
    "input_data_format", "processor_class", "return_tensors", "use_fast",
}  # fmt: skip
READ = {
    "crop_pct", "crop_size", "do_center_crop", "do_normalize", "do_rescale", "do_resize", "image_mean", "image_std",
    "resample", "rescale_factor", "size",
}  # fmt: skip
LARGEST = 2048  # pixels of a side


@dataclass(frozen=True)
class ImageProcessor:
    """How pixels become the model's input: resize, crop, times `factor`, less `mean`, divided by `deviation`.

    An image is resized to `height` and `width`, or so that its shortest side is `height` if it `keeps_ratio`; then the
    centre of `crop` (height, width) is cut out. `rounds`: a resized pixel is an integer again.
    """

    height: int
    width: int
    keeps_ratio: bool
    crop: tuple[int, int] | None
    resample: str
    factor: float
    mean: tuple[float, ...]  # of red, green and blue
    deviation: tuple[float, ...]
    rounds: bool = True

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what the model reads."""
        return self.crop or (self.height, self.width)

    @property
    def image(self) -> Image:
        """The entry of the bundle's manifest, of a graph that begins with the image processor."""
        return Image(self.height, self.width, self.keeps_ratio, self.resample)


def read_image_processor(folder: Path) -> ImageProcessor:
    """The image processor of the checkpoint in `folder`, with the defaults of its class in `transformers`.

    Raises `SourceError` if it is missing, damaged, or does something else; `MissingExtraError` without Pillow.
    """
    file, given = _settings(folder)
    processor, name = _library_processor(folder, file, given)
    if name not in (*PLAIN, CROPPING, FLOATING):
        known = ", ".join(sorted((*PLAIN, CROPPING, FLOATING)))
        raise SourceError(f"{file}: image processor {name[:80]} is not supported, only {known}.")
    for key in sorted(given.keys() - READ - WITHOUT_EFFECT):
        if given[key] not in (None, False):
            raise SourceError(f"{file}: {key} is not supported: {str(given[key])[:80]!r}. Export another model.")
    return _described(processor, name, file)


def library_processor(folder: Path) -> Any:
    """The image processor of `transformers`, on Pillow. Raises as `read_image_processor`."""
    return _library_processor(folder, *_settings(folder))[0]


def _settings(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file with the settings of the image processor, and the settings."""
    return processor_settings(folder, "image_processor", "images")


def _library_processor(folder: Path, file: Path, given: Mapping[str, Any]) -> tuple[Any, str]:
    """The image processor as `transformers` builds it on Pillow, and the name of its class."""
    load("PIL")
    transformers: Any = load("transformers")
    name = str(given.get("image_processor_type") or "").removesuffix("Fast")
    try:
        if name == FLOATING:
            return transformers.ViTImageProcessorPil(**{**FLOATING_DEFAULTS, **given}), FLOATING
        processor = transformers.AutoImageProcessor.from_pretrained(
            str(folder), backend="pil", trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # the library raises all kinds of exceptions
        reason = one_line(error, 200).rstrip(".")
        raise SourceError(f"{file}: not a valid image processor ({reason}). Fix it.") from error
    return processor, type(processor).__name__.removesuffix("Pil")


def _described(processor: Any, name: str, file: Path) -> ImageProcessor:
    if not processor.do_resize:
        raise SourceError(f"{file}: do_resize is false, so images of other sizes could not be read. Set it to true.")
    resample = int(processor.resample) if isinstance(processor.resample, int) else -1
    if resample not in FILTERS:
        shown = ALL_FILTERS[resample] if 0 <= resample < len(ALL_FILTERS) else repr(processor.resample)[:40]
        raise SourceError(f"{file}: resample {shown} is not supported, only {' and '.join(FILTERS.values())}.")
    height, width, keeps_ratio, crop = _sizes(processor, name, file)
    rounds = name != FLOATING
    return ImageProcessor(height, width, keeps_ratio, crop, FILTERS[resample], *scaling_of(processor, file), rounds)


def scaling_of(processor: Any, file: Path) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Factor, mean and deviation of an image processor. Raises `SourceError` for numbers that are none."""
    mean: tuple[float, ...] = (0.0,) * 3
    deviation: tuple[float, ...] = (1.0,) * 3
    if processor.do_normalize:
        mean, deviation = (_numbers(getattr(processor, key), key, file) for key in ("image_mean", "image_std"))
        if not all(deviation):
            raise SourceError(f"{file}: image_std is {list(deviation)}, expected numbers other than 0. Fix it.")
    factor = _numbers(processor.rescale_factor, "rescale_factor", file)[0] if processor.do_rescale else 1.0
    return factor, mean, deviation


def _sizes(processor: Any, name: str, file: Path) -> tuple[int, int, bool, tuple[int, int] | None]:
    """Height and width after resizing, whether the ratio is kept, and the size of the crop."""
    size, crop = _size(processor.size, "size", file), None
    if name == CROPPING:
        if size.keys() != {"shortest_edge"} or getattr(processor, "do_center_crop", None):
            raise SourceError(f"{file}: {CROPPING} needs a size of shortest_edge, and no do_center_crop. Fix it.")
        edge, share = size["shortest_edge"], processor.crop_pct
        if edge >= SQUARE:
            return edge, edge, False, None
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise SourceError(f"{file}: crop_pct is {share!r}, expected a number above 0, up to 1. Fix it.")
        return int(edge / share), int(edge / share), True, (edge, edge)
    if processor.do_center_crop:
        cropped = _size(processor.crop_size, "crop_size", file)
        if cropped.keys() != {"height", "width"}:
            raise SourceError(f"{file}: crop_size is {cropped}, expected height and width. Fix it.")
        crop = cropped["height"], cropped["width"]
    if size.keys() == {"shortest_edge"}:
        height = width = size["shortest_edge"]
        if crop is None:
            raise SourceError(
                f"{file}: shortest_edge without do_center_crop gives images of different sizes, which is not "
                "supported. Set do_center_crop and crop_size, or a size of height and width."
            )
    elif size.keys() == {"height", "width"}:
        height, width = size["height"], size["width"]
    else:
        names = ", ".join(size)
        raise SourceError(f"{file}: size of {names} is not supported, only height and width, or shortest_edge.")
    if crop is not None and (crop[0] > height or crop[1] > width):
        raise SourceError(
            f"{file}: crop_size {crop[0]} x {crop[1]} is larger than the size {height} x {width}. Fix one of the two."
        )
    return height, width, size.keys() == {"shortest_edge"}, crop


def _size(given: Any, key: str, file: Path) -> dict[str, int]:
    """The lengths that a size has, by name."""
    found = {name: value for name, value in dict(given or {}).items() if value is not None}
    if not found or not all(isinstance(value, int) and 1 <= value <= LARGEST for value in found.values()):
        raise SourceError(f"{file}: {key} is {str(found)[:80]}, expected lengths of 1 to {LARGEST}. Fix it.")
    return found


def _numbers(given: Any, key: str, file: Path) -> tuple[float, ...]:
    """Three numbers, one for each colour; one number stands for all."""
    numbers = list(given) if isinstance(given, list | tuple) else [given] * 3
    if len(numbers) != 3 or not all(_is_number(number) for number in numbers):
        raise SourceError(f"{file}: {key} is {str(given)[:80]!r}, expected a number for each of 3 colours. Fix it.")
    return tuple(float(number) for number in numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
