"""Layers with lookup tables compute with the nearest centroids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from intaglio.errors import GraphError
from intaglio.graph_passes.contract import PassInputs
from intaglio.graph_passes.lookup_tables.lut import Lut
from intaglio.graph_passes.lookup_tables.lut_sparse import LutSparse
from intaglio.graph_passes.weights.mixed import Mixed
from intaglio.plugins.csr_matmul.spec import sparse_weight
from intaglio.plugins.inlining import inline
from intaglio.plugins.lut_matmul.spec import table_weight
from intaglio.sensitivity_file import Observed, Sensitivities, SensitivityWriter

ROWS, COLUMNS = 24, 64
GRAPH = """(float[A, 64] x) => (float[A, 24] y) {
    m = MatMul(x, "a.weight_transposed")
    r = Relu(m)
    y = Gemm<transB=1>(r, "b.weight", "b.bias")
}"""


@pytest.fixture
def model(parse: Callable[..., ir.Model]) -> ir.Model:
    random = np.random.default_rng(0)
    weights = {
        "a.weight_transposed": random.standard_t(4, (COLUMNS, 32)).astype(np.float32),
        "b.weight": random.standard_t(4, (ROWS, 32)).astype(np.float32),
        "b.bias": np.arange(ROWS, dtype=np.float32),
    }
    return parse(GRAPH, weights)


@pytest.fixture
def weighting(tmp_path: Path) -> Sensitivities:
    random = np.random.default_rng(1)
    shapes = {"a.weight_transposed": (COLUMNS, 32), "b.weight": (ROWS, 32)}
    with SensitivityWriter.create(tmp_path / "s", shapes, Observed({}, "text.txt", "00", 3, 300)) as writer:
        for name, shape in shapes.items():
            writer.add(name, (random.standard_normal(shape) ** 2).astype(np.float32))
    return Sensitivities.open(tmp_path / "s")


def weights_of(model: ir.Model) -> dict[str, np.ndarray]:
    """Name of a layer -> the weight [N, K] that its operators represent."""
    found: dict[str, np.ndarray] = {}
    for node in model.graph:
        if node.domain != "intaglio":
            continue
        assert node.op_type == "LutMatMul"
        _, packed, lut, *sparse = [value.const_value and value.const_value.numpy() for value in node.inputs if value]
        weight = table_weight(packed, lut, node.attributes["bits"].as_int())
        name = str(node.name).rpartition(".")[0]
        found[name] = weight + sparse_weight(*sparse, weight.shape[1]) if sparse else weight
    return found


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("kind", [Lut, LutSparse])
def test_graph_computes_with_the_stored_weights(
    kind: type, bits: int, model: ir.Model, weighting: Sensitivities, compute: Callable[..., list]
) -> None:
    x = np.random.default_rng(2).standard_normal((5, COLUMNS)).astype(np.float32)
    bias = np.arange(ROWS, dtype=np.float32)
    options = {} if kind is Lut else {"sensitive": 0.01, "outliers": 0.02}
    model, counts = kind(bits=bits, compensate=False, **options)(model, PassInputs(sensitivity_file=weighting))
    assert counts.rewritten["layers"] == 2
    assert sorted(model.graph.initializers)[0].startswith("a.")
    assert not {"a.weight_transposed", "b.weight"} & set(model.graph.initializers)
    stored = weights_of(model)
    expected = np.maximum(x.astype(np.float64) @ stored["a"].T, 0) @ stored["b"].T + bias
    inline(model)
    np.testing.assert_allclose(compute(model, check=False, x=x)[0], expected, rtol=1e-4, atol=1e-4)


def test_counts_report_bits_and_error_of_every_layer(model: ir.Model, weighting: Sensitivities) -> None:
    tensor = model.graph.initializers["b.weight"].const_value
    assert tensor is not None
    matrix, weight = tensor.numpy().copy(), weighting.read("b.weight", (ROWS, 32))
    model, counts = Lut(bits=3, compensate=False)(model, PassInputs(sensitivity_file=weighting))
    measured = counts.layers["b"]
    error = (weight.astype(np.float64) * (matrix - weights_of(model)["b"]) ** 2).sum()
    assert measured["error"] == pytest.approx(error, rel=1e-5)
    assert measured["bits"] == pytest.approx(3 + 8 * 32 / 32)
    packed = sum(value.const_value.nbytes for name, value in model.graph.initializers.items() if name != "b.bias")
    assert counts.rewritten["bytes"] == packed


def test_sensitivities_are_transposed_with_the_weight(model: ir.Model, weighting: Sensitivities) -> None:
    tensor = model.graph.initializers["a.weight_transposed"].const_value
    assert tensor is not None
    matrix = tensor.numpy().T.copy()
    weight = weighting.read("a.weight_transposed", (COLUMNS, 32)).T
    errors = []
    inputs = PassInputs(sensitivity_file=weighting)
    for unweighted in (False, True):
        made, _ = Lut(bits=2, unweighted=unweighted, compensate=False)(model.clone(), inputs)
        errors.append((weight * (matrix - weights_of(made)["a"]) ** 2).sum())
    assert errors[0] < 0.9 * errors[1]


def test_float16_graph_keeps_its_dtype(parse: Callable[..., ir.Model]) -> None:
    weight = np.random.default_rng(0).standard_normal((32, 8)).astype(np.float16)
    model = parse("(float16[A, 32] x) => (float16[A, 8] y) { y = MatMul(x, w) }", {"w": weight})
    model, _ = Lut(unweighted=True, compensate=False)(model)
    assert [value.dtype for node in model.graph for value in node.outputs] == [ir.DataType.FLOAT16]
    np.testing.assert_allclose(weights_of(model)["w"], weight.T.astype(np.float32), atol=0.2)


def test_shared_weight_is_stored_once(parse: Callable[..., ir.Model]) -> None:
    weight = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    graph = "(float[A, 32] x) => (float[A, 32] y) { m = MatMul(x, w) y = MatMul(m, w) }"
    model, counts = Lut(unweighted=True, compensate=False)(parse(graph, {"w": weight}))
    assert counts.rewritten["layers"] == 1
    assert sorted(model.graph.initializers) == ["w.lut", "w.packed"]
    assert [node.op_type for node in model.graph] == ["LutMatMul", "LutMatMul"]


def test_missing_sensitivities_are_refused(model: ir.Model) -> None:
    for kind in (Lut, LutSparse, Mixed):
        with pytest.raises(GraphError, match="has no sensitivities"):
            kind()(model)


def test_missing_calibration_text_is_refused(model: ir.Model, weighting: Sensitivities) -> None:
    for kind in (Lut, LutSparse, Mixed):
        with pytest.raises(GraphError, match="has no calibration text"):
            kind()(model, PassInputs(sensitivity_file=weighting))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lut(bits=5), "bits 5: expected one of 2, 3, 4"),
        (lambda: LutSparse(bits=1), "bits 1: expected one of 2, 3, 4"),
        (lambda: LutSparse(outliers=0.6), "outliers 0.6: expected a fraction"),
        (lambda: LutSparse(sensitive=-1), "sensitive -1: expected a fraction"),
        (lambda: LutSparse(unweighted=True), "unweighted, but sensitive is 0.0005"),
        (lambda: Mixed(outliers=2), "outliers 2: expected a fraction"),
    ],
)
def test_options_out_of_range_are_refused_when_the_recipe_is_read(make: Callable[[], object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()


def test_mixed_keeps_its_budget_and_reports_the_minimum(model: ir.Model, weighting: Sensitivities) -> None:
    size = 32 * COLUMNS + 32 * ROWS
    counts = Mixed(bits_per_weight=11, compensate=False)(model.clone(), PassInputs(sensitivity_file=weighting))[1]
    assert counts.rewritten["bytes"] <= 11 * size / 8
    assert counts.rewritten["layers"] == 2
    counts = Mixed(megabytes=1, compensate=False)(model.clone(), PassInputs(sensitivity_file=weighting))[1]
    assert counts.reasons == ["a: left uncompressed, within the budget", "b: left uncompressed, within the budget"]
    with pytest.raises(
        GraphError, match=r"budget of 352 bytes, but the layers take at least \d+ \(\d\.\d+ bits per weight"
    ):
        Mixed(bits_per_weight=1, compensate=False)(model, PassInputs(sensitivity_file=weighting))
