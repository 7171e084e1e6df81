"""Sampling: the filters against those of `transformers`, and properties for any logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from intaglio.errors import EngineError, UsageError
from intaglio.runtime.sampling.likelihood import best, largest_probability, likeliest, softmax, surprise
from intaglio.runtime.sampling.sampler import Sampler, Sampling, distribution

samplings = st.builds(
    Sampling,
    temperature=st.floats(1e-3, 100),
    top_k=st.integers(0, 70),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.25, 4),
)
any_logits = arrays(np.float32, st.integers(1, 60), elements=st.floats(-100, 100, width=32))


@given(any_logits, samplings)
def test_distribution_is_nonempty_and_sums_to_one(logits: np.ndarray, sampling: Sampling) -> None:
    probabilities = distribution(logits, sampling, seen=[0])
    assert probabilities.shape == logits.shape
    assert (probabilities >= 0).all()
    assert probabilities.sum() == pytest.approx(1)
    assert np.count_nonzero(probabilities) >= 1


def warped(logits: np.ndarray, sampling: Sampling, seen: list[int]) -> Any:
    """The probabilities that the logits processors of `transformers` leave, in its order, in float64."""
    import torch
    from transformers.generation import logits_process as hf

    processors = hf.LogitsProcessorList([hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    processors.append(hf.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(hf.TopKLogitsWarper(sampling.top_k))
    processors.append(hf.TopPLogitsWarper(sampling.top_p))
    processors.append(hf.MinPLogitsWarper(sampling.min_p))
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    return torch.softmax(processors(torch.tensor([seen]), scores), dim=-1)[0].numpy()


@given(st.integers(0, 2**32), st.integers(1, 60), samplings, st.floats(0.1, 10))
def test_filters_equal_transformers(seed: int, size: int, sampling: Sampling, spread: float) -> None:
    random = np.random.default_rng(seed)
    logits = (spread * random.standard_normal(size)).astype(np.float32)
    seen = random.integers(0, size, 5).tolist()
    expected = warped(logits, sampling, seen)
    # Logits are rounded to steps of 2^-20 octaves of probability.
    np.testing.assert_allclose(distribution(logits, sampling, seen), expected, rtol=3e-6, atol=1e-7)


@given(arrays(np.float32, st.integers(1, 40), elements=st.integers(-3, 3)))
def test_greedy_breaks_ties_like_torch(logits: np.ndarray) -> None:
    import torch

    assert best(logits) == int(torch.argmax(torch.from_numpy(logits)))
    assert Sampler(Sampling()).choose(logits) == best(logits)
    assert distribution(logits, Sampling()).argmax() == best(logits)


@given(any_logits, samplings, st.integers(0, 2**32))
@settings(max_examples=examples(50))
def test_seed_reproduces_possible_tokens(logits: np.ndarray, sampling: Sampling, seed: int) -> None:
    samplers = Sampler(sampling, seed), Sampler(sampling, seed)
    first, second = ([sampler.choose(logits) for _ in range(8)] for sampler in samplers)
    assert first == second
    assert (distribution(logits, sampling)[first] > 0).all()


@given(arrays(np.float32, st.integers(1, 300), elements=st.integers(-9, 9)), st.integers(1, 20))
def test_likeliest_tokens_equal_a_full_sort(logits: np.ndarray, count: int) -> None:
    ((tokens, found),) = likeliest(logits[None], count)
    assert tokens == np.argsort(-logits, kind="stable")[:count].tolist()
    np.testing.assert_allclose(found, softmax(logits)[tokens], rtol=1e-5)


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(Sampling(temperature=1.0, top_p=0.9), seed=5)
    drawn = np.bincount([sampler.choose(logits) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(drawn, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], atol=0.03)


def test_penalty_applies_once_and_does_not_modify_logits() -> None:
    logits = np.array([2.0, 1.5, -1.0], np.float32)
    assert Sampler(Sampling(repetition_penalty=1.5)).choose(logits, seen=[0, 0, 0, 2]) == 1
    assert logits.tolist() == [2.0, 1.5, -1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_logits_raise_engine_error(bad: float) -> None:
    logits = np.array([1.0, bad, 0.0], np.float32)
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        with pytest.raises(EngineError, match="NaN or infinite"):
            Sampler(sampling, 0).choose(logits)
    for function in (largest_probability, lambda row: surprise(row, 0), lambda row: likeliest(row[None], 2)):
        with pytest.raises(EngineError, match="NaN or infinite"):
            function(logits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature -1.0: expected 0 or more"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": -1}, "top-k -1"),
        ({"top_p": 1.5}, "top-p 1.5: expected 0 to 1"),
        ({"min_p": -0.1}, "min-p -0.1"),
        ({"repetition_penalty": 0.0}, "repetition penalty 0.0: expected more than 0"),
    ],
)
def test_out_of_range_options_raise_usage_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**options)
