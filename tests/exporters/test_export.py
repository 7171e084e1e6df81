"""The exported graph: accuracy on the real model, weights, layers, poolings and dtypes."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from covering import few

from intaglio.bundle.bundle import Axis, Bundle, Source
from intaglio.bundle.model_file import load
from intaglio.errors import SourceError
from intaglio.exporters import export, load_module
from intaglio.exporters.encoders.reference import reference_outputs
from intaglio.exporters.onnx_file import adopt
from intaglio.runtime import open_engine, run
from intaglio.runtime.text.tokenizer import Tokenizer
from intaglio.samples.sentences import sentences

HIDDEN, VOCABULARY = 32, 98  # of the checkpoints in conftest


def test_real_model_agrees_with_pytorch_on_64_sentences(minilm_bundle: Path) -> None:
    bundle = Bundle.open(minilm_bundle)
    module = load_module(bundle.manifest.source)
    with open_engine(minilm_bundle) as engine:
        for feeds in Tokenizer.open(bundle).batches(sentences()[:64], 16):
            expected, actual = reference_outputs(module, dict(feeds)), engine.run(dict(feeds))
            real = feeds["attention_mask"] == 1
            error = np.abs(actual["last_hidden_state"][real] - expected["last_hidden_state"][real])
            assert error.max() <= 1e-4
            cosines = (actual["sentence_embedding"] * expected["sentence_embedding"]).sum(-1)
            assert cosines.min() >= 0.99999


def test_real_model_ranks_paraphrases_first(minilm_bundle: Path) -> None:
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "Stock markets fell on Monday."]
    cat, kitten, stocks = (np.array(result.embedding) for result in run(minilm_bundle, texts))
    assert cat @ kitten > 0.5 > 0.2 > cat @ stocks


def test_graph_uses_fused_operators(minilm_bundle: Path) -> None:
    types = [node.op_type for node in load(minilm_bundle / "model.onnx").graph]
    assert {name: types.count(name) for name in ("Gelu", "LayerNormalization", "Softmax", "Erf", "ReduceMean")} == {
        "Gelu": 6,
        "LayerNormalization": 13,
        "Softmax": 6,
        "Erf": 0,
        "ReduceMean": 0,
    }


def test_manifest_lists_the_graph_inputs(minilm_bundle: Path) -> None:
    manifest = Bundle.open(minilm_bundle).manifest
    assert manifest.axes == {"batch": Axis(1, None), "sequence": Axis(1, 512)}
    assert [(spec.name, spec.shape) for spec in manifest.outputs] == [
        ("last_hidden_state", ("batch", "sequence", 384)),
        ("sentence_embedding", ("batch", 384)),
    ]
    assert manifest.source.sha256.keys() == {
        "model.safetensors",
        "config.json",
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
    }
    assert manifest.truncation == 256


def test_each_layer_names_the_output_of_its_module(tiny_bundle: Path) -> None:
    import torch

    bundle = Bundle.open(tiny_bundle)
    module = load_module(bundle.manifest.source)
    returned: dict[str, torch.Tensor] = {}

    def keep(path: str) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            returned[path] = output[0] if isinstance(output, tuple) else output

        return hook

    for path in bundle.manifest.layers:
        module.get_submodule(path).register_forward_hook(keep(path))
    feeds = Tokenizer.open(bundle).feeds(["one text"])
    reference_outputs(module, dict(feeds))
    blocks = [path for path in bundle.manifest.layers if path.rsplit(".", 1)[-1].isdecimal()]
    assert blocks == ["model.encoder.layer.0", "model.encoder.layer.1"]
    model = onnx.load(bundle.model_path)
    paths = {value: path for path, value in bundle.manifest.layers.items() if path in returned}
    assert len(paths) > 15
    model.graph.output.extend(onnx.ValueInfoProto(name=value) for value in paths)
    session = onnx.reference.ReferenceEvaluator(model)
    for (value, path), found in zip(paths.items(), session.run(list(paths), feeds), strict=True):
        np.testing.assert_allclose(found, returned[path].numpy(), atol=1e-5, err_msg=f"{path}: {value}")


def test_nodes_and_values_are_named_after_modules(tiny_bundle: Path) -> None:
    nodes = [node for node in load(tiny_bundle / "model.onnx").graph if "layer.1." in str(node.name)]
    assert [str(node.name).removeprefix("model.encoder.layer.1.") for node in nodes] == [
        "attention.self.query/MatMul",
        "attention.self.query/Add",
        "attention.self/Reshape",
        "attention.self/Transpose",
        "attention.self.key/MatMul",
        "attention.self.key/Add",
        "attention.self/Reshape_2",
        "attention.self.value/MatMul",
        "attention.self.value/Add",
        "attention.self/Reshape_3",
        "attention.self/Transpose_2",
        "attention.self/Transpose_3",
        "attention.self/MatMul",
        "attention.self/Mul",
        "attention.self/Add",
        "attention.self/Softmax",
        "attention.self/MatMul_2",
        "attention.self/Transpose_4",
        "attention.self/Reshape_4",
        "attention.output.dense/MatMul",
        "attention.output.dense/Add",
        "attention.output/Add",
        "attention.output.LayerNorm/LayerNormalization",
        "intermediate.dense/MatMul",
        "intermediate.dense/Add",
        "intermediate.intermediate_act_fn/Gelu",
        "output.dense/MatMul",
        "output.dense/Add",
        "output/Add",
        "output.LayerNorm/LayerNormalization",
    ]
    assert [node.outputs[0].name for node in nodes[:-1]] == [node.name for node in nodes[:-1]]
    assert nodes[-1].outputs[0].name == "last_hidden_state"


@pytest.mark.proof
def test_tied_weights_are_stored_once(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_checkpoint("BertForMaskedLM", num_hidden_layers=1)
    assert export(str(folder), tmp_path / "bundle", check=False).passed is None
    shapes = [value.shape for value in load(tmp_path / "bundle" / "model.onnx").graph.initializers.values()]
    assert [list(shape) for shape in shapes if shape is not None and VOCABULARY in shape and len(shape) == 2] == [
        [VOCABULARY, HIDDEN]
    ]
    assert (tmp_path / "bundle" / "model.onnx").stat().st_size < (folder / "model.safetensors").stat().st_size + 40_000


@pytest.mark.proof
def test_half_precision_halves_the_weights_and_keeps_the_embeddings(one_layer_checkpoint: Path, tmp_path: Path) -> None:
    result = export(str(one_layer_checkpoint), tmp_path / "half", dtype="float16")
    assert result.passed
    outputs = {spec.name: spec.dtype for spec in Bundle.open(tmp_path / "half").manifest.outputs}
    assert outputs == {"last_hidden_state": "float16", "sentence_embedding": "float32"}
    weights = load(tmp_path / "half" / "model.onnx").graph.initializers.values()
    matrices = {value.dtype for value in weights if value.shape is not None and len(value.shape) == 2}
    assert {dtype.numpy().name for dtype in matrices if dtype is not None} == {"float16", "int64"}


@pytest.mark.parametrize("dtype", few(["float16", "bfloat16"], ["bfloat16"]))
def test_half_precision_checkpoint_is_exported_in_single_precision(
    dtype: str, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    import torch
    import transformers

    folder = make_checkpoint("DistilBertModel", num_hidden_layers=1)
    transformers.AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).save_pretrained(folder)
    result = export(str(folder), tmp_path / "bundle")
    assert result.passed
    assert Bundle.open(tmp_path / "bundle").manifest.dtype == "float32"


def test_sharded_checkpoint_is_exported(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    import transformers

    folder = make_checkpoint("DistilBertModel", num_hidden_layers=1)
    model = transformers.AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert export(str(folder), tmp_path / "bundle").passed


POOLINGS = [
    pytest.param({"pooling_mode_cls_token": True}, marks=pytest.mark.proof),
    pytest.param(  # in test_sentence_folders all poolings of a padded batch equal the library's
        {
            "pooling_mode_cls_token": True,
            "pooling_mode_max_tokens": True,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_mean_sqrt_len_tokens": True,
            "normalize": False,
        },
        marks=pytest.mark.proof,
    ),
    pytest.param({"pooling_mode_max_tokens": True, "pooling_mode_mean_sqrt_len_tokens": True}, marks=pytest.mark.proof),
    {"pooling_mode": "mean", "embedding_dimension": 32},
]


@pytest.mark.proof
@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_pooling_ignores_padding(pooling: dict[str, Any], make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_checkpoint("BertModel", sentence=dict(pooling), num_hidden_layers=1)
    export(str(folder), tmp_path / "bundle", check=False)
    feeds = Tokenizer.open(Bundle.open(tmp_path / "bundle")).feeds(["ab", "a much longer text, 1234"])
    with open_engine(tmp_path / "bundle") as engine:
        outputs = engine.run(dict(feeds))
    for row in range(2):
        hidden = outputs["last_hidden_state"][row, feeds["attention_mask"][row] == 1]
        parts = {
            "pooling_mode_cls_token": hidden[0],
            "pooling_mode_max_tokens": hidden.max(0),
            "pooling_mode_mean_tokens": hidden.mean(0),
            "pooling_mode_mean_sqrt_len_tokens": hidden.sum(0) / np.sqrt(len(hidden)),
            "pooling_mode": hidden.mean(0),
        }
        expected = np.concatenate([part for key, part in parts.items() if key in pooling])
        if pooling.get("normalize", True):
            expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(outputs["sentence_embedding"][row], expected, atol=1e-5)


@pytest.fixture
def source(tiny_bundle: Path, tiny_checkpoint: Path, tmp_path: Path) -> Source:
    """The source of `tiny_bundle` in a folder that a test may modify."""
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "source")
    return msgspec.structs.replace(Bundle.open(tiny_bundle).manifest.source, location=str(folder))


def test_changed_source_is_refused_for_comparison(source: Source) -> None:
    load_module(source)
    weights = Path(source.location) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(SourceError, match="was exported from"):
        load_module(source)
    shutil.rmtree(source.location)
    with pytest.raises(SourceError, match="--against BUNDLE does not need it"):
        load_module(source)


def test_loading_a_source_contacts_no_hub_by_default(source: Source, monkeypatch: Any) -> None:
    """An untrusted bundle may name any checkpoint; only `--against pytorch` downloads it."""
    connected: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: connected.append(address) or [])
    foreign = msgspec.structs.replace(source, kind="hub", location="someone/never-downloaded")
    with pytest.raises(SourceError, match="Give --against pytorch to download it"):
        load_module(foreign)
    assert not connected


def test_source_with_changed_pooling_is_refused_for_comparison(source: Source) -> None:
    (Path(source.location) / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    with pytest.raises(SourceError, match=r"1_Pooling/config\.json: SHA-256"):
        load_module(source)


def test_hub_snapshot_of_links_is_exported(one_layer_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "abc"
    for number, file in enumerate(path for path in one_layer_checkpoint.rglob("*") if path.is_file()):
        link = snapshot / file.relative_to(one_layer_checkpoint)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / "blobs" / str(number))
        link.symlink_to(tmp_path / "blobs" / str(number))
    assert export(str(snapshot), tmp_path / "bundle").passed


def test_vocabulary_file_becomes_a_tokenizer(one_layer_checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(one_layer_checkpoint, tmp_path / "source"))
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    (folder / "tokenizer.json").unlink()
    export(str(folder), tmp_path / "bundle", check=False)
    feeds = Tokenizer.open(Bundle.open(tmp_path / "bundle")).feeds(["ab c"])
    assert feeds["input_ids"].tolist() == [[2, vocabulary["a"], vocabulary["##b"], vocabulary["c"], 3]]


def test_graph_of_another_tool_is_imported(tiny_bundle: Path, tmp_path: Path) -> None:
    result = export(str(tiny_bundle / "model.onnx"), tmp_path / "adopted")
    assert (result.passed, result.outputs) == (None, {})
    manifest = Bundle.open(tmp_path / "adopted").manifest
    assert (manifest.source.kind, manifest.task, manifest.dtype) == ("onnx", "embed", "float32")
    assert [spec.name for spec in manifest.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    first, second = (next(iter(run(path, ["a"]))).embedding for path in (tiny_bundle, tmp_path / "adopted"))
    np.testing.assert_array_equal(first, second)


def test_graph_with_weights_outside_its_folder_is_refused(tmp_path: Path) -> None:
    from intaglio.bundle.bundle import Draft

    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    value = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [64, 64])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["w"], ["y"])], "g", [], [value], [weight])
    model = onnx.helper.make_model(graph)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(SourceError, match="stays inside"):
        adopt(tmp_path / "in" / "m.onnx", Draft(tmp_path), {}, check=True)


@pytest.mark.proof
def test_model_of_few_positions_is_traced_with_a_short_example(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    checkpoint = make_checkpoint("DistilBertModel", num_hidden_layers=1, max_position_embeddings=5)
    assert export(str(checkpoint), tmp_path / "bundle").passed
    assert Bundle.open(tmp_path / "bundle").manifest.axes["sequence"].maximum == 5
