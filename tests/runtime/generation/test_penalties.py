"""Presence and frequency penalty and logit bias: OpenAI's formula, under every strategy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduled_models import Models

from intaglio.errors import UsageError
from intaglio.runtime.generation.generate import generate
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed
from intaglio.runtime.sampling.constraint import LogitConstraint
from intaglio.runtime.sampling.sampler import Sampler, Sampling, distribution, penalised
from intaglio.runtime.strategies import STRATEGIES

PROMPT = np.random.default_rng(5).integers(0, 250, 20).tolist()
STRATEGY_CASES: dict[str, tuple[str, dict[str, Any]]] = {  # strategy -> models, options
    "bild": ("float", {"rollback": 0.0}),
    "speculative": ("float", {}),
    "ngram": ("float", {"ngram": 2, "min_draft_prob": 1e-3}),
    "medusa": ("medusa", {"tree": 6, "min_draft_prob": 1e-9}),
    "hidden-transfer": ("hidden-transfer", {"tree": 6, "min_draft_prob": 1e-9}),
}


@given(
    seen=st.lists(st.integers(0, 9), max_size=12),
    prompt=st.integers(0, 12),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    bias=st.dictionaries(st.integers(0, 9), st.floats(-100, 100), max_size=4),
)
def test_penalties_match_openais_formula(
    seen: list[int], prompt: int, presence: float, frequency: float, bias: dict[int, float]
) -> None:
    logits = np.random.default_rng(0).standard_normal(10)
    expected = logits.copy()
    for token in range(10):
        count = seen[prompt:].count(token)
        expected[token] -= count * frequency + (count > 0) * presence
        expected[token] += bias.get(token, 0.0)
    sampling = Sampling(presence_penalty=presence, frequency_penalty=frequency, logit_bias=bias)
    np.testing.assert_allclose(penalised(logits, sampling, seen, prompt), expected, rtol=1e-6, atol=1e-6)
    probabilities = distribution(logits, replace(sampling, temperature=1.0), seen, prompt)
    softmax = np.exp(expected - expected.max())
    np.testing.assert_allclose(probabilities, softmax / softmax.sum(), rtol=1e-5, atol=1e-9)


def test_prompt_tokens_are_not_penalised() -> None:
    logits = np.array([1.0, 0.9, 0.0], np.float32)
    sampler = Sampler(Sampling(presence_penalty=1.0), prompt_tokens=2)
    assert sampler.choose(logits, [0, 0]) == 0
    assert sampler.choose(logits, [0, 0, 0]) == 1


def test_penalties_follow_repetition_penalty_and_keep_model_logits() -> None:
    logits = np.array([4.0, -1.0], np.float32)
    sampling = Sampling(repetition_penalty=2.0, frequency_penalty=0.5, logit_bias={1: 3.0})
    np.testing.assert_array_equal(penalised(logits, sampling, [1, 0, 0], 1), [1.0, 1.0])
    np.testing.assert_array_equal(logits, [4.0, -1.0])


def test_logits_without_a_penalty_are_not_copied() -> None:
    logits = np.zeros(3, np.float32)
    assert penalised(logits, Sampling(), [0, 1]) is logits
    assert penalised(logits, Sampling(presence_penalty=1.0), [0, 1], 2) is logits


def test_sampling_with_bias_is_hashable_and_copies_the_mapping() -> None:
    bias = {3: 1.0}
    sampling = Sampling(logit_bias=bias)
    bias[4] = 1.0
    assert sampling == Sampling(logit_bias={3: 1.0}) != Sampling()
    assert len({sampling, Sampling(logit_bias={3: 1.0}), Sampling()}) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"presence_penalty": 2.1}, "presence penalty 2.1: expected -2 to 2"),
        ({"frequency_penalty": float("nan")}, "frequency penalty nan: expected -2 to 2"),
        ({"logit_bias": {7: 101.0}}, "logit bias of token 7 is 101.0: expected -100 to 100"),
    ],
)
def test_out_of_range_values_raise_usage_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**options)


@pytest.mark.parametrize("token", [-1, 100_000])
def test_bias_outside_the_vocabulary_fails_its_request(token: int, models: dict[str, Models]) -> None:
    scheduler = models["float"].scheduler()
    scheduler.submit(GenerationRequest(PROMPT, Sampling(logit_bias={token: 1.0})))
    (event,) = scheduler.step()
    assert isinstance(event, Failed) and isinstance(event.error, UsageError)
    assert f"token id {token} is not in the vocabulary" in str(event.error)


def test_generator_and_command_line_accept_both_penalties(
    tiny_decoder: Path, intaglio: Callable[..., tuple[int, str, str]]
) -> None:
    def tokens(*options: object) -> list[int]:
        code, out, _ = intaglio("generate", tiny_decoder, "aaaa", "-n", 30, "--ignore-eos", "--json", *options)
        assert code == 0
        return list(json.loads(out)["tokens"])

    (plain, *others) = (
        tokens(),
        tokens("--presence-penalty", 2),
        tokens("--frequency-penalty", 2),
    )
    for found, options in zip(others, ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}), strict=True):
        (result,) = generate(tiny_decoder, "aaaa", max_new_tokens=30, ignore_eos=True, **options)
        assert found == result.tokens != plain
    code, _, err = intaglio("generate", tiny_decoder, "a", "--frequency-penalty", 3)
    assert (code, err.count("\n")) == (2, 1)
    assert "frequency penalty 3.0: expected -2 to 2" in err


def written(models: Models, request: GenerationRequest) -> list[int]:
    scheduler = models.scheduler(1)
    state = scheduler.submit(request)
    while not scheduler.idle:
        assert not any(isinstance(event, Failed) for event in scheduler.step())
    return state.tokens


@pytest.mark.parametrize("name", STRATEGY_CASES)
def test_every_strategy_applies_penalties_and_bias(name: str, models: dict[str, Models]) -> None:
    kind, options = STRATEGY_CASES[name]
    plain = GenerationRequest(PROMPT, max_new_tokens=40, ignore_eos=True)
    without = written(models[kind], plain)
    common = max(without, key=without.count)
    penalties = (
        Sampling(presence_penalty=2.0),
        Sampling(frequency_penalty=2.0),
        Sampling(presence_penalty=2.0, frequency_penalty=2.0, logit_bias={common: -60.0, without[0]: -3.0}),
    )
    different = 0
    for sampling in penalties:
        alone = written(models[kind], replace(plain, sampling=sampling))
        strategy = STRATEGIES[name](**options)
        assert written(models[kind], replace(plain, sampling=sampling, strategy=strategy)) == alone
        different += alone != without
    assert different > 0


def test_penalties_apply_to_constrained_greedy_text() -> None:
    class Any10(LogitConstraint):
        def allowed(self, written: Sequence[int]) -> npt.NDArray[np.bool_] | None:
            return np.arange(10) < 8

    logits = np.arange(10, dtype=np.float32)
    sampling = Sampling(presence_penalty=1.5, frequency_penalty=1.0)
    sampler = Sampler(sampling, constraint=Any10(), prompt_tokens=1)
    assert sampler.choose(logits, [9]) == 7
    assert sampler.choose(logits, [9, 7, 7]) == 6  # 7 has lost 3.5
    assert sampler.choose(logits, [7]) == 7  # of the prompt
