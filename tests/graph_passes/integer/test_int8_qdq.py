"""The recipes int8-qdq and int8-weights as users run them: on texts, images and decoders, and with float16 after."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from intaglio.bundle.bundle import Bundle, PassRecord
from intaglio.bundle.model_file import load
from intaglio.errors import GraphError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.graph_passes.integer.integer_embedding import IntegerEmbedding
from intaglio.runtime import open_engine
from intaglio.runtime.engines.build import build
from intaglio.runtime.text.chunks import load_chunks
from intaglio.runtime.text.tokenizer import Tokenizer
from intaglio.samples.sentences import sentences

Array = npt.NDArray[Any]
Run = Callable[..., tuple[int, str, str]]

TEXTS = ["a cat", "one rather longer sentence, with a tail", "x", "12 words; or fewer (it depends)", "dogs and cats"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS))
    return path


@pytest.fixture(scope="module")
def tiny_qdq(tiny_bundle: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qdq") / "tiny"
    compress(tiny_bundle, path, "int8-qdq", calibration=texts)
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "images.npz"
    np.savez(path, pixel_values=np.random.default_rng(1).normal(size=(12, 3, 32, 32)).astype(np.float32))
    return path


@pytest.fixture(scope="module")
def vision_transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a random ViT that torch exported: patches by Conv, no embedding table."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            transformers.ViTModel(config, add_pooling_layer=False).eval(),
            (torch.randn(2, 3, 32, 32),),
            folder / "vit.onnx",
            dynamo=True,
            opset_version=23,
            input_names=["pixel_values"],
            output_names=["last_hidden_state"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    export(str(folder / "vit.onnx"), folder / "vit")
    return folder / "vit"


def embeddings(bundle: Path) -> Array:
    with open_engine(bundle) as engine:
        return engine.run(Tokenizer.open(Bundle.open(bundle)).feeds(TEXTS))["sentence_embedding"]


def cosines(a: Array, b: Array) -> Array:
    a, b = a.astype(np.float32), b.astype(np.float32)
    result: Array = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    return result


def record(bundle: Path, name: str) -> PassRecord:
    return next(each for each in Bundle.open(bundle).manifest.passes if each.name == name)


def adopt(graph: str, weights: dict[str, Array], folder: Path, opset: int = 23) -> Path:
    """The bundle of a graph written as text."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> agraph {graph}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, folder / "model.onnx")
    export(str(folder / "model.onnx"), folder / "bundle")
    return folder / "bundle"


# Embedding tables


@pytest.mark.parametrize("recipe", ["int8-qdq", "int8-weights"])
def test_embedding_tables_are_stored_in_int8(tiny_bundle: Path, texts: Path, tmp_path: Path, recipe: str) -> None:
    compress(tiny_bundle, tmp_path / "out", recipe, calibration=texts if recipe == "int8-qdq" else None)
    assert record(tmp_path / "out", "integer_embedding").counts == {"tables": 3}
    weights = load(tmp_path / "out" / "model.onnx").graph.initializers.values()
    matrices = {value.dtype for value in weights if value.shape is not None and len(value.shape) == 2}
    assert matrices == {ir.DataType.INT8, ir.DataType.INT64}  # int64: the positions' own ids
    assert cosines(embeddings(tiny_bundle), embeddings(tmp_path / "out")).min() > 0.97


TIED = "x = Gather(t, ids) n = LayerNormalization(x, g) h = Transpose(t) y = MatMul(n, h)"
TWICE = "p = Gather(t, ids) q = Gather(t, ids) x = Add(p, q) y = LayerNormalization(x, g)"


def with_table(parse: Callable[..., ir.Model], body: str, channels: int, table: Array) -> ir.Model:
    weights = {"t": table, "g": np.ones(8, table.dtype)}
    dtype = "float16" if table.dtype == np.float16 else "float"
    return parse(f"(int64[b, s] ids) => ({dtype}[b, s, {channels}] y) {{ {body} }}", weights)


