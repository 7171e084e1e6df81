"""Models that read images, exported by tracing, compute what `transformers` computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from tiny_vision import CLASSES, SIZE, library_processor, save_vision

import intaglio
from intaglio.bundle.bundle import Bundle
from intaglio.graph_passes import compress
from intaglio.runtime import open_engine
from intaglio.samples.images import images

BOUND = 2e-5  # of the largest number
# What each adds to ViT.
KINDS = {
    "clip": "a graph for texts, whose end is found by its token; a crop",
    "dinov3_vit": "rotary embeddings of places, tokens without a place; resizing in floating point",
    "metaclip_2": "CLIP with another tokenizer",
    "siglip": "a graph for texts, whose padding is read; attention that pools; sigmoid",
    "swin": "windows that are shifted",
}
OTHERS = (  # noqa: SIM905
    "beit clip_vision_model convnext convnextv2 data2vec-vision deit dinov2 dinov2_with_registers dinov3_convnext "
    "focalnet ijepa mobilevit poolformer pvt regnet resnet siglip_vision_model swinv2 vit vit_msn"
).split()
TWO_GRAPHS = ["clip", "metaclip_2", "siglip"]
WITHOUT_HEAD = ["clip_vision_model", "dinov3_convnext", "dinov3_vit", "siglip_vision_model"]
BASES = [name for name in (*KINDS, *OTHERS) if name not in TWO_GRAPHS]
HEADS = [name for name in (*KINDS, *OTHERS) if name not in WITHOUT_HEAD]
RECIPES = ("float16", "int8-weights")


def feeds_of(bundle: Path, count: int = 3) -> dict[str, Any]:
    """Images of the size that the graph does not resize."""
    image = Bundle.open(bundle).manifest.image
    assert image is not None
    pictures = images(image.height, image.width, count)
    return {"pixels": np.stack(pictures).transpose(0, 3, 1, 2).copy()}


def expected(checkpoint: Path, architecture: str, pixels: np.ndarray[Any, Any]) -> Any:
    """The outputs of transformers, behind its own image processor."""
    import torch
    import transformers

    model = getattr(transformers, architecture).from_pretrained(checkpoint).eval()
    pictures = list(pixels.transpose(0, 2, 3, 1))
    processed = np.stack([library_processor(checkpoint)(each)["pixel_values"][0] for each in pictures])
    with torch.inference_mode():
        return model(pixel_values=torch.from_numpy(processed.astype(np.float32)))


def assert_close(found: np.ndarray[Any, Any], wanted: Any) -> None:
    wanted = wanted.numpy()
    np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=0, atol=BOUND * np.abs(wanted).max())


def cosine(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    rows = (first.astype(np.float32).ravel(), second.astype(np.float32).ravel())
    return float(rows[0] @ rows[1] / np.prod([np.linalg.norm(row) for row in rows]))


def assert_compressed(bundle: Path, folder: Path) -> None:
    """The embeddings of images are nearly the same after each of the recipes."""
    feeds = feeds_of(bundle)
    with open_engine(bundle) as engine:
        found = engine.run(feeds)["image_embedding"]
    for recipe in RECIPES:
        compress(bundle, folder / recipe, recipe=recipe)
        with open_engine(folder / recipe) as engine:
            assert cosine(engine.run(feeds)["image_embedding"], found) > 0.99, recipe


@pytest.mark.parametrize("model_type", few(BASES, []))
def test_encoder_of_images_equals_transformers(model_type: str, tmp_path: Path, proved: Callable[..., None]) -> None:
    checkpoint = save_vision(tmp_path / "checkpoint", model_type)
    assert intaglio.export(str(checkpoint), tmp_path / "bundle").passed
    feeds = feeds_of(tmp_path / "bundle")
    with open_engine(tmp_path / "bundle") as engine:
        found = engine.run(feeds)
    wanted = expected(checkpoint, Bundle.open(tmp_path / "bundle").manifest.architecture, feeds["pixels"])
    assert_close(found["last_hidden_state"], wanted.last_hidden_state)
    if wanted.get("pooler_output") is not None:
        assert_close(found["image_embedding"], wanted.pooler_output.flatten(1))
    assert_compressed(tmp_path / "bundle", tmp_path)
    proved(model_type, "images", "traced", tested=["embedding"], recipes=list(RECIPES), targets=["ort-cpu"])


@pytest.mark.parametrize("model_type", few(HEADS, ["vit"]))
def test_classifier_of_images_equals_transformers(model_type: str, tmp_path: Path, proved: Callable[..., None]) -> None:
    checkpoint = save_vision(tmp_path / "checkpoint", model_type, CLASSES)
    assert intaglio.export(str(checkpoint), tmp_path / "bundle").passed
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.task, manifest.modality, len(manifest.labels)) == ("classify", "image", 5)
    feeds = feeds_of(tmp_path / "bundle")
    with open_engine(tmp_path / "bundle") as engine:
        found = engine.run(feeds)["logits"]
    assert_close(found, expected(checkpoint, manifest.architecture, feeds["pixels"]).logits)
    proved(model_type, "images", "traced", tested=["classify"])


@pytest.mark.proof
@pytest.mark.parametrize("model_type", TWO_GRAPHS)
def test_scores_of_texts_equal_transformers(model_type: str, tmp_path: Path, proved: Callable[..., None]) -> None:
    """Zero-shot classification, and both embeddings, of images that are resized to their own size."""
    import torch
    import transformers
    from PIL import Image

    checkpoint = save_vision(tmp_path / "checkpoint", model_type)
    assert intaglio.export(str(checkpoint), tmp_path / "bundle").passed
    labels = ["a cat", "two dogs; on the beach", "7"]
    paths = []
    for number, picture in enumerate(images(SIZE, SIZE, 3)):
        paths.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(picture).save(paths[-1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    padding: Any = {"padding": "max_length", "max_length": 40} if model_type == "siglip" else {"padding": True}
    tokens = tokenizer(labels, return_tensors="pt", **padding)
    tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")[: 1 if model_type == "siglip" else 2]}
    pixels = library_processor(checkpoint)([Image.open(path) for path in paths], return_tensors="np")["pixel_values"]
    model = transformers.AutoModel.from_pretrained(checkpoint).eval()
    with torch.inference_mode():
        wanted = model(pixel_values=torch.from_numpy(pixels.astype(np.float32)), **tokens)
    logits = wanted.logits_per_image
    probabilities = logits.sigmoid() if model_type == "siglip" else logits.softmax(-1)
    found = list(intaglio.run(tmp_path / "bundle", paths, labels=labels))
    for result, row in zip(found, probabilities.tolist(), strict=True):
        assert result.scores == pytest.approx(dict(zip(labels, row, strict=True)), abs=2e-5)
        assert result.label == labels[int(np.argmax(row))]
    embedded = [result.embedding for result in intaglio.run(tmp_path / "bundle", paths)]
    assert_close(np.stack(embedded), wanted.image_embeds)
    texts = [result.embedding for result in intaglio.run(tmp_path / "bundle", labels, embed_texts=True, batch_size=2)]
    assert_close(np.stack(texts), wanted.text_embeds)
    assert intaglio.validate(tmp_path / "bundle").passed
    assert_compressed(tmp_path / "bundle", tmp_path)
    proved(
        model_type,
        "images",
        "traced",
        tested=["embedding", "texts"],
        recipes=list(RECIPES),
        targets=["ort-cpu"],
    )


@pytest.mark.proof
def test_quantised_vit_computes_in_8_bits(tmp_path: Path) -> None:
    """The linear layers are quantised, and the image processor is not."""
    from PIL import Image

    checkpoint = save_vision(tmp_path / "checkpoint", "vit")
    intaglio.export(str(checkpoint), tmp_path / "bundle")
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, picture in enumerate(images(70, 50, 4)):
        Image.fromarray(picture).save(folder / f"{number}.png")
    compress(tmp_path / "bundle", tmp_path / "small", recipe="int8-qdq", calibration=folder)
    passes = {each.name: each.counts for each in Bundle.open(tmp_path / "small").manifest.passes}
    assert passes["quantize_weights"]["weights"] == 12 and passes["quantize_activations"]
    feeds = feeds_of(tmp_path / "bundle")
    with open_engine(tmp_path / "bundle") as first, open_engine(tmp_path / "small") as second:
        assert cosine(*(engine.run(feeds)["image_embedding"] for engine in (first, second))) > 0.99


@pytest.mark.proof
def test_graph_behind_the_image_processor_builds_for_gpus(tmp_path: Path) -> None:
    """TensorRT has no resizing with antialias; with --features images are processed elsewhere."""
    checkpoint = save_vision(tmp_path / "checkpoint", "vit", CLASSES)
    assert intaglio.export(str(checkpoint), tmp_path / "bundle", dtype="float16", features=True).passed
    (spec,) = Bundle.open(tmp_path / "bundle").manifest.inputs
    assert (spec.name, spec.dtype, spec.shape) == ("pixel_values", "float16", ("batch", 3, SIZE, SIZE))
    arrays = np.random.default_rng(0).standard_normal((3, 3, SIZE, SIZE)).astype(np.float16)
    np.savez(tmp_path / "arrays.npz", pixel_values=arrays)
    intaglio.compress(tmp_path / "bundle", tmp_path / "small", recipe="int8-weights")
    assert intaglio.validate(
        tmp_path / "small", against=tmp_path / "bundle", data=tmp_path / "arrays.npz", bound={"label_agreement": 0.3}
    ).passed
    with pytest.raises(
        intaglio.BundleError, match=r"takes images that are processed elsewhere \(intaglio export --features\)"
    ):
        list(intaglio.run(tmp_path / "bundle", ["photo.png"]))
    with pytest.raises(intaglio.UsageError, match=r"so it needs arrays\. Give them with --data FILE\.npz"):
        intaglio.validate(tmp_path / "bundle")
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    built = intaglio.build(tmp_path / "bundle", target="tensorrt-rtx", gpus=["t4", "a100"])
    assert {engine.gpu for engine in built.engines} == {"t4", "a100"}


@pytest.mark.proof
def test_model_with_random_outputs_is_refused(tmp_path: Path) -> None:
    checkpoint = save_vision(tmp_path / "checkpoint", "vit_mae")
    with pytest.raises(intaglio.SourceError, match="returns other numbers each time"):
        intaglio.export(str(checkpoint), tmp_path / "bundle")
