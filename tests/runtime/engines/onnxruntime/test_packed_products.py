"""Decoders on a CPU multiply by our kernel; matrices that are computed or may be replaced keep ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from gguf_files import options, write_gguf
from onnx import TensorProto, helper, numpy_helper
from tiny_families import save_family

from intaglio.bundle.model_file import load
from intaglio.exporters import export
from intaglio.plugins import ort as kernels
from intaglio.plugins.group_matmul.minimums import completes_groups
from intaglio.runtime.engines.onnxruntime import engine as engine_module
from intaglio.runtime.engines.onnxruntime.packed_products import pack_products
from intaglio.runtime.engines.onnxruntime.session_operators import can_put_in
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.targets import TARGETS

TEXTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16]]
WEIGHT = np.arange(20, dtype=np.float32).reshape(4, 5)


def logits(bundle: Path) -> list[np.ndarray]:
    with DecoderSession.open(bundle, batch=len(TEXTS)) as session:
        return [session.prefill(TEXTS), session.step([[3], [4], [5]])]


@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_those_of_the_standard_operator(
    tied: bool, make_decoder: Callable[..., tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_put_in(TARGETS["ort-cpu"]):
        pytest.skip("no compiled kernels")
    bundle = make_decoder("gpt2" if tied else "llama")[1]
    changed: list[onnx.ModelProto] = []
    monkeypatch.setattr(engine_module, "pack_products", lambda model: changed.append(model) or pack_products(model))
    ours = logits(bundle)
    kinds = [node.op_type for node in changed[0].graph.node]
    assert kinds.count("PackedMatMul") > 8 and "MatMul" not in kinds
    assert any(each.i for node in changed[0].graph.node for each in node.attribute if each.name == "transposed") == tied
    monkeypatch.setattr(engine_module, "pack_products", lambda model: None)
    for found, expected in zip(ours, logits(bundle), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_minimums_of_groups_are_no_product_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are part of GroupMatMul before products are packed."""
    if not can_put_in(TARGETS["ort-cpu"]):
        pytest.skip("no compiled kernels")
    checkpoint = save_family(tmp_path / "float", "llama", **options("llama"))
    bundle = tmp_path / "bundle"
    export(write_gguf(checkpoint, tmp_path / "model.gguf", "llama", {"attn": "Q4_1", "ffn": "Q4_1"}), bundle)
    stored = load(bundle / "model.onnx").graph.initializers
    assert any(completes_groups(name) for name in stored)
    changed: list[onnx.ModelProto] = []
    monkeypatch.setattr(engine_module, "pack_products", lambda model: changed.append(model) or pack_products(model))
    DecoderSession.open(bundle).close()
    products = [node for node in changed[0].graph.node if node.op_type in ("MatMul", "PackedMatMul")]
    assert products and not any(completes_groups(node.input[1]) for node in products)


def graph(*nodes: onnx.NodeProto, weight: np.ndarray = WEIGHT, given: bool = False) -> onnx.ModelProto:
    """MatMul of x by what `nodes` make from the constant "weight"; `given`: an input has its name."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", None])]
    if given:
        inputs.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, weight.shape))
    product = helper.make_node("MatMul", ["x", nodes[-1].output[0] if nodes else "weight"], ["y"])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])]
    made = helper.make_graph([*nodes, product], "g", inputs, outputs, [numpy_helper.from_array(weight, "weight")])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def cast(source: str, to: int = TensorProto.FLOAT, name: str = "wide", **attributes: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [name], to=to, **attributes)


def transpose(source: str, name: str = "turned", **attributes: list[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [name], **attributes)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    kernels.register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


HALF, BRAIN = WEIGHT.astype(np.float16), WEIGHT.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("model", "transposed"),
    [
        (graph(), 0),
        (graph(cast("weight"), weight=HALF), 0),
        (graph(cast("weight"), weight=BRAIN), 0),
        (graph(transpose("weight")), 1),
        (graph(transpose("weight", perm=[1, 0])), 1),
        (graph(transpose("weight", perm=[0, 1])), 0),
        (graph(cast("weight"), transpose("wide"), weight=BRAIN), 1),
        (graph(transpose("weight"), cast("turned"), weight=HALF), 1),
        (graph(transpose("weight"), transpose("turned", "back")), 0),
    ],
)
def test_constant_matrix_is_read_from_where_it_is_stored(model: onnx.ModelProto, transposed: int) -> None:
    x = np.eye(5 if transposed else 4, dtype=np.float32)
    expected = run(model, x)
    pack_products(model)
    (node,) = model.graph.node
    assert (node.op_type, node.domain, [*node.input]) == ("PackedMatMul", "intaglio", ["x", "weight"])
    assert [(each.name, each.i) for each in node.attribute] == [("transposed", transposed)]
    if can_put_in(TARGETS["ort-cpu"]):
        np.testing.assert_array_equal(run(model, x), expected)


@pytest.mark.parametrize(
    "model",
    [
        graph(given=True),
        graph(weight=WEIGHT[None]),
        graph(weight=WEIGHT.astype(np.float64)),
        graph(weight=HALF),
        graph(cast("weight", TensorProto.FLOAT16)),
        graph(cast("weight", TensorProto.FLOAT16, saturate=1)),  # stands before `to`, as 1, which is FLOAT
        graph(cast("weight"), weight=WEIGHT.astype(np.int8)),
        graph(helper.make_node("Neg", ["weight"], ["negative"])),
    ],
    ids=["input", "three axes", "float64", "float16", "narrowed", "narrowed, saturated", "integers", "computed"],
)
def test_other_matrices_stay(model: onnx.ModelProto) -> None:
    before = model.SerializeToString()
    pack_products(model)
    assert model.SerializeToString() == before


def test_matrix_that_others_read_is_made_for_them() -> None:
    model = graph(cast("weight"), weight=HALF)
    model.graph.output.append(helper.make_tensor_value_info("wide", TensorProto.FLOAT, [4, 5]))
    pack_products(model)
    assert [node.op_type for node in model.graph.node] == ["Cast", "PackedMatMul"]