def tables(model: ir.Model) -> list[str]:
    return sorted(name for name, value in model.graph.initializers.items() if len(value.shape or ()) == 2)


def test_table_tied_to_the_head_is_stored_once(parse: Callable[..., ir.Model]) -> None:
    table = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    model, counts = IntegerEmbedding(where="everywhere")(with_table(parse, TIED, 20, table))
    assert (counts.rewritten, counts.reasons) == ({}, ["t is used by Transpose too"])
    assert tables(model) == ["t"]
    model, counts = IntegerEmbedding()(model)  # required by integer-only encoders
    assert (counts.rewritten, counts.reasons) == ({"tables": 1}, ["t is used by Transpose too"])
    assert tables(model) == ["t", "t_int8"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_table_with_two_consumers_is_stored_once(
    parse: Callable[..., ir.Model], compute: Callable[..., list[Array]], dtype: type[np.floating[Any]]
) -> None:
    table = np.random.default_rng(0).normal(size=(20, 8)).astype(dtype)
    model = with_table(parse, TWICE, 8, table)
    ids = np.array([[0, 19, 7]])
    (expected,) = compute(model, ids=ids)
    model, counts = IntegerEmbedding(where="everywhere")(model)
    assert counts.rewritten == {"tables": 1} and tables(model) == ["t_int8"]
    (got,) = compute(model, ids=ids)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, atol=0.05)


def test_table_with_nan_is_named(parse: Callable[..., ir.Model]) -> None:
    table = np.full((20, 8), np.nan, np.float32)
    with pytest.raises(GraphError, match="t: contains NaN or infinity, expected finite weights"):
        IntegerEmbedding(where="everywhere")(with_table(parse, TWICE, 8, table))


def test_int8_weights_accepts_a_float16_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    compress(tiny_bundle, tmp_path / "half", "float16")
    compress(tmp_path / "half", tmp_path / "out", "int8-weights")
    assert record(tmp_path / "out", "quantize_weights").counts == {"weights": 12}
    assert record(tmp_path / "out", "integer_embedding").counts == {"tables": 3}
    assert cosines(embeddings(tiny_bundle), embeddings(tmp_path / "out")).min() > 0.99


# float16


