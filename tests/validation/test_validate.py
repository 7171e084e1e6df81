"""The verb `validate`, from bundles on disk to the report."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, EngineError, SourceError, StorageError, UsageError
from intaglio.exporters import export
from intaglio.validation import validate

Chain = Callable[..., onnx.ModelProto]
MakeBundle = Callable[..., Path]


def npy() -> bytes:
    """A single array, which is not an archive of named ones."""
    file = io.BytesIO()
    np.save(file, np.ones(3), allow_pickle=False)
    return file.getvalue()


def test_correct_bundle_passes_and_stores_its_report(chain: Chain, make_bundle: MakeBundle, data: Path) -> None:
    bundle, other = make_bundle(chain(3)), make_bundle(chain(3))
    found = validate(bundle, other, data, bisect=True, batch_size=4)
    assert found.passed
    assert found.first_layer_beyond is None
    assert (found.outputs["y"].max_abs, found.outputs["y"].values) == (0, 80)
    opened = Bundle.open(bundle)  # verifies the hashes: the reports are listed
    report = "reports/ort-cpu-against-bundle"
    assert {f"{report}.html", f"{report}.json"} <= set(opened.manifest.files)
    assert found.report == str(bundle / f"{report}.html")
    written = json.loads((bundle / f"{report}.json").read_text())
    assert written["inputs"]["batches"] == 3
    assert [layer["layer"] for layer in written["layers"]] == ["layer.0", "layer.1", "layer.2"]


def test_exceeded_bound_fails_and_names_the_layer(chain: Chain, make_bundle: MakeBundle, data: Path) -> None:
    found = validate(make_bundle(chain(4, planted=2)), make_bundle(chain(4)), data, bisect=True)
    assert not found.passed
    assert found.outputs["y"].broken
    assert found.first_layer_beyond is not None
    assert (found.first_layer_beyond.layer, found.first_layer_beyond.value) == ("layer.2", "layer_2")


def test_bounds_are_configurable(chain: Chain, make_bundle: MakeBundle, data: Path) -> None:
    bundle, other = make_bundle(chain(2, planted=1, size=1e-3)), make_bundle(chain(2))
    assert not validate(bundle, other, data).passed
    assert validate(bundle, other, data, max_abs=2e-3, min_cosine=0.999).passed
    assert not validate(bundle, other, data, max_abs=2e-3, min_cosine=1.0).passed


@pytest.mark.parametrize("target", ["ort-cpu", "reference"])
def test_graph_agrees_with_the_reference(chain: Chain, make_bundle: MakeBundle, data: Path, target: str) -> None:
    other = "reference" if target == "ort-cpu" else make_bundle(chain(2))
    assert validate(make_bundle(chain(2)), other, data, target=target, bisect=True).passed


def test_report_is_written_to_the_given_folder(
    chain: Chain, make_bundle: MakeBundle, data: Path, tmp_path: Path
) -> None:
    bundle = make_bundle(chain(1))
    before = (bundle / "bundle.json").read_bytes()
    found = validate(bundle, "reference", data, report=tmp_path / "new" / "folder")
    assert found.report == str(tmp_path / "new" / "folder" / "ort-cpu-against-reference.html")
    assert Path(found.report).with_suffix(".json").is_file()
    assert (bundle / "bundle.json").read_bytes() == before


def test_report_folder_that_is_a_file_is_refused(chain: Chain, make_bundle: MakeBundle, data: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        validate(make_bundle(chain(1)), "reference", data, report=data)


def test_unwritable_bundle_is_refused_before_the_work(
    chain: Chain, make_bundle: MakeBundle, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root, which ignores permissions
    with pytest.raises(StorageError, match="--report DIR"):
        validate(make_bundle(chain(1)), "reference", data)


def test_outputs_missing_in_the_other_model_are_named(chain: Chain, make_bundle: MakeBundle, data: Path) -> None:
    model = chain(2)
    more = chain(2)
    more.graph.output.append(onnx.helper.make_tensor_value_info("sum_0", onnx.TensorProto.FLOAT, ["batch", 8]))
    found = validate(make_bundle(more), make_bundle(model), data)
    assert (list(found.outputs), found.not_compared) == (["y"], ["sum_0"])


def test_graph_without_source_names_the_next_step(chain: Chain, make_bundle: MakeBundle, data: Path) -> None:
    with pytest.raises(UsageError, match=r"no PyTorch source.*--against reference, or --against BUNDLE"):
        validate(make_bundle(chain(1)), data=data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "abacus"}, "target 'abacus': expected one of ort-cpu"),
        ({"target": "reference"}, "--against reference: the target is the same"),
        ({"samples": 0}, "samples 0"),
        ({"batch_size": -1}, "batch size -1"),
        ({"max_abs": float("nan")}, "bound max_abs=nan"),
        ({"bound": {"kl_divergence": 0.1}}, "bound 'kl_divergence': expected one of max_abs, relative"),
        ({"target": "tensorrt-rtx", "bisect": True}, "--bisect: .* Run it on ort-cpu"),
        ({"data": None}, "no tokenizer.* --data FILE.npz"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: dict[str, object], message: str, chain: Chain, make_bundle: MakeBundle, data: Path
) -> None:
    options: dict[str, object] = {"against": "reference", "data": data} | arguments
    with pytest.raises(UsageError, match=message) as caught:
        validate(make_bundle(chain(1)), **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_bundle_is_not_compared_with_itself(chain: Chain, make_bundle: MakeBundle, data: Path) -> None:
    bundle = make_bundle(chain(1))
    with pytest.raises(UsageError, match="is the bundle itself"):
        validate(bundle, bundle / ".", data)


def test_bundle_of_another_model_is_refused(chain: Chain, make_bundle: MakeBundle, data: Path) -> None:
    other = chain(1)
    other.graph.input[0].name = other.graph.node[0].input[0] = other.graph.node[2].input[0] = "z"
    path = make_bundle(other)
    manifest = json.loads((path / "bundle.json").read_text())
    manifest["inputs"][0]["name"] = "z"
    (path / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="has the inputs z, the bundle x"):
        validate(make_bundle(chain(1)), path, data)


def test_bundle_passes_against_its_baseline(chain: Chain, make_bundle: MakeBundle, data: Path) -> None:
    bundle = make_bundle(chain(2))
    assert validate(bundle, bundle, data, target="reference", bisect=True).passed


def test_missing_baseline_is_refused(chain: Chain, make_bundle: MakeBundle, data: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such directory"):
        validate(make_bundle(chain(1)), tmp_path / "none", data)


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"x": np.zeros((0, 8), np.float32)}, UsageError, "have no samples"),
        ({"x": np.zeros((2, 7), np.float32)}, EngineError, "got shape"),
        ({"x": np.zeros((2, 8), np.float64)}, EngineError, "got dtype float64"),
        ({"z": np.zeros((2, 8), np.float32)}, EngineError, "inputs missing: x"),
        ({"x": np.zeros((), np.float32)}, EngineError, "got shape"),
        ({}, EngineError, "inputs missing: x"),
    ],
)
def test_mismatched_arrays_are_refused(
    arrays: dict[str, np.ndarray],
    error: type[Exception],
    message: str,
    chain: Chain,
    make_bundle: MakeBundle,
    tmp_path: Path,
) -> None:
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, **arrays)
    with pytest.raises(error, match=message):
        validate(make_bundle(chain(1)), "reference", tmp_path / "inputs.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY", npy()])
def test_damaged_array_file_is_refused(content: bytes, chain: Chain, make_bundle: MakeBundle, tmp_path: Path) -> None:
    (tmp_path / "inputs.npz").write_bytes(content)
    with pytest.raises(UsageError, match=r"not a readable \.npz file"):
        validate(make_bundle(chain(1)), "reference", tmp_path / "inputs.npz")


def test_exported_bundle_agrees_with_its_source(tiny_bundle_copy: Path, tmp_path: Path) -> None:
    text = tmp_path / "sentences.txt"
    text.write_text("A first sentence.\n\nAnother one, longer than the first.\n", encoding="utf-8")
    found = validate(tiny_bundle_copy, data=text, bisect=True)
    assert found.passed
    assert found.first_layer_beyond is None
    assert list(found.outputs) == [spec.name for spec in Bundle.open(tiny_bundle_copy).manifest.outputs]
    written = json.loads(Path(found.report).with_suffix(".json").read_text())
    assert (written["inputs"]["samples"], written["inputs"]["available"]) == (2, 2)
    assert any(layer["layer"].endswith("layer.1") for layer in written["layers"])


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "has no sentences"), (b"\n \n", "has no sentences"), (b"\xff", "UTF-8")]
)
def test_empty_text_file_is_refused(content: bytes, message: str, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        validate(tiny_bundle, data=tmp_path / "text.txt", report=tmp_path)


def test_changed_weight_is_traced_to_its_layer(tiny_bundle: Path, make_bundle: MakeBundle, tmp_path: Path) -> None:
    """A weight of the second block is changed in the graph; the source is correct."""
    path = tmp_path / "changed"
    shutil.copytree(tiny_bundle, path)
    opened = Bundle.open(path)
    value = opened.manifest.layers["model.encoder.layer.1.intermediate.dense"]
    model = onnx.load(path / "model.onnx")
    producer = next(node for node in model.graph.node if value in node.output)
    model.graph.node.append(onnx.helper.make_node("Mul", [f"{value}_right", "factor"], [value]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1.01), "factor"))
    producer.output[list(producer.output).index(value)] = f"{value}_right"
    place = list(model.graph.node).index(producer)
    nodes = list(model.graph.node)
    nodes.insert(place + 1, nodes.pop())
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    opened.add_files({"model.onnx": model.SerializeToString()})
    found = validate(path, samples=8, bisect=True)
    assert not found.passed
    assert found.first_layer_beyond is not None
    assert found.first_layer_beyond.layer == "model.encoder.layer.1.intermediate.dense"


def test_missing_source_is_refused(tiny_bundle_copy: Path, tmp_path: Path) -> None:
    manifest = json.loads((tiny_bundle_copy / "bundle.json").read_text())
    manifest["source"]["location"] = str(tmp_path / "gone")
    (tiny_bundle_copy / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(SourceError, match="--against BUNDLE"):
        validate(tiny_bundle_copy, samples=2)


@pytest.mark.proof  # float16: test_export.py exports a small model, test_verdicts.py judges the trained one
def test_trained_model_in_float16_is_within_its_bounds(minilm: Path, tmp_path: Path) -> None:
    export(str(minilm), tmp_path / "half", dtype="float16", check=False)
    found = validate(tmp_path / "half", samples=16, bisect=True)
    assert found.passed
    assert found.first_layer_beyond is None
    assert 1e-4 < found.outputs["last_hidden_state"].relative < 5e-3  # the graph is float16


@pytest.mark.proof
def test_trained_model_is_far_within_its_bound(minilm_bundle: Path, tmp_path: Path) -> None:
    found = validate(minilm_bundle, samples=16, report=tmp_path)
    assert found.passed
    assert found.outputs["last_hidden_state"].max_abs < 1e-5
    assert found.outputs["sentence_embedding"].cosine > 0.9999999
