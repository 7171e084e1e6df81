"""Bundles with our operators for TensorRT-RTX, which gets plugins or bodies, and for TensorRT, which gets plugins."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from covering import few
from full_tensorrt import full_tensorrt
from onnx import helper
from operator_cases import FLOAT_LIMITS, MAKERS, PLUGGED, for_gpu, in_float16

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BuildError
from intaglio.plugins.float_body import FloatBody
from intaglio.plugins.inlining import inline
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.plugins.registry import OF_SESSIONS
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.tensorrt.integers import has_int8_tables, widen
from intaglio.runtime.engines.tensorrt.operators import parsable

trt: Any = pytest.importorskip("tensorrt_rtx")


def compiled(model: onnx.ModelProto) -> bool:
    """Whether TensorRT-RTX compiles a graph of fixed shapes into one engine for T4 and A100."""
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    assert trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR)).parse(model.SerializeToString())
    config = builder.create_builder_config()
    config.num_compute_capabilities = 2
    for index, target in enumerate((trt.ComputeCapability.SM75, trt.ComputeCapability.SM80)):
        config.set_compute_capability(target, index)
    return builder.build_serialized_network(network, config) is not None


BODIES = [name for name in PLUGGED if name not in OF_SESSIONS]  # which engines without plugins get
ENCODER = ("IntLinear", "IntLayerNorm", "IntAdd", "IntAttention")  # test_int8_only_encoder_builds inlines these


@pytest.mark.parametrize("operator", few(BODIES, [name for name in BODIES if name not in ENCODER]))
def test_every_operator_inlined_compiles_for_t4_and_a100(operator: str) -> None:
    random = np.random.default_rng(3)
    cases = [case for case in (for_gpu(MAKERS[operator](random)) for _ in range(9)) if not has_empty(case.inputs)]
    for case in cases[:3]:
        model = node_model(in_float16(case) if operator in FLOAT_LIMITS else case)  # a T4 has no product in float32
        inline(model, body=FloatBody)
        assert compiled(ir.to_proto(model))


def has_empty(inputs: Any) -> bool:
    return any(array is not None and array.size == 0 for array in inputs)


@pytest.mark.proof
def test_int8_only_encoder_builds_for_t4_and_a100(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_int8_bundle, tmp_path / "tiny"))
    engines = build(bundle, "tensorrt-rtx", gpus=["t4", "a100"], plugins=False).engines
    assert [(engine.gpu, engine.sm) for engine in engines] == [("t4", 75), ("a100", 80)]
    assert Bundle.open(bundle).manifest.engines == engines
    assert all((bundle / engine.path).stat().st_size == engine.bytes > 0 for engine in engines)


def test_widened_graph_computes_the_same(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = ir.load(tiny_int8_bundle / "model.onnx")
    inline(model)
    before = ir.to_proto(model)
    widen(model)
    after = ir.to_proto(model)
    assert "DequantizeLinear" in operators(before) and "DequantizeLinear" not in operators(after)
    tables = {tensor.name: tensor.data_type for tensor in after.graph.initializer}
    gathers = [node for node in after.graph.node if node.op_type == "Gather" and node.input[0] in tables]
    assert all(tables[node.input[0]] != onnx.TensorProto.INT8 for node in gathers)
    ids = np.array([[2, 10, 20, 3], [2, 40, 3, 0]])
    given = {
        each.name: np.minimum(ids, 1) if "mask" in each.name else ids * (each.name == "input_ids")
        for each in after.graph.input
    }
    results = []
    for proto in (before, after):
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        results.append(session.run(None, given))
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_embedding_tables_stay_int8_and_are_dequantised_first() -> None:
    """TensorRT has int8 constants only before DequantizeLinear."""
    onnxruntime = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(5)
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 23]> agraph (int64[1, 3] ids) => (float[1, 3, 8] y, float[1, 3, 8] z)
        { r = Gather <axis = 0> (t, ids) y = DequantizeLinear <axis = -1> (r, c) z = DequantizeLinear (r, k) }"""
    )
    table = random.integers(-127, 128, (20, 8)).astype(np.int8)
    scales = {"c": random.random(8, np.float32), "k": np.array(0.5, np.float32)}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in {"t": table, **scales}.items()
    )
    assert has_int8_tables(proto)
    model = ir.from_proto(proto)
    widen(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert [(node.op_type, node.input[0]) for node in after.graph.node if "t" in node.input] == [
        ("DequantizeLinear", "t"),
        ("DequantizeLinear", "t"),
    ]
    assert not has_int8_tables(after)
    sessions = [
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"])
        for each in (proto, after)
    ]
    for want, got in zip(*(session.run(None, {"ids": np.array([[0, 19, 3]])}) for session in sessions), strict=True):
        np.testing.assert_array_equal(got, want)
    assert compiled(after)


def operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def test_graph_of_standard_operators_is_unchanged(tiny_bundle: Path) -> None:
    path = tiny_bundle / "model.onnx"
    with parsable(path, trt, 75) as found:
        assert found == path


def test_invalid_attributes_name_the_node(make_encoder: Callable[..., Path]) -> None:
    gelu = helper.make_node("IntGelu", ["hidden"], ["out"], "gelu_7", domain="intaglio", scale=0.1)
    path = make_encoder(after=[gelu], output_dtype="int8")
    with pytest.raises(BuildError, match="TensorRT: node gelu_7: IntGelu: attribute out_scale is missing"):
        build(path, "tensorrt-rtx", gpus=["t4"])


def test_tensorrt_parses_plugins_for_every_node(
    tiny_int8_bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with full_tensorrt(tmp_path) as tensorrt, parsable(tiny_int8_bundle / "model.onnx", tensorrt, 75) as path:
        creators = tensorrt.get_plugin_registry().all_creators
        known = {creator.name for creator in creators if creator.plugin_namespace == "intaglio"}
        nodes = [node for node in onnx.load(path).graph.node if node.domain == "intaglio"]
        assert {node.op_type for node in nodes} <= known
        log = tensorrt.Logger(tensorrt.Logger.INTERNAL_ERROR)
        builder = tensorrt.Builder(log)
        network = builder.create_network(0)
        parser = tensorrt.OnnxParser(network, log)
        assert not parser.parse_from_file(str(path))  # this library's parser finds such plugins, and rejects them
        refused = [parser.get_error(index) for index in range(parser.num_errors)]
        assert all("registered with an IPluginCreatorV3One creator only" in error.desc() for error in refused)
        assert {error.node_operator() for error in refused} <= known
    assert "experimental" not in capfd.readouterr().err
