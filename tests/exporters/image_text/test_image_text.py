"""Decoders that read images are exported with their image encoder, and write what `transformers` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from picture_files import picture_files
from tiny_image_text import SIDE, TOKENS, library_processor, save_image_text

from intaglio import generate, inspect
from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.exporters import export

TEXT = "Look: <image>and <image>, no <image>."
NEW = 30


def library_text(checkpoint: Path, text: str, files: list[Path], **options: Any) -> tuple[list[int], int]:
    """The tokens that `transformers` generates after a text with images, and the number of tokens before them."""
    import torch
    import transformers
    from PIL import Image

    model = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint, attn_implementation="eager").eval()
    read = library_processor(checkpoint)(
        text=text, images=[[Image.open(file) for file in files]] if files else None, return_tensors="pt"
    )
    with torch.inference_mode():
        found = model.generate(**read, do_sample=False, max_new_tokens=NEW, **options)
    before = read["input_ids"].shape[1]
    return found[0, before:].tolist(), before


def test_text_after_images_is_that_of_transformers(image_text: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, bundle = image_text
    files = picture_files(tmp_path)
    expected, before = library_text(checkpoint, TEXT, files)
    (found,) = generate(bundle, TEXT, image=files, max_new_tokens=NEW)
    assert (found.tokens, found.prompt_tokens) == (expected, before)
    (other,) = generate(bundle, TEXT, image=files[::-1], max_new_tokens=NEW)
    assert other.tokens != expected


def test_text_without_images_is_that_of_transformers(image_text: tuple[Path, Path]) -> None:
    checkpoint, bundle = image_text
    (found,) = generate(bundle, "Once upon", max_new_tokens=NEW)
    assert found.tokens == library_text(checkpoint, "Once upon", [])[0]


@pytest.mark.proof
@pytest.mark.parametrize("model_type", ["idefics3", "smolvlm"])
@pytest.mark.parametrize("splits", [True, False])
def test_both_types_with_and_without_splitting_equal_transformers(
    model_type: str, splits: bool, tmp_path: Path
) -> None:
    settings = {"do_image_splitting": splits, "resample": 3 if splits else 1}
    checkpoint = save_image_text(tmp_path / "checkpoint", model_type, settings)
    exported = export(str(checkpoint), tmp_path / "bundle")
    assert exported.passed and {"logits", "image_embeddings", "logits_with_images"} == set(exported.outputs)
    files = picture_files(tmp_path)
    expected, before = library_text(checkpoint, TEXT, files, repetition_penalty=1.3)
    (found,) = generate(tmp_path / "bundle", TEXT, image=files, max_new_tokens=NEW, repetition_penalty=1.3)
    assert (found.tokens, found.prompt_tokens) == (expected, before)
    (drafted,) = generate(tmp_path / "bundle", TEXT, image=files, max_new_tokens=NEW, strategy="ngram")
    assert drafted.tokens == library_text(checkpoint, TEXT, files)[0]


def test_every_weight_is_in_one_of_the_graphs(image_text: tuple[Path, Path]) -> None:
    """But for the small table of positions, which is folded, as the positions of a frame are constants."""
    checkpoint, path = image_text
    bundle = Bundle.open(path)
    names = {str(name) for graph in bundle.graph_paths for name in load(graph).graph.initializers}
    from safetensors import safe_open

    with safe_open(checkpoint / "model.safetensors", "np") as file:
        weights = list(file.keys())
    missing = [name for name in weights if not any(found.startswith(name) for found in names)]
    assert missing == ["model.vision_model.embeddings.position_embedding.weight"]
    found = inspect(path)
    assert found.image_encoder is not None and found.image_encoder.tokens == TOKENS
    assert found.image_encoder.side == SIDE and found.task == "generate"
