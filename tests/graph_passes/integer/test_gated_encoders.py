"""Encoders with rotary embeddings and gated layers become integer-only, or the node that prevents it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from gated_encoder import ATTENTION, GATED, GATHERED, SLICED, SPLIT, gated_encoder
from observed import lower, run_integer, values

from intaglio.errors import GraphError
from intaglio.graph_passes.integer.audit_integer_only import AuditIntegerOnly
from intaglio.graph_passes.integer.positions.merge_rotary import MergeRotary
from intaglio.graph_passes.integer.split_projections import SplitProjections

Feeds = dict[str, npt.NDArray[Any]]
Parse = Callable[..., ir.Model]
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
CUTS = {"slices": SLICED, "a split": SPLIT, "gathers": GATHERED}


def types(model: ir.Model) -> dict[str, int]:
    names = [node.op_type for node in model.graph]
    return {name: names.count(name) for name in sorted(set(names))}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_parts_of_a_product_become_products_with_equal_results(parse: Parse, feeds: Feeds, cut: str) -> None:
    model = gated_encoder(parse, cut)
    expected = values(model, ["z"], feeds)[0]
    _, counts = SplitProjections()(model)
    assert counts.rewritten == {"parts": 5}  # q, k and v; both factors of the gated layer
    assert types(model)["MatMul"] == 3 + 2 + 2 + 2 and "Split" not in types(model)
    np.testing.assert_allclose(values(model, ["z"], feeds)[0], expected, atol=1e-6)


def test_product_with_another_user_is_not_split(parse: Parse, feeds: Feeds) -> None:
    model = gated_encoder(parse, gated=GATED.replace("a = Gelu(fa)", "a = Gelu(fa) whole = Relu(f)"))
    SplitProjections()(model)
    assert types(model)["Split"] == 1


def test_rotary_embedding_becomes_one_node_with_equal_results(parse: Parse, feeds: Feeds) -> None:
    model = gated_encoder(parse)
    expected = values(model, ["z"], feeds)[0]
    SplitProjections()(model)
    _, counts = MergeRotary()(model)
    assert counts.rewritten == {"rotary embeddings": 2} and not counts.reasons
    assert types(model)["RotaryEmbedding"] == 2 and types(model)["Cos"] == types(model)["Sin"] == 1
    np.testing.assert_allclose(values(model, ["z"], feeds)[0], expected, atol=1e-6)


def test_older_opsets_keep_their_rotary_embeddings(parse: Parse) -> None:
    model = gated_encoder(parse)
    model.graph.opset_imports[""] = 22
    _, counts = MergeRotary()(model)
    assert not counts.rewritten and counts.reasons == ["opset 22, RotaryEmbedding needs 23; run raise_opset first"]


OTHER_ROTATIONS = {
    "the other sign": ("qn = Neg(qb)", "qn = Identity(qb)"),
    "the halves in order": ("qc = Concat <axis = -1> (qn, qa)", "qc = Concat <axis = -1> (qa, qn)"),
    "two cosines": ("q2 = Mul(qc, sine)", "q2 = Mul(qc, cosine)"),
    "another half": ("qa = Slice(qt, i0, half, axis3)", "qa = Slice(qt, i1, i3, axis3)"),
}


@pytest.mark.parametrize("change", OTHER_ROTATIONS.values(), ids=OTHER_ROTATIONS)
def test_other_rotations_are_not_merged(parse: Parse, feeds: Feeds, change: tuple[str, str]) -> None:
    assert change[0] in ATTENTION
    model = gated_encoder(parse, attention=ATTENTION.replace(*change))
    SplitProjections()(model)
    _, counts = MergeRotary()(model)
    assert counts.rewritten == {"rotary embeddings": 1}  # of the keys


def integer(model: ir.Model, feeds: Feeds) -> dict[str, list[str]]:
    """Make `model` integer in place, after the passes that the recipe begins with."""
    SplitProjections()(model)
    MergeRotary()(model)
    return lower(model, feeds, equalize=True)


def test_gated_encoder_becomes_integer_only(parse: Parse, feeds: Feeds) -> None:
    model = gated_encoder(parse)
    expected = values(model, ["z"], feeds)[0]
    reasons = integer(model, feeds)
    assert not any(reasons.values()), reasons
    AuditIntegerOnly()(model)
    found = [node.op_type for node in model.graph for value in node.outputs if value.dtype in FLOATS]
    assert found == ["DequantizeLinear"], "the output's"
    assert {"IntRotary": 2, "IntAttention": 1, "IntLinear": 7, "IntLayerNorm": 3}.items() <= types(model).items()
    tokens = feeds["m"] == 1
    difference = np.abs(run_integer(model, feeds)[0] - expected)[tokens]
    assert difference.max() < 0.15 and difference.mean() < 0.03, (difference.max(), difference.mean())


def test_masked_and_distant_tokens_have_no_influence(parse: Parse, feeds: Feeds) -> None:
    model = gated_encoder(parse)
    integer(model, feeds)
    first = run_integer(model, feeds)[0]
    changed = {**feeds, "ids": feeds["ids"].copy()}
    changed["ids"][0, 5] += 1 - 2 * (changed["ids"][0, 5] > 0)
    changed["ids"][feeds["m"] == 0] = 3
    second = run_integer(model, changed)[0]
    np.testing.assert_array_equal(first[0, :3], second[0, :3])  # the window reaches two tokens
    assert (first[0, 3] != second[0, 3]).any()
    np.testing.assert_array_equal(first[1:][feeds["m"][1:] == 1], second[1:][feeds["m"][1:] == 1])


def test_other_gate_is_named(parse: Parse, feeds: Feeds) -> None:
    model = gated_encoder(parse, gated=GATED.replace("a = Gelu(fa)", "sg = Sigmoid(fa) a = Mul(fa, sg)"))
    integer(model, feeds)
    with pytest.raises(GraphError, match=r"not integer-only: .*Sigmoid.* or use the recipe int8-qdq"):
        AuditIntegerOnly()(model)
