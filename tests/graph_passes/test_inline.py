"""The recipe `inlined` and the pass `inline`: bundles that any ONNX runtime takes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intaglio.bundle import Bundle
from intaglio.errors import GraphError
from intaglio.graph_passes import compress
from intaglio.graph_passes.inline import Inline
from intaglio.runtime import open_engine

FEEDS = {
    "input_ids": np.array([[2, 10, 20, 30, 3], [2, 40, 3, 0, 0]]),
    "attention_mask": np.array([[1] * 5, [1, 1, 1, 0, 0]]),
}


def run(bundle: Path) -> dict[str, np.ndarray]:
    with open_engine(bundle) as engine:
        names = [spec.name for spec in engine.inputs]
        zeros = np.zeros_like(FEEDS["input_ids"])
        return engine.run({name: FEEDS.get(name, zeros) for name in names})


def test_inlined_bundle_has_standard_operators_and_the_same_integers(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    result = compress(tiny_int8_bundle, tmp_path / "inlined", "inlined")
    manifest = Bundle.open(tmp_path / "inlined").manifest
    assert result.passes[-1].counts["IntLayerNorm"] > 0
    assert manifest.custom_operators == []
    model = onnx.load(tmp_path / "inlined" / "model.onnx")
    assert {node.domain for node in model.graph.node} == {""}
    assert [opset.domain for opset in model.opset_import] == [""]
    expected, got = run(tiny_int8_bundle), run(tmp_path / "inlined")
    np.testing.assert_array_equal(got["last_hidden_state"], expected["last_hidden_state"])


def test_float_arithmetic_stays_close_and_multiplies_no_integers(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "float.yaml").write_text("passes: [{inline: {arithmetic: float}}]")
    compress(tiny_int8_bundle, tmp_path / "float", tmp_path / "float.yaml")
    model = onnx.load(tmp_path / "float" / "model.onnx")
    assert "MatMulInteger" not in {node.op_type for node in model.graph.node}
    expected, got = run(tiny_int8_bundle)["sentence_embedding"], run(tmp_path / "float")["sentence_embedding"]
    assert (np.sum(expected * got, axis=-1) >= 0.999).all()


def test_a_graph_of_standard_operators_stays_and_says_so(tiny_bundle: Path, tmp_path: Path) -> None:
    result = compress(tiny_bundle, tmp_path / "same", "inlined")
    assert result.passes[-1].counts == {}
    assert result.passes[-1].reasons == ["the graph has none but standard operators already"]


def test_an_unknown_operator_is_named_with_its_node(make_model: Callable[[str], ir.Model]) -> None:
    with pytest.raises(GraphError, match="node strange_7: operator intaglio::IntStrange: unknown, expected one of Csr"):
        Inline()(make_model("IntStrange"))


@pytest.fixture
def make_model() -> Callable[[str], ir.Model]:
    def make(op_type: str) -> ir.Model:
        x = ir.Value(name="x", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT32))
        node = ir.Node("intaglio", op_type, [x], name="strange_7")
        graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 23, "intaglio": 1}, name="g")
        return ir.Model(graph, ir_version=10)

    return make
