"""What is not exported of decoders that read images is refused by name, before anything is traced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tiny_image_text import SIDE, TEXT, save_image_text

from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.image_text.check import image_prompt
from intaglio.exporters.image_text.family import check_vision
from intaglio.exporters.image_text.processor import read_frame_processor

PROCESSOR, SETTINGS = "preprocessor_config.json", "processor_config.json"


def change(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({key: each for key, each in {**content, **changes}.items() if each is not None}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_processor_type": "ViTImageProcessor"}, r"image processor ViTImageProcessor is not supported, only"),
        (
            {"max_image_size": {"longest_edge": 64}},
            r"max_image_size is 64 pixels, and image_size of config",
        ),
        ({"size": {"height": 64, "width": 64}}, r"size is .*, expected a longest_edge of 1 to 4096 pixels"),
        ({"size": {"longest_edge": 5000}}, r"expected a longest_edge of 1 to 4096"),
        ({"resample": 0}, r"resample 0 is not supported, only bilinear, bicubic, lanczos"),
        ({"do_resize": False}, r"do_resize is false"),
        ({"image_std": [0.5, 0, 0.5]}, r"image_std is .*, expected numbers other than 0"),
        ({"do_sharpen": True}, r"do_sharpen is not supported: 'True'"),
    ],
)
def test_other_image_processors_are_refused(
    changes: dict[str, Any], words: str, image_text: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copy(image_text[0] / PROCESSOR, tmp_path)
    assert read_frame_processor(tmp_path, SIDE).longest_edge == 2 * SIDE
    change(tmp_path / PROCESSOR, **changes)
    with pytest.raises(SourceError, match=words):
        read_frame_processor(tmp_path, SIDE)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": [32, 32]}, r"image_size is \[32, 32\] in config\.json, expected 1 or more"),
        ({"patch_size": 64}, r"the 0 patches of a side .* are not a multiple of scale_factor 2"),
        ({"image_size": 40}, r"the 5 patches of a side .* are not a multiple of scale_factor 2"),
        ({"num_channels": 4}, r"num_channels is 4, only images with 3 are supported"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    vision = {"image_size": 32, "patch_size": 8, "num_channels": 3}
    assert check_vision(SimpleNamespace(vision_config=SimpleNamespace(**vision), scale_factor=2), "x") == (32, 4)
    with pytest.raises(SourceError, match=words):
        check_vision(SimpleNamespace(vision_config=SimpleNamespace(**{**vision, **changes}), scale_factor=2), "x")


def without_processor(folder: Path) -> None:
    (folder / PROCESSOR).unlink()


def with_other_tokens(folder: Path) -> None:
    change(folder / SETTINGS, image_seq_len=169)


def with_other_marker(folder: Path) -> None:
    change(folder / "tokenizer_config.json", image_token="<global-img>")  # noqa: S106


def with_unknown_marker(folder: Path) -> None:
    change(folder / "tokenizer_config.json", extra_special_tokens={"fake_image_token": "<nope>"})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without_processor, r"no preprocessor_config\.json, so how images become the model's input is unknown"),
        (with_other_tokens, r"image_seq_len is 169, and a frame has 4 tokens by config\.json"),
        (with_unknown_marker, r"fake_image_token is '<nope>', which tokenizer\.json does not have"),
        (
            with_other_marker,
            r"image_token_id of config\.json is 257, and its tokenizer has another id for '<global-img>'",
        ),
    ],
)
def test_checkpoint_that_would_read_images_in_another_way_is_refused(
    damage: Callable[[Path], None], words: str, image_text: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(image_text[0], tmp_path / "checkpoint"))
    damage(folder)
    with pytest.raises(SourceError, match=words) as caught:
        export(str(folder), tmp_path / "bundle")
    assert "\n" not in str(caught.value) and not (tmp_path / "bundle").exists()


def test_checkpoint_with_an_early_exit_is_refused(tmp_path: Path) -> None:
    text = {"model_type": "llama", **TEXT, "num_hidden_layers": 2}
    folder = save_image_text(tmp_path / "checkpoint", text_config=text)
    (folder / "early_exit.json").write_text('{"layer": 1}')
    with pytest.raises(SourceError, match=r"has drafts or an early exit, .* Remove drafts\.json"):
        export(str(folder), tmp_path / "bundle")


def test_context_without_room_for_an_image_is_refused(image_text: tuple[Path, Path]) -> None:
    manifest = Bundle.open(image_text[1]).manifest
    assert manifest.decoder is not None and manifest.image_encoder is not None
    short = msgspec.structs.replace(manifest.decoder, max_positions=16)
    words = r"source: an image between two sentences takes \d+ tokens, and max_position_embeddings is 16"
    with pytest.raises(SourceError, match=words):
        image_prompt(image_text[1], Path("source"), short, manifest.image_encoder)
