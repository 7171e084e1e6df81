"""The choice of a token: each instruction set equals the reference to the bit, and the reference the formula."""

from __future__ import annotations

import numpy as np
import pytest
from covering import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_backends import BACKENDS, use_backend

from intaglio.plugins.native import token_choice
from intaglio.plugins.native.token_choice import DRAW_BITS, Filters, reference
from intaglio.plugins.native.token_choice.reference import FARTHEST, FRACTION, ONE

STEP = Filters(np.float32(1), 0, 1 << 32, 0)  # a distance is a difference of logits


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_backend(request.param, monkeypatch, token_choice, "_kernels")
    return str(request.param)


@st.composite
def scores(draw: st.DrawFn) -> np.ndarray:
    """Logits of a flat or a sure model, some equal, some not allowed; more than a block of tokens, or one."""
    size, seed = draw(st.integers(1, 3000)), draw(st.integers(0, 2**32))
    random = np.random.default_rng(seed)
    found = (draw(st.sampled_from([1e-3, 1, 5, 40])) * random.standard_normal(size)).astype(np.float32)
    if draw(st.booleans()):
        found = np.round(found * 4) / 4
    if draw(st.booleans()):
        found[random.random(size) < 0.7] = -np.inf
        found[random.integers(size)] = -0.0
    return found


probabilities = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
filters = st.builds(
    Filters.of,
    st.one_of(st.floats(1e-5, 5), st.just(1e300)),
    st.one_of(st.just(0), st.integers(0, 3000)),
    probabilities,
    probabilities,
)
draws = st.integers(0, 2**DRAW_BITS - 1)


@given(scores=scores(), filters=filters, draw=draws)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernels_equal_the_reference(scores: np.ndarray, filters: Filters, draw: int, backend: str) -> None:
    found = token_choice.weights(scores, filters)
    np.testing.assert_array_equal(found, reference.weights(scores, filters))
    token = token_choice.choose(scores, filters, draw)
    assert token == reference.choose(scores, filters, draw) and found[token] > 0
    assert token_choice.choose(scores, filters, draw, float(scores.max())) == token


@given(scores=scores(), count=st.integers(0, 3100))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_likeliest_tokens_equal_a_full_sort(scores: np.ndarray, count: int, backend: str) -> None:
    tokens, total = token_choice.likeliest(scores, count)
    assert tokens.tolist() == np.argsort(-scores, kind="stable")[:count].tolist()
    assert total == int(reference.weights(scores, Filters.of(1.0)).sum()) / 2.0**ONE
    assert total == pytest.approx(np.exp(scores.astype(np.float64) - scores.max()).sum(), rel=1e-6)


def test_weights_of_an_octave_are_powers_of_two(backend: str) -> None:
    """Every distance within it, and further octaves, whose weights are halves, down to none."""
    distances = np.arange(1 << FRACTION, dtype=np.float32)
    found = token_choice.weights(-distances, STEP).astype(np.float64)
    np.testing.assert_allclose(found / 2.0**ONE, 2.0 ** (-distances.astype(np.float64) / (1 << FRACTION)), rtol=3e-7)
    assert (np.diff(found) < 0).all()
    far = np.concatenate([[0], np.arange(FARTHEST >> FRACTION, dtype=np.float32) * (1 << FRACTION)])
    octaves = token_choice.weights(-far, STEP)
    assert octaves.tolist() == [1 << ONE, *(1 << ONE >> octave for octave in range(FARTHEST >> FRACTION))]


def test_draws_are_in_proportion_to_the_weights(backend: str) -> None:
    """A token has as many of the numbers that may be drawn as its probability says."""
    scores = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    numbers = (np.arange(2000) + 0.5) * 2**DRAW_BITS / 2000
    tokens = [token_choice.choose(scores, Filters.of(1.0, top_p=0.9), int(number)) for number in numbers]
    np.testing.assert_allclose(np.bincount(tokens) / 2000, np.array([0.5, 0.3, 0.15]) / 0.95, atol=1e-3)
    assert tokens == sorted(tokens)
    assert token_choice.choose(scores, Filters.of(1.0), 2**DRAW_BITS - 1) == 3


def test_filters_keep_ties_with_the_last_token(backend: str) -> None:
    scores = np.array([0, 1, 1, 2, 0, -1], np.float32)
    assert np.flatnonzero(token_choice.weights(scores, Filters.of(1.0, top_k=2))).tolist() == [1, 2, 3]
    assert np.flatnonzero(token_choice.weights(scores, Filters.of(1.0, top_p=0.6))).tolist() == [1, 2, 3]
    assert np.flatnonzero(token_choice.weights(scores, Filters.of(1.0, top_p=0.0))).tolist() == [3]
    assert np.flatnonzero(token_choice.weights(scores, Filters.of(1.0, min_p=0.36))).tolist() == [1, 2, 3]


def test_equal_scores_are_equally_probable(backend: str) -> None:
    scores = np.full(200_000, -7.25, np.float32)  # the sum of their weights takes more than 57 bits
    for filters in (Filters.of(1.0), Filters.of(0.5, top_k=3), Filters.of(1.0, top_p=0.5, min_p=1.0)):
        assert (token_choice.weights(scores, filters) == 1 << ONE).all()
        assert token_choice.choose(scores, filters, 2 ** (DRAW_BITS - 1)) == 100_000
