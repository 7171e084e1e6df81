"""Compressing a bundle writes a complete bundle that computes the same, or nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intaglio.bundle.bundle import Axis, Bundle, EngineRecord, Manifest, PassRecord, Source, create, tensor_spec
from intaglio.bundle.model_file import load, save
from intaglio.errors import BundleError, GraphError, UsageError
from intaglio.graph_passes import compress

X = np.random.default_rng(0).normal(0, 1, (3, 5, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real decomposed graph: torch's older exporter at opset 13 on a feed-forward block with both Gelus."""
    import torch

    torch.manual_seed(0)
    block = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.GELU(approximate="tanh"),
        torch.nn.Linear(32, 16), torch.nn.LayerNorm(16), torch.nn.Softmax(-1),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("exported") / "block.onnx"
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(block.eval(), (torch.from_numpy(X),), path, dynamo=False, opset_version=13, **names)
    return path


def pack(model: ir.Model, path: Path, external: bool = False, **changes: Any) -> Path:
    with create(path) as draft:
        draft.manifest = Manifest(
            format=1,
            created_by="a test",
            source=Source("onnx", "nowhere"),
            family="bert",
            architecture="Block",
            task="",
            dtype="float32",
            inputs=[tensor_spec(value) for value in model.graph.inputs],
            outputs=[tensor_spec(value) for value in model.graph.outputs],
            **changes,
        )
        (draft.path / "tokenizer.json").write_text("{}")
        (draft.path / "reports").mkdir()
        (draft.path / "reports" / "old.html").write_text("old")
        (draft.path / "engines").mkdir()
        (draft.path / "engines" / "old.engine").write_text("old")
        save(model, draft.model_path, external_above=0 if external else 1 << 30)
    return path


def run(bundle: Path, x: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(bundle / "model.onnx", options).run(["y"], {"x": x})[0]


@pytest.mark.parametrize("external", [False, True], ids=["one file", "external data"])
def test_decomposed_export_is_fused_and_converted_to_float16(exported: Path, tmp_path: Path, external: bool) -> None:
    source = pack(
        load(exported),
        tmp_path / "source",
        external,
        axes={"batch": Axis(1, 8)},
        layers={"first": "/0/Add_output_0", "gelu": "/1/Mul_1_output_0", "gone": "/1/Erf_output_0"},
        passes=[PassRecord("earlier")],
        engines=[EngineRecord("engines/old.engine", "tensorrt", "10", 3)],
    )
    before = run(source, X)
    done = compress(source, tmp_path / "out", "float16")
    bundle = Bundle.open(tmp_path / "out")
    manifest = bundle.manifest

    operators = [node.op_type for node in load(bundle.model_path).graph]
    assert operators.count("Gelu") == 2
    assert operators.count("LayerNormalization") == 2
    assert not {"Erf", "Tanh", "Pow", "Sqrt", "ReduceMean", "Constant"} & set(operators)
    np.testing.assert_allclose(run(tmp_path / "out", X.astype(np.float16)), before, atol=2e-3)

    assert manifest.dtype == "float16"
    assert [(spec.name, spec.dtype, spec.shape) for spec in (*manifest.inputs, *manifest.outputs)] == [
        ("x", "float16", ("batch", 5, 16)),
        ("y", "float16", ("batch", 5, 16)),
    ]
    assert manifest.layers == {"first": "/0/Add_output_0", "gelu": "/1/Mul_1_output_0"}
    assert manifest.axes == {"batch": Axis(1, 8)}
    assert manifest.engines == []
    assert set(manifest.files) == {"model.onnx", "tokenizer.json"}
    names = ["raise_opset", "fold_constants", "canonicalize", "fold_batch_norm", "fold_scales", "float16"]
    assert [record.name for record in manifest.passes] == ["earlier", *names]
    assert [record.name for record in done.passes] == names
    assert done.passes[2].counts == {"gelu": 2, "layer_norm": 2}
    assert done.passes[-1].options == {"keep": (), "keep_io": False}
    sizes = {"source": done.bytes_before, "out": done.bytes_after}
    for name, size in sizes.items():
        assert size == sum(file.stat().st_size for file in (tmp_path / name).glob("model.onnx*"))
    assert done.bytes_after < done.bytes_before
    assert json.loads(msgspec.json.encode(done))["passes"][0]["name"] == "raise_opset"


def test_recipe_file_may_overwrite_its_bundle_with_force(exported: Path, tmp_path: Path) -> None:
    source = pack(load(exported), tmp_path / "source", external=True)
    before = run(source, X)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("passes: [raise_opset, canonicalize]")
    with pytest.raises(UsageError, match="--force"):
        compress(source, source, recipe)
    done = compress(source, source, recipe, force=True)
    assert done.recipe == str(recipe)
    assert done.bytes_before != done.bytes_after
    np.testing.assert_allclose(run(source, X), before, atol=1e-5)


def test_custom_operators_are_recorded_and_pass_the_checker(tmp_path: Path) -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 23, "intaglio": 1]>
        agraph (float[N, 4] x) => (int8[N, 4] y) { a = Relu(x) y = intaglio.IntThing <scale = 0.5> (a) }"""
    )
    compress(pack(model, tmp_path / "source"), tmp_path / "out", "canonical")
    manifest = Bundle.open(tmp_path / "out").manifest
    assert manifest.custom_operators == ["IntThing"]
    assert manifest.dtype == "float32"
    assert [record.reasons != [] for record in manifest.passes] == [True, True, True]


def test_failed_compression_leaves_no_files(tmp_path: Path, exported: Path) -> None:
    text = "(float[1, 1, 2, 2] x, float[4] s) => (float[1, 1, A, B] y) { y = Upsample(x, s) }"
    source = pack(ir.from_onnx_text(f'<ir_version: 6, opset_import: ["": 9]> g {text}'), tmp_path / "source")
    with pytest.raises(GraphError, match="opset 9"):
        compress(source, tmp_path / "out", "canonical")
    with pytest.raises(GraphError, match="expected one of"):
        compress(source, tmp_path / "out", "unheard of")
    (source / "model.onnx").write_bytes(b"")
    with pytest.raises(BundleError):
        compress(source, tmp_path / "out", "canonical")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_checker_error_prints_one_line() -> None:
    from intaglio.graph_passes.checker import check

    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("odd", 1))
    with pytest.raises(GraphError, match="ONNX's checker rejects") as error:
        check(ir.from_proto(proto), "x has")
    assert "\n" not in str(error.value)


def test_importing_the_stage_loads_no_heavy_library() -> None:
    heavy = {"torch", "onnxruntime", "onnxscript", "tensorrt", "tensorrt_rtx"}
    code = f"import sys, intaglio.graph_passes; print({heavy} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"
