"""Decoders that read images are exported with their image encoder, and write what `transformers` writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_adapters import merged_by_peft, save_adapter
from picture_files import picture_files
from tiny_image_text import SIDE, TOKENS, library_processor, save_image_text

from intaglio import compress, generate, inspect, validate
from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.image_prompts import ImageText
from intaglio.runtime.vision.image_reader import ImageFile

TEXT = "Look: <image>and <image>, no <image>."
NEW = 30


def library_text(
    checkpoint: Path, text: str, files: list[Path], model: Any = None, **options: Any
) -> tuple[list[int], int]:
    """The tokens that `transformers` generates after a text with images, and the number of tokens before them.

    `model`: in place of that in the checkpoint.
    """
    import torch
    import transformers
    from PIL import Image

    if model is None:
        model = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint, attn_implementation="eager").eval()
    read = library_processor(checkpoint)(
        text=text, images=[[Image.open(file) for file in files]] if files else None, return_tensors="pt"
    )
    with torch.inference_mode():
        found = model.generate(**read, do_sample=False, max_new_tokens=NEW, **options)
    before = read["input_ids"].shape[1]
    return found[0, before:].tolist(), before


def test_text_after_images_equals_transformers(image_text: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, bundle = image_text
    files = picture_files(tmp_path)
    expected, before = library_text(checkpoint, TEXT, files)
    (found,) = generate(bundle, TEXT, image=files, max_new_tokens=NEW)
    assert (found.tokens, found.prompt_tokens) == (expected, before)
    (other,) = generate(bundle, TEXT, image=files[::-1], max_new_tokens=NEW)
    assert other.tokens != expected


def test_text_without_images_equals_transformers(image_text: tuple[Path, Path]) -> None:
    checkpoint, bundle = image_text
    (found,) = generate(bundle, "Once upon", max_new_tokens=NEW)
    assert found.tokens == library_text(checkpoint, "Once upon", [])[0]


KINDS = {"idefics3": "markers by name, a head of its own", "smolvlm": "markers that a tokenizer may name"}
OTHERS: list[str] = []
RECIPES = {"float16": 0.999, "int8-weights": 0.99, "rtn": 0.5}  # least cosine of the logits after images


@pytest.mark.proof
@pytest.mark.parametrize("model_type", [pytest.param(each, marks=pytest.mark.xdist_group(each)) for each in KINDS])
@pytest.mark.parametrize("splits", [True, False])
def test_type_equals_transformers_with_and_without_splitting(
    model_type: str, splits: bool, tmp_path: Path, proved: Callable[..., None]
) -> None:
    settings = {"do_image_splitting": splits, "resample": 3 if splits else 1}
    checkpoint = save_image_text(tmp_path / "checkpoint", model_type, settings)
    bundle = tmp_path / "bundle"
    exported = export(str(checkpoint), bundle)
    assert exported.passed and {"logits", "image_embeddings", "logits_with_images"} == set(exported.outputs)
    assert exported.notes == []
    files = picture_files(tmp_path)
    expected, before = library_text(checkpoint, TEXT, files, repetition_penalty=1.3)
    (found,) = generate(bundle, TEXT, image=files, max_new_tokens=NEW, repetition_penalty=1.3)
    assert (found.tokens, found.prompt_tokens) == (expected, before)
    (drafted,) = generate(bundle, TEXT, image=files, max_new_tokens=NEW, strategy="ngram")
    assert drafted.tokens == library_text(checkpoint, TEXT, files)[0]
    facts = {"tested": ["image embeddings", "logits", "text"], "strategies": ["greedy", "ngram"]}
    proved(model_type, "image-text", "traced", **facts)


@pytest.mark.proof
@pytest.mark.parametrize("model_type", [pytest.param(each, marks=pytest.mark.xdist_group(each)) for each in KINDS])
def test_type_is_compressed_and_built(model_type: str, tmp_path: Path, proved: Callable[..., None]) -> None:
    bundle = tmp_path / "bundle"
    assert export(str(save_image_text(tmp_path / "checkpoint", model_type)), bundle).passed
    (file,) = picture_files(tmp_path, ((40, 90),))
    exact = logits_after(bundle, file)
    for recipe, least in RECIPES.items():
        compress(bundle, tmp_path / recipe, recipe=recipe)
        found = logits_after(tmp_path / recipe, file)
        assert found @ exact / np.linalg.norm(found) / np.linalg.norm(exact) > least, recipe
    half = export(str(tmp_path / "checkpoint"), tmp_path / "half", dtype="float16")
    assert half.passed and np.abs(logits_after(tmp_path / "half", file) - exact).max() < 0.01 * np.abs(exact).max()
    assert validate(bundle).passed
    proved(model_type, "image-text", "traced", recipes=list(RECIPES))
    pytest.importorskip("tensorrt_rtx")
    # In a process of its own: the library might crash.
    command = [sys.executable, "-m", "intaglio", "build", str(bundle), "--target", "tensorrt-rtx", "--gpu", "a100"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    proved(model_type, "image-text", "traced", targets=["ort-cpu", "tensorrt-rtx a100"])


@pytest.mark.proof
def test_adapters_of_the_text_work_beside_the_weights_and_of_both_parts_merged(
    image_text: tuple[Path, Path], tmp_path: Path
) -> None:
    checkpoint, bundle = image_text
    (file,) = picture_files(tmp_path, ((40, 90),))
    architecture, prompt = "SmolVLMForConditionalGeneration", "Look: <image> so"
    layers = {"text": r".*text_model.*(q_proj|v_proj|down_proj)", "both": ["q_proj", "v_proj", "proj"]}
    adapters = {
        name: save_adapter(checkpoint, tmp_path / name, architecture, target_modules=modules)
        for name, modules in layers.items()
    }
    expected = {
        name: library_text(checkpoint, prompt, [file], merged_by_peft(checkpoint, adapter, architecture))[0]
        for name, adapter in adapters.items()
    }
    assert export(str(checkpoint), tmp_path / "merged", adapter=adapters["both"]).passed
    (merged,) = generate(tmp_path / "merged", prompt, image=[file], max_new_tokens=NEW)
    (beside,) = generate(bundle, prompt, image=[file], max_new_tokens=NEW, adapter=[adapters["text"]])
    (plain,) = generate(bundle, prompt, image=[file], max_new_tokens=NEW)
    assert (merged.tokens, beside.tokens) == (expected["both"], expected["text"])
    assert plain.tokens not in expected.values()
    with pytest.raises(SourceError, match=r"the graph has no products with the weight of model\.connector"):
        next(iter(generate(bundle, prompt, image=[file], adapter=[adapters["both"]])))


def logits_after(bundle: Path, file: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The logits [vocab] after a prompt with an image."""
    with TextGenerator(bundle) as generator:
        prompt = generator.checked(ImageText("Look: <image>", [ImageFile(file.read_bytes(), "x")]))
        (logits,) = generator._model.append([prompt.image_ids], [1])
    return logits[0]


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
