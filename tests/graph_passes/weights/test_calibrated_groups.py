"""GPTQ and AWQ: layers see the outputs of the rounded layers before them; the error is below that of rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from covering import few

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load, save
from intaglio.errors import GraphError, UsageError
from intaglio.graph_passes import compress
from intaglio.graph_passes.calibration.data import CalibrationData, count_tokens
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.weights.awq import Awq
from intaglio.graph_passes.weights.fold import Fold, find_fold
from intaglio.graph_passes.weights.gptq import Gptq
from intaglio.graph_passes.weights.group_layers import set_weight
from intaglio.graph_passes.weights.linear_layers import linear_layers
from intaglio.graph_passes.weights.rtn import Rtn
from intaglio.plugins.inlining import inline
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.samples.sentences import sentences

GROUPS: dict[str, Any] = {"bits": 3, "group_size": 32}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(sentences()[:40]))
    return path


def first_layer_error(bundle: Path, graph_pass: Any, data: CalibrationData, folder: Path) -> float:
    """The mean squared error of the layers of the first input after the pass, on the calibration text."""
    model = load(Bundle.open(bundle).model_path)
    layers = linear_layers(model, Counts())
    names = [str(layer.node.outputs[0].name) for layer in layers if layer.x is layers[0].x]
    batches, _ = data.load(128, 8)
    before = outputs(model, names, batches, folder)
    model, _ = graph_pass(model, PassInputs(calibration_data=data))
    after = outputs(model, names, batches, folder)
    return float(np.mean([np.square(a - b).mean() for a, b in zip(before, after, strict=True)]))


def outputs(model: ir.Model, names: list[str], batches: list[dict], folder: Path) -> list[np.ndarray]:
    copy = model.clone()
    inline(copy)
    values = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs[:] = [values[name] for name in names]
    save(copy, folder / "probe.onnx")
    with OnnxRuntimeEngine(folder / "probe.onnx", threads=1) as engine:
        return [array for batch in batches for array in engine.run(batch).values()]


def test_gptq_beats_rounding_and_awq_is_never_worse(tiny_decoder: Path, text: Path, tmp_path: Path) -> None:
    data = CalibrationData.open(text, Bundle.open(tiny_decoder))
    rtn, gptq, awq = (
        first_layer_error(tiny_decoder, each, data, tmp_path) for each in (Rtn(**GROUPS), Gptq(**GROUPS), Awq(**GROUPS))
    )
    assert gptq < 0.9 * rtn
    assert awq <= 1.001 * rtn


@pytest.mark.parametrize("family", few(["llama", "opt"], ["llama"]))
def test_awq_with_8_bits_changes_little(
    family: str, make_decoder: Callable[..., tuple[Path, Path]], text: Path, tmp_path: Path
) -> None:
    sizes = {"intermediate_size": 64} if family == "llama" else {"ffn_dim": 64}
    _, path = make_decoder(family, **sizes)
    bundle = Bundle.open(path)
    batches, _ = CalibrationData.open(text, bundle).load(2, 2)
    model = load(bundle.model_path)
    (before,) = outputs(model, ["logits"], batches, tmp_path)
    model, counts = Awq(bits=8, group_size=32, skip=("lm_head",) if family == "llama" else ())(
        model, PassInputs(calibration_data=CalibrationData.open(text, bundle))
    )
    assert counts.rewritten["inputs scaled"] >= 4, counts.reasons
    (after,) = outputs(model, ["logits"], batches, tmp_path)
    assert np.abs(after - before).max() < 0.05 * np.abs(before).max()


def test_gptq_runs_in_compress(tiny_bundle: Path, text: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("passes: [{gptq: {group_size: 32, samples: 40, batch: 4}}]")
    result = compress(tiny_bundle, tmp_path / "made", recipe, calibration=text)
    assert result.passes[-1].counts["layers"] == 12
    made = Bundle.open(tmp_path / "made").manifest
    assert made.custom_operators == ["GroupMatMul"]
    assert made.calibration.method == "gptq" and made.calibration.tokens > 64


@pytest.mark.parametrize("kind", [Gptq, Awq])
def test_indivisible_rows_use_smaller_groups(
    kind: type, make_decoder: Callable[..., tuple[Path, Path]], text: Path, tmp_path: Path
) -> None:
    _, path = make_decoder("gpt2", n_embd=96)
    bundle = Bundle.open(path)
    data = CalibrationData.open(text, bundle)
    batches, _ = data.load(2, 2)
    model = load(bundle.model_path)
    (before,) = outputs(model, ["logits"], batches, tmp_path)
    model, counts = kind(bits=8)(model, PassInputs(calibration_data=data))
    assert counts.rewritten["layers"] == 8
    assert "of 6 layers, which have smaller groups: 96 for 96 inputs" in "".join(counts.reasons)
    (after,) = outputs(model, ["logits"], batches, tmp_path)
    assert np.abs(after - before).max() < 0.05 * np.abs(before).max()


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_too_little_calibration_text_is_refused(name: str, tiny_decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("two words\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"passes: [{{{name}: {{group_size: 32}}}}]")
    with pytest.raises(UsageError, match=f"tokens, pass {name} expects at least 64") as raised:
        compress(tiny_decoder, tmp_path / "made", recipe, calibration=tmp_path / "text.txt")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "made").exists()


def test_tokens_are_counted_where_there_are_any() -> None:
    """Recordings and images have none, but hundreds of positions each: no minimum applies to them."""
    ids = np.ones((2, 3), np.int64)
    assert count_tokens([{"input_ids": ids}, {"input_ids": ids, "attention_mask": np.array([[1, 0, 0]])}]) == 7
    assert count_tokens([{"features": np.zeros((1, 80, 3000), np.float32)}]) == 0


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Gptq(damping=0), "gptq: damping 0: expected more than 0"),
        (lambda: Gptq(bits=7), "gptq: bits 7"),
        (lambda: Awq(steps=1), "awq: steps 1: expected at least 2"),
    ],
)
def test_options_out_of_range_are_refused(made: Callable[[], object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        made()


RANDOM = np.random.default_rng(0)
A, B, C = (RANDOM.standard_normal((32, 32)).astype(np.float32) for _ in range(3))
V = RANDOM.standard_normal(32).astype(np.float32)
NORM = "h = LayerNormalization(x, v, b)"
FOLDABLE = {
    "layer norm": f"{NORM}  y = MatMul(h, a)",
    "layer norm for two": f"{NORM}  p = MatMul(h, a)  q = MatMul(h, c)  y = Add(p, q)",
    "product": "n = Tanh(x)  h = Mul(n, v)  y = MatMul(h, a)",
    "relu": "p = MatMul(x, a)  q = Add(p, v)  h = Relu(q)  y = MatMul(h, c)",
    "gemm": "h = Gemm(x, a, v)  y = MatMul(h, c)",
    "swiglu": "g = MatMul(x, a)  s = Sigmoid(g)  t = Mul(g, s)  u = MatMul(x, b2)  h = Mul(t, u)  y = MatMul(h, c)",
}
LEFT = {
    "residual": (f"{NORM}  p = MatMul(h, a)  y = Add(p, h)", "not only used by group-quantised linear layers"),
    "gelu": ("p = MatMul(x, a)  h = Gelu(p)  y = MatMul(h, c)", "factors do not commute with Gelu"),
    "input": ("y = MatMul(x, a)", "it is an input of the graph"),
    "shared vector": (f"{NORM}  m = Mul(x, v)  p = MatMul(h, a)  y = Add(p, m)", "factors do not commute with"),
    "used twice": ("p = MatMul(x, a)  h = Relu(p)  q = MatMul(h, c)  y = Add(q, p)", "p is used elsewhere too"),
}


def graph(parse: Callable[..., ir.Model], body: str) -> ir.Model:
    used = {"a": A, "b2": B, "c": C, "v": V, "b": V[::-1].copy()}
    names = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    weights = {name: array for name, array in used.items() if name in names}
    return parse(f"(float[n, 32] x) => (float[n, 32] y) {{ {body} }}", weights)


@pytest.mark.parametrize("body", FOLDABLE.values(), ids=FOLDABLE.keys())
def test_folded_factors_preserve_the_function(
    body: str, parse: Callable[..., ir.Model], compute: Callable[..., list[np.ndarray]]
) -> None:
    model = graph(parse, body)
    x = RANDOM.standard_normal((4, 32)).astype(np.float32)
    (before,) = compute(model, x=x)
    layers = {layer.node: layer for layer in linear_layers(model, Counts())}
    h = next(layer.x for layer in layers.values() if layer.x.name == "h")
    fold = find_fold(h, layers)
    assert isinstance(fold, Fold)
    factors = np.exp2(RANDOM.integers(-3, 4, 32)).astype(np.float32)  # powers of two: nothing is rounded
    rows: dict[ir.Node, np.ndarray] = {}
    fold.apply(factors, rows)
    for layer in layers.values():
        matrix = layer.matrix() * (factors if layer.x is h else 1)
        set_weight(layer, matrix * rows[layer.node][:, None] if layer.node in rows else matrix)
    (after,) = compute(model, x=x)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("body", "reason"), LEFT.values(), ids=LEFT.keys())
def test_factors_are_not_folded_into_unsupported_producers(
    body: str, reason: str, parse: Callable[..., ir.Model]
) -> None:
    model = graph(parse, body)
    layers = {layer.node: layer for layer in linear_layers(model, Counts())}
    last = list(layers.values())[-1]
    found = find_fold(last.x, layers)
    assert isinstance(found, str) and reason in found
