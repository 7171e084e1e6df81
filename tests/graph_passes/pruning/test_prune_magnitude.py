"""Exactly the smallest weights become 0, and are stored as sparse rows only if that needs fewer bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from covering import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.pruning.prune_magnitude import PruneMagnitude
from intaglio.graph_passes.weights.linear_layers import linear_layers
from intaglio.plugins.inlining import inline

BODY = "(float[n, 32] x) => (float[n, 16] y) { h = MatMul(x, a)  r = Relu(h)  y = Gemm <transB = 1> (r, b, c) }"
RANDOM = np.random.default_rng(0)
A = RANDOM.standard_normal((32, 24)).astype(np.float32)
B = 10 * RANDOM.standard_normal((16, 24)).astype(np.float32)
C = np.ones(16, np.float32)
X = RANDOM.standard_normal((2, 3, 32)).astype(np.float32)


def model_of(parse: Callable[..., ir.Model]) -> ir.Model:
    return parse(BODY, {"a": A, "b": B, "c": C})


def matrices(model: ir.Model) -> list[np.ndarray]:
    return [layer.matrix() for layer in linear_layers(model, Counts())]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25))
@given(fraction=st.floats(0, 0.99))
def test_each_layer_is_pruned_by_the_fraction(parse: Callable[..., ir.Model], fraction: float) -> None:
    model, counts = PruneMagnitude(fraction=fraction, sparse="never")(model_of(parse))
    for pruned, whole in zip(matrices(model), (A.T, B), strict=True):
        assert np.count_nonzero(pruned == 0) == round(fraction * whole.size)
        assert (pruned[pruned != 0] == whole[pruned != 0]).all()
        assert np.abs(whole[pruned == 0]).max(initial=0) <= np.abs(pruned[pruned != 0]).min()
    assert counts.rewritten["zeros"] == sum(round(fraction * whole.size) for whole in (A, B))


def test_global_threshold_prunes_layers_with_small_weights_more(parse: Callable[..., ir.Model]) -> None:
    model, counts = PruneMagnitude(fraction=0.6, threshold="global", sparse="never")(model_of(parse))
    first, second = matrices(model)
    assert np.count_nonzero(first == 0) + np.count_nonzero(second == 0) == round(0.6 * (A.size + B.size))
    assert np.abs(A.T[first == 0]).max() <= np.abs(B[second != 0]).min()
    assert counts.layers["a"]["zeros"] > 0.8 > 0.2 > counts.layers["b"]["zeros"]


@pytest.mark.parametrize("fraction", [0.3, 0.8])
def test_pruned_graph_equals_the_masked_weights(
    parse: Callable[..., ir.Model], compute: Callable[..., list[np.ndarray]], fraction: float
) -> None:
    body = BODY.replace("float[n, ", "float[n, t, ").replace("y = Gemm <transB = 1> (r, b, c)", "y = MatMul(r, bt)")
    weights = {"a": A, "bt": np.ascontiguousarray(B.T)}
    model, counts = PruneMagnitude(fraction=fraction)(parse(body, weights))
    masked, _ = PruneMagnitude(fraction=fraction, sparse="never")(parse(body, weights))
    operators = [node.op_type for node in model.graph]
    assert ("CsrMatMul" in operators) == (fraction == 0.8) == ("layers in sparse rows" in counts.rewritten)
    assert ("MatMul" in operators) == (fraction == 0.3)
    inline(model)
    (expected,), (y,) = compute(masked, x=X), compute(model, x=X)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_sparse_storage_never_needs_more_bytes(parse: Callable[..., ir.Model]) -> None:
    for fraction in (0.4, 0.5, 0.6):
        model, _ = PruneMagnitude(fraction=fraction)(model_of(parse))
        stored = sum(value.const_value.nbytes for value in model.graph.initializers.values())
        assert stored <= A.nbytes + B.nbytes + C.nbytes + 16  # the widths of the outputs, 8 bytes a layer


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_invalid_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(GraphError, match="prune_magnitude: fraction"):
        PruneMagnitude(fraction=fraction)


def test_weights_of_equal_magnitude_are_counted_exactly(parse: Callable[..., ir.Model]) -> None:
    ones: dict[str, Any] = {"a": np.ones_like(A), "b": -np.ones_like(B), "c": C}
    for threshold in ("layer", "global"):
        options: dict[str, Any] = {"fraction": 0.25, "threshold": threshold, "sparse": "never"}
        _, counts = PruneMagnitude(**options)(parse(BODY, ones))
        assert counts.rewritten["zeros"] == (A.size + B.size) // 4
