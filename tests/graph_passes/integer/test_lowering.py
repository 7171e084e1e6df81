"""A float encoder is lowered to integer operators that compute the same within the precision of 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from observed import ATTENTION, OUTPUT, WHERE, lower, run_integer, values

from intaglio.errors import GraphError
from intaglio.graph_passes.graphs import infer_shapes
from intaglio.graph_passes.integer.audit_integer_only import AuditIntegerOnly
from intaglio.graph_passes.integer.check_encoder import CheckEncoder

Array = npt.NDArray[Any]
Encoder = Callable[..., ir.Model]
Feeds = dict[str, Array]

INTEGER = {
    "IntAttention": 1,
    "IntLinear": 6,
    "IntLayerNorm": 3,  # two of them with the residual sum before them
    "Requantize": 1,  # of the embedding, whose channels have their own scales
}


def count(model: ir.Model) -> dict[str, int]:
    names = [node.op_type for node in model.graph if node.domain]
    return {name: names.count(name) for name in names}


def close(model: ir.Model, feeds: Feeds, expected: Array, tolerance: float = 0.15) -> None:
    """Positions of tokens: the queries of padding are undefined."""
    (got,) = run_integer(model, feeds)
    tokens = feeds["m"] == 1
    difference = np.abs(got - expected)[tokens]
    assert difference.max() < tolerance and difference.mean() < tolerance / 5, (difference.max(), difference.mean())


def test_encoder_becomes_integer_only(encoder: Encoder, feeds: Feeds) -> None:
    model = encoder()
    expected = values(model, ["z"], feeds)[0]
    reasons = lower(model, feeds, equalize=True)
    assert not any(reasons.values()), reasons
    assert count(model) == INTEGER
    AuditIntegerOnly()(model)
    close(model, feeds, expected)


def test_equalization_preserves_the_float_function(encoder: Encoder, feeds: Feeds) -> None:
    from observed import observe

    from intaglio.graph_passes.integer.equalize import Equalize

    model = encoder()
    expected = values(model, ["z"], feeds)[0]
    _, counts = Equalize()(observe(model, feeds))
    assert counts.rewritten == {"activations": 4} and not counts.reasons
    np.testing.assert_allclose(values(model, ["z"], feeds)[0], expected, atol=1e-5)


def test_equalization_leaves_room_for_channels_that_calibration_does_not_reach(
    parse: Callable[..., ir.Model],
) -> None:
    from observed import observe

    from intaglio.graph_passes.integer.equalize import Equalize

    table = np.ones((4, 5), np.float32) * np.array([1, 0, 0.01, 4, 1], np.float32)
    ones = np.ones(5, np.float32)
    weight = np.full((5, 2), 0.25, np.float32)
    weight[4] = 0
    model = parse(
        "(int64[n] ids) => (float[n, 2] y) { x = Gather(t, ids) h = MatMul(x, w) y = LayerNormalization(h, g) }",
        {"t": table, "w": weight, "g": ones[:2]},
    )
    observe(model, {"ids": np.arange(4)})
    Equalize(strength=0.5)(model)
    factors = next(v.const_value.numpy() for name, v in model.graph.initializers.items() if "equalizer" in name)
    # 1 / √(max|x| / 0.25), where 0 and 0.01 count as the median, 1; but 1 for the channel without weights.
    np.testing.assert_allclose(factors, [0.5, 0.5, 0.5, 0.25, 1])


MASKS = {
    "where": "  keep = Cast <to = 9> (m) keep4 = Unsqueeze(keep, axes) mask = Where(keep4, zero, low)\n",
    "turned around": "  kept = Cast <to = 9> (m) h = Not(kept) h4 = Unsqueeze(h, axes) mask = Where(h4, low, zero)\n",
    "difference": "  real = Cast <to = 1> (m) r4 = Unsqueeze(real, axes) left = Sub(one, r4) mask = Mul(left, low)\n",
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_of_every_form_stay_effective(encoder: Encoder, feeds: Feeds, mask: str) -> None:
    model = encoder(mask=mask)
    expected = values(model, ["z"], feeds)[0]
    lower(model, feeds)
    assert count(model) == INTEGER
    AuditIntegerOnly()(model)
    close(model, feeds, expected)
    other = {**feeds, "ids": np.where(feeds["m"] == 1, feeds["ids"], 3)}
    tokens = feeds["m"] == 1
    np.testing.assert_array_equal(run_integer(model, feeds)[0][tokens], run_integer(model, other)[0][tokens])


def change(text: str, old: str, new: str) -> str:
    assert old in text, old
    return text.replace(old, new)


FACTORS = {
    "at the queries": ("sm = Mul(s, half)", "sm = Identity(s)", "qt = Transpose <perm = [0, 2, 1, 3]> (qr)",
                       "qh = Mul(qr, half) qt = Transpose <perm = [0, 2, 1, 3]> (qh)"),
    "a division": ("sm = Mul(s, half)", "sm = Div(s, two)", "kr", "kr"),
}  # fmt: skip


@pytest.mark.parametrize("form", FACTORS)
def test_scale_of_the_scores_may_be_at_other_nodes(encoder: Encoder, feeds: Feeds, form: str) -> None:
    old, new, second, replaced = FACTORS[form]
    attention = change(change(ATTENTION, old, new), second, replaced)
    attention = attention.replace("sm = Identity(s) sa = Add(sm", "sa = Add(s").replace("two", "half")
    model = encoder(attention=attention)
    expected = values(model, ["z"], feeds)[0]
    lower(model, feeds)
    assert count(model) == INTEGER
    close(model, feeds, expected)


BIAS = """
  n1 = Shape <start = 1, end = 2> (ids) length = Squeeze(n1) place = Range(zero64, length, one64)
  rows = Unsqueeze(place, axis1) columns = Unsqueeze(place, axis0) apart = Sub(rows, columns) distance = Abs(apart)
  bucket = Min(distance, three64) found = Gather(table, bucket) turned = Transpose <perm = [2, 0, 1]> (found)
  bias = Unsqueeze(turned, axis0)
