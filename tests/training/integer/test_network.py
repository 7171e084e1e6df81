"""The torch network against ONNX Runtime: every inner integer, before and after its weights change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from tiny_encoders import save_encoder

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import GraphError
from intaglio.exporters import export
from intaglio.runtime.text.tokenizer import Tokenizer
from intaglio.training.integer.network import IntegerNetwork

TEXTS = ["a", "the quick brown fox, 12.5", "x" * 40]
RunAll = Callable[[ir.Model, dict[str, Any]], dict[str, Any]]


def check(model: ir.Model, network: IntegerNetwork, bundle: Path, run_all: RunAll) -> None:
    """Assert that integers are equal, and floats, which follow the encoder, up to rounding."""
    feeds = Tokenizer.open(Bundle.open(bundle)).feeds(TEXTS)
    made = network.intermediate({name: torch.from_numpy(array) for name, array in feeds.items()})
    expected = run_all(model, feeds)
    assert any(array.dtype == np.int8 for array in expected.values())
    for name, array in expected.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(made[name].numpy(), array, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(made[name].numpy().astype(np.int64), array, err_msg=name)


def test_exported_weights_equal_the_trained_ones(integer_bundle: Path, run_all: RunAll) -> None:
    model = load(integer_bundle / "model.onnx")
    network = IntegerNetwork(model, embeddings=True)
    check(model, network, integer_bundle, run_all)
    torch.manual_seed(0)
    with torch.no_grad():
        for each, shadow in zip(network.trainable, network.shadows, strict=True):
            shadow.add_(torch.randn_like(shadow), alpha=20 * each.unit)
    network.project()
    network.write()
    check(model, network, integer_bundle, run_all)
    assert all(
        np.abs(array.astype(np.int64)).max() <= 127 for array in network.integers().values() if array.itemsize == 1
    )


@pytest.mark.proof
def test_other_families_and_heads_are_trained(
    make_checkpoint: Callable[..., Path],
    make_integer_bundle: Callable[[Path], Path],
    run_all: RunAll,
    tmp_path: Path,
) -> None:
    """RoBERTa counts its positions from the tokens; its head predicts words."""
    export(str(make_checkpoint("RobertaForMaskedLM", num_hidden_layers=1)), tmp_path / "float", check=False)
    bundle = make_integer_bundle(tmp_path / "float")
    model = load(bundle / "model.onnx")
    network = IntegerNetwork(model)
    check(model, network, bundle, run_all)
    feeds = Tokenizer.open(Bundle.open(bundle)).feeds(TEXTS)
    network({name: torch.from_numpy(array) for name, array in feeds.items()})["logits"].square().sum().backward()
    assert all(shadow.grad is not None and shadow.grad.isfinite().all() for shadow in network.shadows)


@pytest.mark.proof
def test_encoder_with_rotary_embeddings_and_gates_is_trained(
    make_integer_bundle: Callable[[Path], Path], run_all: RunAll, tmp_path: Path
) -> None:
    """A ModernBERT: its residual stream has more bits than float32."""
    export(str(save_encoder(tmp_path / "checkpoint", "modernbert")), tmp_path / "float")
    bundle = make_integer_bundle(tmp_path / "float")
    model = load(bundle / "model.onnx")
    network = IntegerNetwork(model)
    check(model, network, bundle, run_all)
    feeds = Tokenizer.open(Bundle.open(bundle)).feeds(TEXTS)
    outputs = network({name: torch.from_numpy(array) for name, array in feeds.items()})
    outputs["last_hidden_state"].square().sum().backward()
    assert all(shadow.grad is not None and shadow.grad.isfinite().all() for shadow in network.shadows)


def test_trainable_parameters_are_weights_biases_and_normalisations(integer_bundle: Path) -> None:
    kinds = [each.kind for each in IntegerNetwork(load(integer_bundle / "model.onnx")).trainable]
    layers = 2
    assert kinds.count("weight") == kinds.count("bias") == 4 * layers  # one product for query, key and value
    assert kinds.count("layer_norm") == 2 * (1 + 2 * layers)
    with_tables = [each.kind for each in IntegerNetwork(load(integer_bundle / "model.onnx"), True).trainable]
    assert with_tables.count("embedding") == 3


def test_unknown_operator_is_named(integer_bundle: Path) -> None:
    model = load(integer_bundle / "model.onnx")
    node = next(node for node in model.graph if node.op_type == "Unsqueeze")
    node.op_type = "Det"
    with pytest.raises(GraphError, match=f"^Det {node.name}: training does not support this operator, only those"):
        IntegerNetwork(model)


def test_graph_without_integer_operators_is_refused() -> None:
    model = ir.from_onnx_text('<ir_version: 10, opset_import: ["": 23]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    with pytest.raises(GraphError, match="no integer weights to train"):
        IntegerNetwork(model)