@pytest.mark.parametrize("recipe", ["int8-qdq", "int8-only"])
def test_float16_bundle_is_refused_before_calibration(
    intaglio: Run, tiny_bundle: Path, texts: Path, tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress(tiny_bundle, tmp_path / "half", "float16")
    monkeypatch.setattr("intaglio.graph_passes.calibration.calibrate.OnnxRuntimeEngine", None)
    command = ["compress", tmp_path / "half", "-o", tmp_path / "out", "--recipe", recipe, "--calibration", texts]
    code, _, error = intaglio(*command)
    assert code == 2 and error.count("\n") == 1
    assert "computes in float16, expected float32. Compress the float32 bundle" in error
    assert "--recipe float16" in error
    assert not (tmp_path / "out").exists()


def test_float16_after_int8_qdq_keeps_the_embeddings(tiny_bundle: Path, tiny_qdq: Path, tmp_path: Path) -> None:
    compress(tiny_qdq, tmp_path / "half", "float16")
    weights = load(tmp_path / "half" / "model.onnx").graph.initializers.values()
    assert not any(value.dtype == ir.DataType.FLOAT for value in weights)
    assert record(tmp_path / "half", "float16").counts["weights"] > 0
    assert cosines(embeddings(tiny_qdq), embeddings(tmp_path / "half")).min() > 0.999
    assert cosines(embeddings(tiny_bundle), embeddings(tmp_path / "half")).min() > 0.97


def test_float16_after_int8_qdq_builds_for_t4_with_int8_tables(tiny_qdq: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    compress(tiny_qdq, tmp_path / "half", "float16")
    (engine,) = build(tmp_path / "half", "tensorrt-rtx", gpus=["t4"]).engines
    assert (engine.sm, (tmp_path / "half" / engine.path).stat().st_size) == (75, engine.bytes)


@pytest.mark.proof  # the tests above cover tiny models
def test_real_model_in_int8_and_float16_keeps_its_accuracy(minilm_bundle: Path, tmp_path: Path) -> None:
    """The README's way to a T4; calibrated on prose, evaluated on other sentences."""
    prose = (Path(__file__).parents[3] / "examples" / "language_models" / "calibration.txt").read_text()
    paragraphs = [" ".join(block.split()) for block in prose.split("\n\n")]
    (tmp_path / "texts.txt").write_text("\n".join([each for each in paragraphs if 60 < len(each) < 600][:256:4]))
    small = compress(minilm_bundle, tmp_path / "qdq", "int8-qdq", calibration=tmp_path / "texts.txt")
    assert small.bytes_after <= 0.26 * small.bytes_before
    compress(tmp_path / "qdq", tmp_path / "half", "float16")
    feeds = Tokenizer.open(Bundle.open(minilm_bundle)).feeds(sentences()[:32])
    found = []
    for bundle in (minilm_bundle, tmp_path / "half"):
        with open_engine(bundle) as engine:
            found.append(engine.run(feeds)["sentence_embedding"])
    assert cosines(*found).mean() >= 0.995 and cosines(*found).min() >= 0.985, cosines(*found)


# Graphs other than text encoders


@pytest.mark.proof
def test_vision_transformer_stays_accurate_in_int8(vision_transformer: Path, images: Path, tmp_path: Path) -> None:
    compress(vision_transformer, tmp_path / "out", "int8-qdq", calibration=images)
    assert record(tmp_path / "out", "quantize_weights").counts == {"weights": 6}
    assert record(tmp_path / "out", "quantize_activations").counts == {"8-bit activations": 8}
    assert record(tmp_path / "out", "calibrate").counts == {"activations observed": 37, "samples": 12}
    feeds = {"pixel_values": np.random.default_rng(2).normal(size=(4, 3, 32, 32)).astype(np.float32)}
    with open_engine(vision_transformer) as before, open_engine(tmp_path / "out") as after:
        a, b = (engine.run(feeds)["last_hidden_state"] for engine in (before, after))
    assert cosines(a, b).min() > 0.995
    assert np.abs(a - b).max() > 1e-4, "something was rounded"


@pytest.mark.proof
def test_int8_only_names_recipes_for_image_models(
    intaglio: Run, vision_transformer: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intaglio.graph_passes.calibration.calibrate.OnnxRuntimeEngine", None)
    command = ["compress", vision_transformer, "-o", tmp_path / "out", "--recipe", "int8-only"]
    code, _, error = intaglio(*command, "--calibration", images)
    assert code == 2 and error.count("\n") == 1
    assert "got a graph (inputs pixel_values) without an embedding table for token ids" in error
    assert "Use the recipe int8-qdq" in error


@pytest.mark.parametrize("norm", ["LayerNormalization(h, g)", "RMSNormalization(h, g)", "Relu(h)"])
def test_matrix_products_of_graph_inputs_are_found(norm: str, tmp_path: Path) -> None:
    """A product that uses an input of the graph, and a graph that ends with another norm or with none."""
    random = np.random.default_rng(3)
    weights = {"w": random.normal(size=(8, 8)).astype(np.float32), "g": np.ones(8, np.float32)}
    used = {name: array for name, array in weights.items() if name == "w" or "g)" in norm}
    bundle = adopt(f"(float[b, t, 8] x) => (float[b, t, 8] y) {{ h = MatMul(x, w) y = {norm} }}", used, tmp_path)
    feeds = {"x": random.normal(size=(4, 5, 8)).astype(np.float32)}
    np.savez(tmp_path / "x.npz", **feeds)
    compress(bundle, tmp_path / "out", "int8-qdq", calibration=tmp_path / "x.npz")
    assert record(tmp_path / "out", "quantize_activations").counts == {"8-bit activations": 1}
    with open_engine(bundle) as before, open_engine(tmp_path / "out") as after:
        a, b = (engine.run(feeds)["y"] for engine in (before, after))
    assert 1e-6 < np.abs(a - b).max() < 0.1 * np.abs(a).max()


def test_encoder_without_a_normalisation_is_refused_by_int8_only(tmp_path: Path) -> None:
    table = np.ones((9, 8), np.float32)
    bundle = adopt("(int64[b, t] ids) => (float[b, t, 8] y) { x = Gather(t, ids) y = Relu(x) }", {"t": table}, tmp_path)
    np.savez(tmp_path / "ids.npz", ids=np.zeros((2, 3), np.int64))
    with pytest.raises(GraphError, match="without a LayerNormalization after an embedding table"):
        compress(bundle, tmp_path / "out", "int8-only", calibration=tmp_path / "ids.npz")


# Decoders


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prose") / "prose.txt"
    path.write_text("\n".join(sentences()))
    return path


def test_int8_qdq_calibrates_on_tokens_of_a_decoder_only(tiny_decoder: Path, prose: Path, tmp_path: Path) -> None:
    compress(tiny_decoder, tmp_path / "out", "int8-qdq", calibration=prose)
    batches, used = load_chunks(Bundle.open(tiny_decoder), prose, 128, 8, "--calibration")
    tokens = sum(batch["input_ids"].size for batch in batches)
    done = record(tmp_path / "out", "calibrate")
    assert (done.counts["samples"], done.counts["tokens"]) == (used.samples, tokens)
    assert Bundle.open(tmp_path / "out").manifest.calibration.tokens == tokens
    assert not any("attention_mask" in reason for reason in done.reasons)


def test_decoder_in_int8_keeps_its_logits(tiny_decoder: Path, prose: Path, tmp_path: Path) -> None:
    compress(tiny_decoder, tmp_path / "out", "int8-qdq", calibration=prose)
    assert record(tmp_path / "out", "quantize_activations").counts["8-bit activations"] > 0
    feeds = load_chunks(Bundle.open(tiny_decoder), prose, 4, 4, "--data")[0][0]
    with open_engine(tiny_decoder) as before, open_engine(tmp_path / "out") as after:
        a, b = (engine.run(feeds)["logits"] for engine in (before, after))
    assert cosines(a, b).min() > 0.99
    assert np.abs(a - b).max() > 1e-5, "something was rounded"


def test_int8_only_names_recipes_for_decoders(
    intaglio: Run, tiny_decoder: Path, prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intaglio.graph_passes.calibration.calibrate.OnnxRuntimeEngine", None)
    command = ["compress", tiny_decoder, "-o", tmp_path / "out", "--recipe", "int8-only", "--calibration", prose]
    code, _, error = intaglio(*command)
    assert code == 2 and error.count("\n") == 1
    assert "expected an encoder, got a decoder (it has the input past_key_0)" in error
    assert "int8-qdq" in error and "gptq" in error
    assert not (tmp_path / "out").exists()


# Names


def test_new_nodes_are_named_after_their_layers(tiny_bundle: Path, tiny_qdq: Path) -> None:
    before = load(tiny_bundle / "model.onnx")
    known = {str(node.name) for node in before.graph} | set(before.graph.initializers) | {"last_hidden_state"}
    nodes = list(load(tiny_qdq / "model.onnx").graph)
    names = [str(node.name) for node in nodes]
    assert len(set(names)) == len(names) > len(list(before.graph))
    assert all(name.startswith(tuple(known)) for name in names)
    assert all(node.outputs[0].name in (node.name, "last_hidden_state", "sentence_embedding") for node in nodes)
