"""Sums of an encoder that normalises before its layers stay exact, so that one large value does not cost the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from observed import lower, observe, run_integer, values

from intaglio.graph_passes.calibration.activation_statistics import KEY, Statistics
from intaglio.graph_passes.integer.audit_integer_only import AuditIntegerOnly
from intaglio.graph_passes.quantize_dequantize.residual_streams import TERM, TOTAL, ResidualStream, residual_streams

Array = npt.NDArray[Any]
Parse = Callable[..., ir.Model]

WORDS, WIDTH, MASSIVE = 4, 8, 5000.0
STREAM = """(int64[batch, sequence] ids) => (float[batch, sequence, 8] z) {
  x = Gather(words, ids) e = LayerNormalization(x, g) f = MatMul(e, wf) fb = Add(f, bf) a = Gelu(fb) d = MatMul(a, wd)
  r = Add(x, d) n = LayerNormalization(r, g) h = MatMul(n, wo) y = Add(r, h) z = LayerNormalization(y, g)
}"""


def stream(parse: Parse) -> ir.Model:
    """Two blocks, of which the first adds a massive value to one channel of the first word."""
    random = np.random.default_rng(6)
    words = random.normal(size=(WORDS, WIDTH))
    normalised = (words - words.mean(1, keepdims=True)) / words.std(1, keepdims=True)
    first = np.linalg.lstsq(normalised, np.eye(WORDS)[0], rcond=None)[0]  # 1 for the first word, 0 for the others
    wf, wd = random.normal(size=(WIDTH, WIDTH)) / 3, random.normal(size=(WIDTH, WIDTH)) / 3
    wf[:, 0], wd[:, 0], wd[0] = 20 * first, 0, np.eye(WIDTH)[0] * MASSIVE / 10
    weights = {
        "words": words,
        "g": np.ones(WIDTH),
        "wf": wf,
        "bf": np.eye(WIDTH)[0] * -10,
        "wd": wd,
        "wo": random.normal(size=(WIDTH, WIDTH)) / 3,
    }
    return parse(STREAM, {name: array.astype(np.float32) for name, array in weights.items()})


def test_massive_value_of_a_word_costs_the_others_nothing(parse: Parse) -> None:
    """In 16 bits for all, the steps of the sums would be 0.17, and the errors nine times as large."""
    model, feeds = stream(parse), {"ids": np.array([[0, 1, 2, 3]])}
    expected, total = values(model, ["z", "r"], feeds)
    assert total[0, 0].max() > MASSIVE * 0.9 and np.abs(total[0, 1:]).max() < 5
    reasons = lower(model, feeds, equalize=True)
    assert not any(reasons.values()), reasons
    AuditIntegerOnly()(model)
    difference = np.abs(run_integer(model, feeds)[0] - expected)[0, 1:]
    assert difference.max() < 0.06 and difference.mean() < 0.016, (difference.max(), difference.mean())


def test_sums_that_are_normalised_are_no_stream(parse: Parse) -> None:
    model = parse(
        "(int64[n, s] ids) => (float[n, s, 8] z) { x = Gather(words, ids) h = MatMul(x, w) y = Add(x, h) "
        "z = LayerNormalization(y, g) }",
        {"words": np.ones((4, 8), np.float32), "w": np.eye(8, dtype=np.float32), "g": np.ones(8, np.float32)},
    )
    observe(model, {"ids": np.array([[0]])})
    assert residual_streams(list(model.graph)) == (set(), {})


@settings(max_examples=examples(30))
@given(largest=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=60), seed=st.integers(0, 2**32 - 1))
def test_terms_fit_in_16_bits_and_their_sum_in_31(largest: list[float], seed: int) -> None:
    random = np.random.default_rng(seed)
    terms, rows = [], []
    for each in largest:
        row = (random.uniform(-1, 1, 5) * each).astype(np.float32)
        row[random.integers(5)] = each
        value, seen = ir.Value(name="term"), Statistics()
        seen.add(row[None], channels=True)
        value.meta[KEY] = seen
        terms.append(value)
        rows.append(row)
    made = ResidualStream(terms)
    scales = [made.scales(term).astype(np.float64) for term in terms]
    unit = min(scale.min() for scale in scales)
    for row, scale in zip(rows, scales, strict=True):
        assert (np.frexp(scale / unit)[0] == 0.5).all() and (scale / unit <= 2**15).all()
        assert (np.abs(row) <= scale * TERM).all()
    assert sum((scale / unit).max() * 2**15 for scale in scales) <= TOTAL * 1.001
