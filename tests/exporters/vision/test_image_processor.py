"""The image processor in the graph computes what that of `transformers` computes, and others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_vision import library_processor, write_processor

from intaglio.bundle.model_file import save
from intaglio.errors import SourceError
from intaglio.exporters.vision.export import LEVELS
from intaglio.exporters.vision.front_end import front_end_alone
from intaglio.exporters.vision.image_processor import ImageProcessor, read_image_processor
from intaglio.samples.images import images

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

SIDES = st.integers(1, 90)
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {  # class, options
    "bilinear": ("ViT", {"size": {"height": 24, "width": 31}}),
    "bicubic": ("Siglip", {"size": {"height": 24, "width": 31}}),
    "cropped": ("DeiT", {"size": {"height": 33, "width": 36}, "crop_size": {"height": 20, "width": 29}}),
    "shortest edge": ("CLIP", {"size": {"shortest_edge": 25}, "crop_size": {"height": 24, "width": 21}}),
    "share": ("ConvNext", {"size": {"shortest_edge": 24}, "crop_pct": 0.8, "resample": 2}),
    "not rescaled": ("ViT", {"size": {"height": 9, "width": 9}, "do_rescale": False, "image_std": [50, 60, 70]}),
    "not normalised": ("ViT", {"size": {"height": 9, "width": 9}, "do_normalize": False}),
}


class Compared:
    """An image processor in a graph, and the library's."""

    def __init__(self, folder: Path, kind: str, options: dict[str, Any]):
        write_processor(folder, kind, **options)
        self.processor: ImageProcessor = read_image_processor(folder)
        save(front_end_alone(self.processor), folder / "front_end.onnx")
        self.session = onnxruntime.InferenceSession(folder / "front_end.onnx")
        self.library = library_processor(folder)

    def difference(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Of each number, in levels of 255."""
        feeds = {"pixels": pixels.transpose(2, 0, 1)[None].copy()}
        (found,) = self.session.run(None, feeds)
        wanted = np.asarray(self.library(Image.fromarray(pixels))["pixel_values"][0], np.float32)[None]
        assert found.shape == wanted.shape == (1, 3, *self.processor.size)
        factor, deviation = self.processor.factor, np.array(self.processor.deviation)[:, None, None]
        return np.abs(found - wanted) * deviation / factor


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compared]:
    return {
        name: Compared(tmp_path_factory.mktemp("processor"), kind, options)
        for name, (kind, options) in PROCESSORS.items()
    }


@pytest.mark.parametrize("name", PROCESSORS)
@settings(max_examples=15, deadline=None)
@given(height=SIDES, width=SIDES, noise=st.booleans(), seed=st.integers(0, 99))
def test_images_of_any_size_become_the_library_s_numbers(
    name: str, compared: dict[str, Compared], height: int, width: int, noise: bool, seed: int
) -> None:
    if noise:
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    else:
        pixels = images(height, width, 1)[0]
    difference = compared[name].difference(pixels)
    assert difference.max() < LEVELS + 0.01
    assert np.mean(difference > 0.01) < 0.3  # halves, as of 12 to 30 pixels, are rounded up or down
    assert np.mean(difference > 1.01) < 0.01  # observed 3 of 1,728 numbers


def test_image_of_the_own_size_is_not_changed(compared: dict[str, Compared]) -> None:
    for each in compared.values():
        image = each.processor.image
        assert each.difference(images(image.height, image.width, 1)[0]).max() < 0.001


PLAIN = {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}}
CLIP = {"image_processor_type": "CLIPImageProcessor"}
BAD: list[tuple[dict[str, Any] | str, str]] = [
    ("", "not a JSON object"),
    ("[1]", "not a JSON object"),
    ('{"image_processor_type": ', "not a JSON object"),
    ({"image_processor_type": "NoSuchImageProcessor"}, "not a valid image processor"),
    ({"image_processor_type": "DetrImageProcessor"}, "DetrImageProcessor is not supported, only "),
    ({"image_processor_type": "EfficientNetImageProcessor"}, "EfficientNetImageProcessor is not supported"),
    (PLAIN | {"do_resize": False}, "do_resize is false"),
    (PLAIN | {"resample": 0}, "resample nearest is not supported, only bilinear and bicubic"),
    (PLAIN | {"resample": 1}, "resample lanczos is not supported"),
    (PLAIN | {"resample": 77}, "resample 77 is not supported"),
    (PLAIN | {"resample": "cubic"}, "resample"),
    (PLAIN | {"do_pad": True}, "do_pad is not supported: 'True'"),
    (PLAIN | {"do_flip_channel_order": True}, "do_flip_channel_order is not supported"),
    (PLAIN | {"size": {"longest_edge": 24}}, "size of longest_edge is not supported"),
    (PLAIN | {"size": {"shortest_edge": 24}}, "shortest_edge without do_center_crop"),
    (PLAIN | {"size": {"shortest_edge": 24, "longest_edge": 30}}, "size of longest_edge, shortest_edge is not supp"),
    (PLAIN | {"size": {"height": 0, "width": 24}}, "expected lengths of 1 to 2048"),
    (PLAIN | {"size": {"height": -3, "width": 24}}, "expected lengths of 1 to 2048"),
    (PLAIN | {"size": {"height": 10**9, "width": 24}}, "expected lengths of 1 to 2048"),
    (PLAIN | {"size": {"height": "a", "width": 24}}, "preprocessor_config.json"),
    (PLAIN | {"size": []}, "preprocessor_config.json"),
    (PLAIN | {"image_mean": [0.5]}, "image_mean is "),
    (PLAIN | {"image_mean": ["a", "b", "c"]}, "preprocessor_config.json"),
    (PLAIN | {"image_std": [0.5, 0, 0.5]}, "image_std is .*, expected numbers other than 0"),
    (PLAIN | {"rescale_factor": "x"}, "preprocessor_config.json"),
    (CLIP | {"crop_size": {"height": 300, "width": 300}}, "crop_size 300 x 300 is larger than the size 224 x 224"),
    (CLIP | {"crop_size": {"shortest_edge": 3}}, "crop_size is .*, expected height and width"),
    ({"image_processor_type": "ConvNextImageProcessor", "size": {"height": 9, "width": 9}}, "needs a size of shortest"),
    (
        {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "crop_pct": 2.0},
        "crop_pct is 2.0, expected a number above 0, up to 1",
    ),
    ({"image_processor_type": 7}, "preprocessor_config.json"),
]


@pytest.mark.parametrize(("content", "message"), BAD, ids=range(len(BAD)))
def test_other_image_processors_are_refused_in_one_line(
    content: dict[str, Any] | str, message: str, tmp_path: Path
) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(SourceError, match=message) as caught:
        read_image_processor(tmp_path)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".") and len(str(caught.value)) < 500


def test_checkpoint_without_an_image_processor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no preprocessor_config\.json, so how images become"):
        read_image_processor(tmp_path)


def test_settings_inside_a_processor_of_images_and_texts_are_read(tmp_path: Path) -> None:
    """`processor_config.json` has them under `image_processor`; it precedes the other file."""
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": PLAIN, "processor_class": "X"}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PLAIN | {"size": {"height": 7, "width": 7}}))
    assert read_image_processor(tmp_path).size == (24, 24)


def test_class_that_is_not_named_follows_the_model(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 24, "width": 24}}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "siglip"}))
    assert read_image_processor(tmp_path).resample == "bicubic"
