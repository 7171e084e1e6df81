"""Shapes shrink, and the outputs equal those of the graph with the channels set to 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from covering import examples, few
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intaglio.bundle.bundle import Bundle
from intaglio.errors import GraphError
from intaglio.graph_passes import compress
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.pruning.prune_rows import PruneRows
from intaglio.graph_passes.weights.linear_layers import linear_layers
from intaglio.runtime.sessions.decoder import DecoderSession

RELU = "p = MatMul(x, a)  q = Add(p, v)  h = Relu(q)  y = MatMul(h, c)"
GEMM = "p = Gemm(x, a, v)  h = Relu(p)  y = MatMul(h, c)"
GATED = "g = MatMul(x, a)  s = Relu(g)  u = MatMul(x, b)  h = Mul(s, u)  y = MatMul(h, c)"
SQUARED = "p = MatMul(x, a)  q = Add(p, v)  s = Relu(q)  h = Mul(s, s)  y = MatMul(h, c)"


def small_integers(width: int, seed: int) -> dict[str, np.ndarray]:
    """Weights of small integers: sums of their products are exact in float32 in any order."""
    random = np.random.default_rng(seed)
    shapes = {"a": (8, width), "b": (8, width), "c": (width, 4), "v": (width,)}
    return {name: random.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}


def make(parse: Callable[..., ir.Model], body: str, weights: dict[str, np.ndarray]) -> ir.Model:
    names = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    used = {name: array for name, array in weights.items() if name in names}
    return parse(f"(float[n, 8] x) => (float[n, 4] y) {{ {body} }}", used)


def shapes(model: ir.Model) -> dict[str, list[int]]:
    return {name: list(value.const_value.shape.numpy()) for name, value in model.graph.initializers.items()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(15))
@given(
    body=st.sampled_from([RELU, GEMM, GATED, SQUARED]),
    width=st.integers(3, 40),
    fraction=st.floats(0, 0.99),
    multiple=st.integers(1, 8),
    seed=st.integers(0, 100),
)
def test_pruned_graph_equals_the_masked_network(
    parse: Callable[..., ir.Model],
    compute: Callable[..., list[np.ndarray]],
    body: str,
    width: int,
    fraction: float,
    multiple: int,
    seed: int,
) -> None:
    weights = small_integers(width, seed)
    model, counts = PruneRows(fraction=fraction, multiple=multiple)(make(parse, body, weights))
    kept = width - counts.rewritten.get("channels removed", 0)
    made = shapes(model)
    assert made["a"] == [8, kept] and made["c"] == [kept, 4]
    assert kept == width or kept % multiple == 0
    norms = np.square(weights["a"]).sum(axis=0) + (np.square(weights["b"]).sum(axis=0) if body == GATED else 0)
    places = np.sort(np.argsort(-norms, kind="stable")[:kept])
    np.testing.assert_array_equal(model.graph.initializers["c"].const_value.numpy(), weights["c"][places])
    masked = {name: array.copy() for name, array in weights.items()}
    gone = np.setdiff1d(np.arange(width), places)
    masked["a"][:, gone] = masked["b"][:, gone] = masked["v"][gone] = masked["c"][gone] = 0
    x = np.random.default_rng(seed).integers(-3, 4, (3, 8)).astype(np.float32)
    (expected,), (y,) = compute(make(parse, body, masked), x=x), compute(model, x=x)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("p = MatMul(x, a)  h = Softmax(p)  y = MatMul(h, c)", "its input is computed by Softmax"),
        ("y = MatMul(x, d)", "its input depends on an input of the graph"),
        ("p = MatMul(x, a)  h = Relu(p)  q = MatMul(h, c)  s = ReduceSum(h)  y = Add(q, s)", "h is used by ReduceSum"),
        ("p = MatMul(x, a)  h = Relu(p)  q = MatMul(h, c)  r = MatMul(x, a)  s = ReduceSum(r)  y = Add(q, s)",
         "the weight of a is shared"),
        ("t = Transpose(at)  p = MatMul(x, t)  h = Relu(p)  q = MatMul(h, c)  r = MatMul(x, t)  s = ReduceSum(r)"
         "  y = Add(q, s)", "the weight of at is shared"),
    ],
)  # fmt: skip
def test_networks_with_dependent_channels_are_skipped(parse: Callable[..., ir.Model], body: str, reason: str) -> None:
    weights = small_integers(16, 0) | {"d": np.ones((8, 4), np.float32), "at": np.ones((16, 8), np.float32)}
    model, counts = PruneRows(multiple=4)(make(parse, body, weights))
    assert any(reason in each for each in counts.reasons), counts.reasons
    assert "networks" not in counts.rewritten
    assert all(16 in shape or shape[-1] == 4 for shape in shapes(model).values())


def test_two_matrices_after_one_activation_are_skipped(parse: Callable[..., ir.Model]) -> None:
    body = "p = MatMul(x, a)  h = Relu(p)  q = MatMul(h, c)  r = MatMul(h, e)  y = Add(q, r)"
    weights = small_integers(16, 0) | {"e": np.ones((16, 4), np.float32)}
    _, counts = PruneRows(multiple=4)(make(parse, body, weights))
    assert any("h is used by MatMul too" in each for each in counts.reasons)


@pytest.mark.parametrize("family", few(["gpt2", "llama", "opt"], ["llama"]))
def test_pruned_decoders_are_smaller_and_run(
    family: str, make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    width = {"gpt2": {"n_inner": 64}, "llama": {"intermediate_size": 64}, "opt": {"ffn_dim": 64}}[family]
    _, path = make_decoder(family, **width)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("passes: [{prune_rows: {fraction: 0.5}}]")
    result = compress(path, tmp_path / "made", recipe)
    assert result.passes[-1].counts["networks"] == 2
    assert result.passes[-1].counts["channels removed"] == 64
    removed = result.passes[-1].counts["weights removed"]
    assert result.bytes_before - result.bytes_after >= 4 * removed
    with DecoderSession.open(Bundle.open(tmp_path / "made")) as session:
        assert np.isfinite(session.prefill([[1, 2, 3]])).all()


def test_missing_sensitivities_are_refused(parse: Callable[..., ir.Model]) -> None:
    with pytest.raises(GraphError, match="prune_rows: has no sensitivities"):
        PruneRows(score="sensitivity")(make(parse, RELU, small_integers(16, 0)))


def test_insensitive_channels_are_pruned_first(parse: Callable[..., ir.Model]) -> None:
    weights = small_integers(16, 1)
    weights = {name: np.where(array == 0, 1, array).astype(np.float32) for name, array in weights.items()}
    felt = {name: np.ones_like(array) for name, array in weights.items()}
    felt["a"][:, [2, 3, 5, 7]] = felt["c"][[2, 3, 5, 7]] = 0

    class Given:
        def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
            assert felt[name].shape == shape
            return felt[name]

    felt_by_the_loss: Any = Given()
    prune = PruneRows(fraction=0.25, score="sensitivity", multiple=4)
    model, _ = prune(make(parse, RELU, weights), PassInputs(sensitivity_file=felt_by_the_loss))
    kept = np.setdiff1d(np.arange(16), [2, 3, 5, 7])
    (first, second) = (layer.matrix() for layer in linear_layers(model, Counts()))
    np.testing.assert_array_equal(first, weights["a"].T[kept])
    np.testing.assert_array_equal(second, weights["c"].T[:, kept])
