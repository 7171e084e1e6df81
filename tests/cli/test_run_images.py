"""Running bundles of models that read images: the command line and Python; graphs are written here, without PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tiny_encoders import LETTERS, VOCABULARY, write_letter_tokenizer

import intaglio
from intaglio.bundle.bundle import (
    FORMAT,
    Axis,
    Bundle,
    Image,
    Manifest,
    Source,
    TensorSpec,
    TextTower,
    create,
    tensor_spec,
)
from intaglio.bundle.model_file import save
from intaglio.cli import cli
from intaglio.errors import BundleError, IntaglioError, UsageError
from intaglio.exporters.vision.front_end import add_front_end
from intaglio.exporters.vision.image_processor import ImageProcessor
from intaglio.runtime.modalities.images import load_images
from intaglio.samples.images import images

SIDE = 4
MEANS = ImageProcessor(SIDE, SIDE, False, None, "bilinear", 1 / 255, (0.0,) * 3, (1.0,) * 3)
SHORTEST = ImageProcessor(SIDE + 2, SIDE + 2, True, (SIDE, SIDE), "bicubic", 1 / 255, (0.0,) * 3, (1.0,) * 3)


def write_bundle(folder: Path, task: str = "classify", processor: ImageProcessor = MEANS, **fields: Any) -> Path:
    """A bundle whose output is the mean of each colour: the class of an image is its strongest one."""
    pixels = ir.Value(
        name="pixel_values", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["batch", 3, SIDE, SIDE])
    )
    axes = ir.Value(name="axes", const_value=ir.tensor(np.array([2, 3]), name="axes"))
    node = ir.node("ReduceMean", [pixels, axes], attributes={"keepdims": 0}, name="mean")
    output = node.outputs[0]
    output.name = "logits" if task == "classify" else "image_embedding"
    output.type, output.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch", 3])
    graph = ir.Graph([pixels], [output], nodes=[node], initializers=[axes], opset_imports={"": 23}, name="means")
    model = ir.Model(graph, ir_version=11)
    add_front_end(model, processor)
    manifest = Manifest(
        format=FORMAT,
        created_by="test",
        source=Source("onnx", "test"),
        family="vit",
        architecture="ViTModel",
        task=task,
        dtype="float32",
        inputs=[tensor_spec(value) for value in graph.inputs],
        outputs=[tensor_spec(value) for value in graph.outputs],
        axes={"batch": Axis(), "height": Axis(), "width": Axis()},
        labels=["red", "green", "blue"] if task == "classify" else [],
        image=processor.image,
    )
    for name, value in fields.items():
        setattr(manifest, name, value)
    with create(folder) as draft:
        draft.manifest = manifest
        save(model, draft.model_path)
        if manifest.text is not None:
            save(text_graph(), draft.path / manifest.text.file)
            write_letter_tokenizer(draft.path)
    return folder


TABLE = np.random.default_rng(0).normal(size=(VOCABULARY, 3)).astype(np.float32)
PADDED = 8
IDS = TensorSpec("input_ids", "int64", ("batch", PADDED))
TEXT = TextTower("text.onnx", (IDS,), (TensorSpec("text_embedding", "float32", ("batch", 3)),), 2.0, 0.5, PADDED)


def text_graph() -> ir.Model:
    """The embedding of a text is the sum of its tokens' rows, and of the padding's."""
    ids = ir.Value(name="input_ids", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(IDS.shape))
    table = ir.Value(name="table", const_value=ir.tensor(TABLE, name="table"))
    axes = ir.Value(name="axes", const_value=ir.tensor(np.array([1]), name="axes"))
    rows = ir.node("Gather", [table, ids], name="rows")
    total = ir.node("ReduceSum", [rows.outputs[0], axes], attributes={"keepdims": 0}, name="sum")
    output = total.outputs[0]
    output.name, output.type, output.shape = (
        "text_embedding", ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch", 3])
    )  # fmt: skip
    graph = ir.Graph(
        [ids], [output], nodes=[rows, total], initializers=[table, axes], opset_imports={"": 23}, name="text"
    )
    return ir.Model(graph, ir_version=11)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("images") / "colours")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("images") / "means", "embed", SHORTEST)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images of one size, and one of another."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("photos")
    for name, size, colour in (("a", (9, 7), (255, 0, 51)), ("b", (9, 7), (0, 102, 51)), ("c", (5, 8), (0, 0, 255))):
        Image.new("RGB", size, colour).save(folder / f"{name}.png")
    return folder


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["run", *map(str, arguments)])


def test_classes_of_a_folder_are_named_after_their_files(classifier: Path, photos: Path) -> None:
    result = run(classifier, "--input", photos)
    lines = result.output.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        f"{photos}/a.png: red", f"{photos}/b.png: green", f"{photos}/c.png: blue"
    ]  # fmt: skip
    assert run(classifier, photos / "c.png").output.startswith("blue  (blue 0.5")


def test_json_has_one_object_for_each_image(classifier: Path, embedder: Path, photos: Path) -> None:
    found = json.loads(run(classifier, photos / "a.png", "--json").output)
    assert found["text"] == str(photos / "a.png") and found["label"] == "red"
    assert list(found["scores"]) == ["red", "blue", "green"] and sum(found["scores"].values()) == pytest.approx(1)
    lines = [json.loads(line) for line in run(embedder, "--input", photos, "--json").output.splitlines()]
    colours = [(1, 0, 0.2), (0, 0.4, 0.2), (0, 0, 1)]
    for line, colour in zip(lines, colours, strict=True):
        assert line["embedding"] == pytest.approx(colour, abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_results_are_independent_of_the_batch_size(classifier: Path, tmp_path: Path, batch_size: int) -> None:
    from PIL import Image

    paths = []
    for number, size in enumerate([(9, 7), (9, 7), (9, 7), (5, 8), (9, 7)]):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(images(*size, number + 1)[number]).save(paths[-1])
    alone = [next(iter(intaglio.run(classifier, [str(path)]))) for path in paths]
    together = list(intaglio.run(classifier, map(str, paths), batch_size=batch_size))
    assert [each.text for each in together] == [str(path) for path in paths]
    for first, second in zip(alone, together, strict=True):
        assert first.scores == pytest.approx(second.scores)


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("images") / "towers", "embed", MEANS, text=TEXT)


def text_embedding(text: str) -> np.ndarray[Any, Any]:
    """With the tokens of the letter tokenizer: [CLS], the letters, [SEP], and padding."""
    later = [len(LETTERS) + LETTERS.index(letter) - 5 for letter in text[1:]]  # of a word
    ids = [2, LETTERS.index(text[0]), *later, 3]
    return TABLE[ids + [0] * (PADDED - len(ids))].sum(0)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_scores_match_the_texts(activation: str, towers: Path, photos: Path, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", "embed", MEANS, text=TEXT, activation=activation)
    logits = np.array([text_embedding(text) @ [1, 0, 0.2] * 2 + 0.5 for text in ("a", "bcd")], np.float64)
    wanted = 1 / (1 + np.exp(-logits)) if activation == "sigmoid" else np.exp(logits) / np.exp(logits).sum()
    found = json.loads(run(bundle, photos / "a.png", "--labels", "a, bcd", "--json").output)
    assert found["scores"] == pytest.approx(dict(zip(["a", "bcd"], wanted, strict=True)), abs=1e-5)
    assert found["label"] == ["a", "bcd"][int(wanted.argmax())]
    embedded = [json.loads(line) for line in run(towers, "--embed-texts", "bcd", "a", "--json").output.splitlines()]
    for line, text in zip(embedded, ("bcd", "a"), strict=True):
        assert line["text"] == text and line["embedding"] == pytest.approx(text_embedding(text), abs=1e-5)
    image = json.loads(run(towers, photos / "a.png", "--json").output)
    assert image["embedding"] == pytest.approx([1, 0, 0.2], abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.png", "--labels", "a,,b"], "expected different texts that are not empty"),
        (["a.png", "--labels", "a,a"], "expected different texts that are not empty"),
        (["a.png", "--labels", ""], "expected different texts that are not empty"),
        (["a.png", "--labels", "a much longer text"], "the model takes at most 8"),
        (["abcdefgh", "--embed-texts"], "the model takes at most 8: 'abcdefgh'"),
        (["a", "--embed-texts", "--labels", "b"], "--labels are compared with images, and --embed-texts embeds texts"),
    ],
)
def test_wrong_texts_are_refused_in_one_line(
    arguments: Sequence[str], message: str, towers: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    result = run(towers, *arguments)
    assert isinstance(result.exception, UsageError) and message in str(result.exception)
    assert "\n" not in str(result.exception)


BAD: list[tuple[Sequence[str], str]] = [
    ([], "images are given as arguments or by --input, got neither"),
    (["a.png", "--input", "b.png"], "images are given as arguments or by --input, got both"),
    (["missing.png"], "image missing.png: No such file or directory"),
    (["a.png", "--similarity"], "--similarity compares embeddings of texts, and the bundle takes images"),
    (["a.png", "--query", "x"], "--query is for classifiers of texts, and the bundle takes images"),
    (["a.png", "--prompt-name", "x"], "--prompt-name is for embeddings of texts, and the bundle takes images"),
    (["a.png", "--beam", "3"], "--beam is for speech recognisers, and "),
    (["a.png", "--labels", "a,b"], "reads images and no texts"),
    (["a text", "--embed-texts"], "reads images and no texts"),
    (["a.png", "--batch-size", "0"], "batch size 0: expected at least 1"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=range(len(BAD)))
def test_wrong_options_are_refused_in_one_line(arguments: Sequence[str], message: str, classifier: Path) -> None:
    result = run(classifier, *arguments)
    assert isinstance(result.exception, UsageError) and not result.output
    assert message in str(result.exception) and "\n" not in str(result.exception)


def test_labels_are_refused_for_a_model_without_texts(classifier: Path) -> None:
    with pytest.raises(UsageError, match="labels and embed_texts are for a model that compares images with texts"):
        intaglio.run(classifier, ["a.png"], labels=["a"])


DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"labels": ["a"]}, "its labels or activation do not fit its output"),
    ({"activation": "cubic"}, "its labels or activation do not fit its output"),
    ({"task": "fill-mask"}, "its task is 'fill-mask', and it has no output for it"),
    ({"image": Image(0, 4)}, "the image's height is 0, expected 1 to 8192"),
    ({"image": Image(4, 10**9)}, "the image's width is 1000000000, expected 1 to 8192"),
    (
        {"image": Image(4, 4, resample="nearest")},
        "the image's resample is 'nearest', expected one of bilinear, bicubic",
    ),
    ({"text": replace(TEXT, padded_to=10**9)}, "texts are padded to 1000000000 tokens"),
    ({"text": replace(TEXT, padded_to=-1)}, "texts are padded to -1 tokens"),
    ({"text": replace(TEXT, inputs=())}, "lists the inputs , text.onnx has input_ids"),
    ({"text": replace(TEXT, outputs=(IDS,))}, "lists the outputs input_ids, text.onnx has text_embedding"),
]


@pytest.mark.parametrize(("fields", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_manifest_is_refused_in_one_line(
    fields: dict[str, Any], message: str, tmp_path: Path, photos: Path
) -> None:
    bundle = write_bundle(tmp_path / "bundle", **fields)
    with pytest.raises(BundleError) as caught:
        list(intaglio.run(bundle, [str(photos / "a.png")]))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_images_to_compare_are_not_resized_by_the_graph(embedder: Path, photos: Path) -> None:
    """So two models, or a model and its source, are compared on the same numbers."""
    bundle = Bundle.open(embedder)
    feeds, used = load_images(bundle, photos, 9, 9)
    assert [batch["pixels"].shape for batch in feeds] == [(2, 3, 6, 7), (1, 3, 9, 6)]
    assert (used.samples, used.available, used.batches) == (3, 3, 2)
    shipped, used = load_images(bundle, None, 3, 2)
    assert [batch["pixels"].shape for batch in shipped] == [(2, 3, 6, 6), (1, 3, 6, 6)] and used.available == 16
    assert shipped[0]["pixels"].dtype == np.uint8 and shipped[0]["pixels"].std() > 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve"], "reads images, no texts"),
        (["roofline"], "reads images, and rooflines are of models of texts"),
        (["deploy", "triton", "-o", "repository"], "reads images, expected a model of texts"),
    ],
)
def test_verbs_for_texts_refuse_it_in_one_line(
    arguments: Sequence[str], message: str, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, [*arguments, str(classifier)])
    assert isinstance(result.exception, IntaglioError) and message in str(result.exception)
    assert "\n" not in str(result.exception) and not list(tmp_path.iterdir())


@pytest.mark.proof
def test_bench_measures_images(classifier: Path) -> None:
    result = CliRunner().invoke(cli, ["bench", str(classifier), "--requests", "2", "--rounds", "1", "--json"])
    found = json.loads(result.output)
    assert found["kind"] == "image encoder" and found["unit"] == "images"
