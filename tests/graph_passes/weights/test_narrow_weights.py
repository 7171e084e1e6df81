"""NarrowWeights: weights and tables in 16 bits, computed with in float32, on any runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.bundle.bundle import Bundle, create
from intaglio.bundle.effect import Effect
from intaglio.bundle.model_file import load, save
from intaglio.errors import GraphError
from intaglio.graph_passes import compress
from intaglio.graph_passes.weights.narrow_weights import NarrowWeights
from intaglio.runtime import build
from intaglio.runtime.engines.onnxruntime import engine as engine_module
from intaglio.runtime.engines.onnxruntime.packed_products import pack_products
from intaglio.runtime.engines.onnxruntime.session_operators import can_put_in
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.targets import TARGETS

TEXTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13]]


def logits(bundle: Path) -> list[np.ndarray]:
    with DecoderSession.open(bundle, batch=len(TEXTS)) as session:
        return [session.prefill(TEXTS), session.step([[3], [4]])]


def narrowed(bundle: Path, output: Path, dtype: str) -> Path:
    recipe = output.parent / f"{dtype}.yaml"
    recipe.write_text(f"passes:\n  - narrow_weights: {{dtype: {dtype}, smallest: 0}}\n")
    compress(bundle, output, recipe=str(recipe))
    return output


@pytest.mark.parametrize("family", ["llama", "gpt2"])  # the second has one table for embeddings and head
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_equal_rounded_weights_with_our_kernels_and_without(
    dtype: str,
    family: str,
    make_decoder: Callable[..., tuple[Path, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = make_decoder(family)[1]
    made = narrowed(bundle, tmp_path / "narrow", dtype)
    kinds = {value.dtype for value in load(made / "model.onnx").graph.initializers.values() if len(value.shape) == 2}
    assert kinds == {ir.DataType.BFLOAT16 if dtype == "bfloat16" else ir.DataType.FLOAT16}
    rounded = tmp_path / "rounded"
    model = load(bundle / "model.onnx")
    for value in model.graph.initializers.values():
        if len(value.shape) == 2:
            narrow = value.const_value.numpy().astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
            value.const_value = ir.tensor(narrow.astype(np.float32), name=value.name)
    copy_with(bundle, rounded, model)
    expected, found = logits(rounded), logits(made)
    monkeypatch.setattr(engine_module, "can_put_in", lambda target: False)
    for ours, plain, wanted in zip(found, logits(made), expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
        np.testing.assert_allclose(plain, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_engine_for_a_cpu_keeps_weights_in_16_bits(
    make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    made = narrowed(make_decoder("gpt2")[1], tmp_path / "narrow", "bfloat16")
    expected = logits(made)
    build(made, "ort-cpu")
    stored = load(made / "engines" / "ort-cpu.onnx").graph
    assert {value.dtype for value in stored.initializers.values() if len(value.shape) == 2} == {ir.DataType.BFLOAT16}
    for found, wanted in zip(logits(made), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_encoder_reads_16_bits_too(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its products are by our kernel where its weights are narrow, and only there."""
    packed: list[bool] = []
    monkeypatch.setattr(engine_module, "pack_products", lambda model: packed.append(True) or pack_products(model))
    made = narrowed(tiny_bundle, tmp_path / "narrow", "bfloat16")
    ids = np.arange(2, 14).reshape(2, 6)
    found, wanted = [], []
    for bundle, outputs in ((tiny_bundle, wanted), (made, found)):
        with open_engine(Bundle.open(bundle)) as engine:
            feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            outputs += engine.run(feeds).values()
        assert bool(packed) == (bundle == made and can_put_in(TARGETS["ort-cpu"]))
    for ours, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=0.02 * np.abs(expected).max())


def copy_with(bundle: Path, output: Path, model: ir.Model) -> None:
    """A copy of a bundle with another graph of the same inputs and outputs."""
    opened = Bundle.open(bundle)
    with create(output) as draft:
        draft.copy_companions(opened)
        draft.manifest = opened.manifest
        save(model, draft.model_path, beside=opened.data_of_others())


def product(weight: np.ndarray) -> ir.Model:
    """y = x·weight."""
    x, y = (ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT)) for name in ("x", "y"))
    constant = ir.Value(
        name="w",
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(weight.shape),
        const_value=ir.tensor(weight, name="w"),
    )
    x.shape, y.shape = ir.Shape([2, weight.shape[0]]), ir.Shape([2, weight.shape[1]])
    node = ir.node("MatMul", [x, constant], outputs=[y])
    graph = ir.Graph([x], [y], nodes=[node], initializers=[constant], opset_imports={"": 24}, name="g")
    return ir.Model(graph, ir_version=11)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), bits=st.integers(1, 24), exponent=st.integers(-30, 18))
def test_exact_takes_the_type_that_changes_no_number(seed: int, bits: int, exponent: int) -> None:
    random = np.random.default_rng(seed)
    weight = np.ldexp(random.integers(-(2**bits), 2**bits, (5, 7)).astype(np.float32), exponent)
    model, counts = NarrowWeights(smallest=0)(product(weight))
    stored = model.graph.initializers["w"].const_value.numpy()
    np.testing.assert_array_equal(stored.astype(np.float32), weight)
    with np.errstate(over="ignore"):
        fits = [np.array_equal(weight.astype(dtype), weight) for dtype in (ml_dtypes.bfloat16, np.float16)]
    assert stored.dtype == (ml_dtypes.bfloat16 if fits[0] else np.float16 if fits[1] else np.float32)
    assert bool(counts.reasons) == (stored.dtype == np.float32)


def test_numbers_beyond_float16_are_left_with_the_reason() -> None:
    weight = np.full((4, 4), 7e4, np.float32)
    model, counts = NarrowWeights("float16", smallest=0)(product(weight))
    assert counts.reasons == ["w: beyond float16's range"]
    assert [node.op_type for node in model.graph] == ["MatMul"]
    model, counts = NarrowWeights("bfloat16", smallest=0)(product(weight))
    assert counts.rewritten == {"weights": 1} and [node.op_type for node in model.graph] == ["Cast", "MatMul"]


def test_numbers_that_are_none_are_an_error() -> None:
    with pytest.raises(GraphError, match="w: contains NaN or infinity, expected finite weights"):
        NarrowWeights("bfloat16", smallest=0)(product(np.full((4, 4), np.nan, np.float32)))


def test_small_weights_and_those_that_others_read_stay() -> None:
    model, counts = NarrowWeights("bfloat16")(product(np.ones((4, 4), np.float32)))
    assert not counts.rewritten and not counts.reasons
    model = product(np.ones((4, 4), np.float32))
    node = ir.node("Neg", [model.graph.initializers["w"]])
    node.outputs[0].name = "negative"
    model.graph.append(node)
    assert NarrowWeights("bfloat16", smallest=0)(model)[1].reasons == ["w is used by Neg too"]


def test_effect_follows_the_type() -> None:
    effects = [NarrowWeights(dtype).effect for dtype in ("exact", "float16", "bfloat16")]
    assert effects == [Effect.EXACT, Effect.FLOAT16, Effect.WEIGHTS_8]
    assert not NarrowWeights("bfloat16").compresses_weights


def test_weights_of_16_bits_are_quantised_by_other_recipes(
    make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    bundle = make_decoder("llama")[1]
    made = narrowed(bundle, tmp_path / "narrow", "bfloat16")
    compress(made, tmp_path / "both", recipe="rtn")
    assert any(node.op_type == "GroupMatMul" for node in load(tmp_path / "both" / "model.onnx").graph)