"""


@pytest.mark.parametrize("expanded", [False, True])
def test_bias_of_relative_positions_is_added_to_the_scores(encoder: Encoder, feeds: Feeds, expanded: bool) -> None:
    """Also where it is repeated for each text of a batch."""
    repeated = "" if not expanded else "  s4 = Shape(s) each = Expand(bias, s4)\n"
    added = f"sm = Mul(s, half) {repeated} sb = Add(sm, {'each' if expanded else 'bias'}) sa = Add(sb, mask)"
    attention = change(ATTENTION, "sm = Mul(s, half) sa = Add(sm, mask)", added)
    model = encoder(attention=attention, mask=WHERE + BIAS)
    expected = values(model, ["z"], feeds)[0]
    unbiased = values(encoder(), ["z"], feeds)[0]
    reasons = lower(model, feeds)
    assert not any(reason for name, reason in reasons.items() if name != "fuse_residual"), reasons
    assert count(model)["IntAttention"] == 1
    AuditIntegerOnly()(model)
    close(model, feeds, expected, 0.2)
    assert np.abs(expected - unbiased)[feeds["m"] == 1].max() > 0.5


def test_attention_without_a_mask_is_lowered(encoder: Encoder, feeds: Feeds) -> None:
    model = encoder(attention=change(ATTENTION, "sa = Add(sm, mask) p = Softmax(sa)", "p = Softmax(sm)"), mask="")
    expected = values(model, ["z"], feeds)[0]
    lower(model, feeds)
    assert count(model) == INTEGER
    close(model, feeds, expected)


def test_single_head_attention_becomes_softmax_and_products(encoder: Encoder, feeds: Feeds) -> None:
    attention = """
      q = MatMul(e, wq) k = MatMul(e, wk) kt = Transpose <perm = [0, 2, 1]> (k) v = MatMul(e, wv)
      s = MatMul(q, kt) sm = Mul(s, half) sa = Add(sm, mask) p = Softmax(sa) cr = MatMul(p, v)
    """
    mask = "  keep = Cast <to = 9> (m) row = Unsqueeze(keep, first) mask = Where(row, zero, low)\n"
    model = encoder(attention=attention, mask=mask.replace("first", "axis1"))
    expected = values(model, ["z"], feeds)[0]
    reasons = lower(model, feeds)
    assert "not split into heads" in reasons["integer_attention"][0]
    assert count(model) == {
        "IntMatMul": 2,
        "IntSoftmax": 1,
        "IntLinear": 6,
        "IntLayerNorm": 3,
        "Requantize": 1,
    }
    AuditIntegerOnly()(model)
    close(model, feeds, expected, 0.25)


def test_gelu_for_a_linear_layer_uses_all_8_bits(encoder: Encoder, feeds: Feeds) -> None:
    model = encoder()
    lower(model, feeds, equalize=True)
    (gelu,) = (node for node in model.graph if node.attributes.get_string("activation", ""))
    assert gelu.attributes.get_int("out_zero_point") < -64
    graph = ir.to_proto(model)
    graph.graph.output.append(onnx.helper.make_tensor_value_info(gelu.outputs[0].name, onnx.TensorProto.INT8, None))
    with_integers = ir.from_proto(graph)
    assert [run_integer(with_integers, feeds)[1].min(), run_integer(with_integers, feeds)[1].max()] == [-128, 127]


def test_gelu_with_two_scales_has_no_zero_point(encoder: Encoder, feeds: Feeds) -> None:
    output = change(OUTPUT, "d = MatMul(a, wd)", "at = Tanh(a) ag = Add(a, at) d = MatMul(ag, wd)")
    model = encoder(output=output)
    lower(model, feeds)
    assert not any(node.attributes.get_int("out_zero_point", 0) for node in model.graph)


def test_gelu_with_other_consumers_is_not_fused(encoder: Encoder, feeds: Feeds) -> None:
    output = change(OUTPUT, "d = MatMul(a, wd)", "ag = Add(a, fb) d = MatMul(ag, wd)")
    model = encoder(output=output)
    expected = values(model, ["z"], feeds)[0]
    lower(model, feeds)
    assert count(model)["IntGelu"] == 1 and count(model)["IntAdd"] == 1
    AuditIntegerOnly()(model)
    close(model, feeds, expected, 0.25)


def test_operator_without_integer_form_is_named_or_kept(encoder: Encoder, feeds: Feeds) -> None:
    model = encoder(output=change(OUTPUT, "a = Gelu(fb)", "a = Tanh(fb)"))
    expected = values(model, ["z"], feeds)[0]
    lower(model, feeds)
    with pytest.raises(GraphError, match=r"not integer-only: .*Tanh.* --allow-float"):
        AuditIntegerOnly()(model)
    _, counts = AuditIntegerOnly(allow_float=True)(model)
    assert len(counts.reasons) == 1 and "Tanh" in counts.reasons[0]
    assert count(model)["IntLinear"] == 6, "only the operator itself stays in floating point"
    close(model, feeds, expected)


def test_operator_without_integer_form_is_refused_before_calibration(encoder: Encoder) -> None:
    model = encoder(output=change(OUTPUT, "a = Gelu(fb)", "a = Tanh(fb)"), head="t = Sigmoid(y) z = Mul(t, half)")
    infer_shapes(model)
    with pytest.raises(GraphError, match=r"not integer-only: Tanh \w+ compute in .* --allow-float, .* or int8-weights"):
        CheckEncoder()(model)
    _, counts = CheckEncoder(allow_float=True)(model)
    assert counts.rewritten == {"tables": 1, "normalisations": 3}


def test_head_stays_in_floating_point(encoder: Encoder, feeds: Feeds) -> None:
    model = encoder(head="t = Tanh(y) z = Mul(t, half)")
    expected = values(model, ["z"], feeds)[0]
    lower(model, feeds)
    AuditIntegerOnly()(model)
    assert {"Tanh", "Mul"} <= {node.op_type for node in model.graph}
    close(model, feeds, expected)


def test_graph_without_embedding_is_refused(parse: Callable[..., ir.Model]) -> None:
    ones = np.ones(2, np.float32)
    model = parse("(float[n, 2] x) => (float[n, 2] y) { y = LayerNormalization(x, g) }", {"g": ones})
    with pytest.raises(GraphError, match="expected an encoder"):
        AuditIntegerOnly()(model)


def test_uncalibrated_activations_stop_the_recipe(encoder: Encoder) -> None:
    from intaglio.graph_passes.quantize_dequantize.quantize_activations import QuantizeActivations

    model = encoder()
    infer_shapes(model)
    with pytest.raises(GraphError, match=r"was not calibrated\. Put the pass calibrate before"):
        QuantizeActivations()(model)


def test_audit_names_float_nodes(encoder: Encoder, feeds: Feeds) -> None:
    with pytest.raises(GraphError, match=r"and \d+ more compute in floating point"):
        AuditIntegerOnly()(encoder())
