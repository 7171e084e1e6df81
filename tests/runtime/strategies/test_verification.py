"""Verification of drafts preserves the target model's distribution."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from string import ascii_letters
from typing import Any

import numpy as np
import pytest
from chi_squared import follows
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.sampling.sampler import Probabilities, Sampler, Sampling, distribution
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import CachedModel, GeneratedSequence
from intaglio.runtime.strategies.verification import verify
from intaglio.runtime.text.tokenizer import read_backend

PARTS = 6  # probabilities are multiples of a sixth
STEPS = 60  # of what is drawn at random, evenly spread: 60 is a multiple of 1 to 6, so that sums over them are exact
EVEN = (np.arange(STEPS) + 0.5) / STEPS


class Given:
    """A random generator whose numbers are given."""

    def __init__(self, numbers: Iterable[float]):
        self.numbers = iter(numbers)

    def random(self) -> float:
        return next(self.numbers)


def text(numbers: Iterable[float] = ()) -> GeneratedSequence:
    """A text whose sampler draws `numbers`; no model is asked for."""
    sampler = Sampler(Sampling(temperature=1.0))
    sampler._generator = Given(numbers)  # type: ignore[assignment]
    nowhere: Any = None
    return GeneratedSequence([0], 100, frozenset(), sampler, CachedModel(nowhere, 0, "large"))


def logits(probabilities: Probabilities) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(probabilities).astype(np.float32)


def verified(target: Probabilities, token: int, proposal: Probabilities | None, before: int) -> Probabilities:
    """The distribution of the token in place of a draft token, summed over all random draws.

    `before`: preceding draft tokens, which are always accepted.
    """
    sure = np.eye(len(target))[0]
    draft, proposals = [0] * before + [token], [sure if proposal is not None else None] * before + [proposal]
    scores = logits(np.stack([*[sure] * before, target, sure]))
    found = np.zeros(len(target))
    refused = None
    for number in EVEN:
        kept, _ = verify(text([0.5] * before + [number, 0.5]), draft, proposals, scores)
        assert kept in (before, before + 1)
        if kept > before:
            found[token] += 1
        else:
            refused = number
    missing = STEPS - found[token]
    if refused is not None:
        for number in EVEN:
            _, instead = verify(text([0.5] * before + [refused, number]), draft, proposals, scores)
            found[instead] += missing / STEPS
    return found / STEPS


@st.composite
def distributions(draw: st.DrawFn, size: int) -> Probabilities:
    cuts = sorted(draw(st.lists(st.integers(0, PARTS), min_size=size - 1, max_size=size - 1)))
    return np.diff([0, *cuts, PARTS]) / PARTS


@settings(max_examples=examples(25))
@given(st.data(), st.integers(2, 5), st.integers(0, 2))
def test_sampled_draft_preserves_the_distribution(data: st.DataObject, size: int, before: int) -> None:
    target, proposal = data.draw(distributions(size)), data.draw(distributions(size))
    found = sum(
        proposal[token] * verified(target, token, proposal, before) for token in range(size) if proposal[token] > 0
    )
    np.testing.assert_allclose(found, target, atol=1e-12)


@settings(max_examples=examples(25))
@given(st.data(), st.integers(2, 5), st.integers(0, 2))
def test_copied_draft_preserves_the_distribution(data: st.DataObject, size: int, before: int) -> None:
    target, token = data.draw(distributions(size)), data.draw(st.integers(0, size - 1))
    np.testing.assert_allclose(verified(target, token, None, before), target, atol=1e-12)


@given(st.integers(1, 6), st.integers(0, 6), st.booleans(), st.integers(0, 2**32))
def test_greedy_verification_accepts_the_models_choices(size: int, length: int, drawn: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.standard_normal((length + 1, size)).astype(np.float32)
    draft = random.integers(0, size, length).tolist()
    greedy = text()
    greedy.sampler = Sampler(Sampling())
    proposals = [np.eye(size)[token] if drawn else None for token in draft]
    kept, token = verify(greedy, draft, proposals, scores)
    choices = scores.argmax(axis=1).tolist()
    assert draft[:kept] == choices[:kept]
    assert token == choices[kept]
    assert kept == length or draft[kept] != token


@given(st.integers(0, 2**32))
def test_fully_accepted_draft_adds_a_target_token(seed: int) -> None:
    """It is drawn from the target distribution after the last draft token."""
    random = np.random.default_rng(seed)
    target, last = random.dirichlet(np.ones(5)), random.dirichlet(np.ones(5))
    number = random.random()
    kept, token = verify(text([0.0, number]), [1], [target], logits(np.stack([target, last])))
    assert kept == 1
    assert token == int(np.searchsorted(np.cumsum(last), number))


SAMPLING: dict[str, Any] = {"temperature": 3.0, "top_k": 4}
COUNT, TOGETHER = 2500, 50


@pytest.fixture(scope="module")
def large(tiny_pair: tuple[Path, Path]) -> Iterator[DecoderSession]:
    with DecoderSession.open(tiny_pair[1], threads=1) as session:
        yield session


def after(large: DecoderSession, tokens: list[int]) -> dict[int, float]:
    """The tokens that the target model of the tiny pair may write after others, and how probable they are."""
    large.rollback(0)
    probabilities = distribution(large.prefill([tokens])[0], Sampling(**SAMPLING))
    return {token: float(probabilities[token]) for token in np.flatnonzero(probabilities).tolist()}


@pytest.fixture(scope="module")
def prompt(large: DecoderSession, tiny_pair: tuple[Path, Path]) -> str:
    """A prompt that ends in what occurred before, and where the model may go on as it did there."""
    encode = read_backend(Bundle.open(tiny_pair[1])).encode
    candidates = (f"{first}{then}-{first}" for first in ascii_letters for then in ascii_letters)
    return next(found for found in candidates if encode(found[1]).ids[0] in after(large, encode(found).ids))


@pytest.fixture(scope="module")
def expected(large: DecoderSession, tiny_pair: tuple[Path, Path], prompt: str) -> dict[tuple[int, ...], float]:
    """The probability of every text of three tokens of the target model of the tiny pair."""
    start = read_backend(Bundle.open(tiny_pair[1])).encode(prompt).ids
    return {
        (first, second, third): one * two * three
        for first, one in after(large, start).items()
        for second, two in after(large, [*start, first]).items()
        for third, three in after(large, [*start, first, second]).items()
    }


def all_follow(texts: list[tuple[int, ...]], distribution: dict[tuple[int, ...], float]) -> bool:
    """Whether their beginnings of one, two and three tokens follow those of the distribution."""
    for length in (1, 2, 3):
        beginnings: dict[Hashable, float] = {}
        for text, probability in distribution.items():
            beginnings[text[:length]] = beginnings.get(text[:length], 0.0) + probability
        if not follows([text[:length] for text in texts], beginnings):
            return False
    return True


@pytest.mark.parametrize(
    "options",
    [
        # test_sampler draws from distributions itself.
        pytest.param({"strategy": "sample"}, id="plain", marks=pytest.mark.proof),
        # Drafts of two tokens have all that those of one have.
        pytest.param({"strategy": "speculative", "window": 1}, id="speculative-1", marks=pytest.mark.proof),
        pytest.param({"strategy": "speculative", "window": 2}, id="speculative-2", marks=pytest.mark.proof),
        # Certain drafts, as those of a tree are: test_draft_tree samples with these.
        pytest.param({"strategy": "ngram"}, id="ngram", marks=pytest.mark.proof),
    ],
)
def test_sampled_texts_follow_the_target_distribution(
    options: dict[str, Any], tiny_pair: tuple[Path, Path], prompt: str, expected: dict[tuple[int, ...], float]
) -> None:
    small, large = tiny_pair
    if options["strategy"] == "speculative":
        options = options | {"draft": small}
    texts: list[tuple[int, ...]] = []
    accepted = rolled_back = 0
    with TextGenerator(
        large, **options, **SAMPLING, max_new_tokens=3, seed=2, batch=TOGETHER, threads=1, ignore_eos=True
    ) as generator:
        for _ in range(COUNT // TOGETHER):
            for result in generator.write_batch([prompt] * TOGETHER).whole():
                texts.append(tuple(result.tokens))
                accepted, rolled_back = accepted + result.accepted, rolled_back + result.rolled_back
    assert all_follow(texts, expected)
    if options["strategy"] != "sample":
        assert accepted > COUNT / 10 and rolled_back > COUNT / 10  # both ways were taken often


def test_wrong_distribution_is_detected(expected: dict[tuple[int, ...], float]) -> None:
    """The test above can fail: samples whose likeliest first token is a little too probable do not pass it."""
    random = np.random.default_rng(0)
    texts, right = list(expected), np.array(list(expected.values()))
    likeliest = texts[right.argmax()][0]
    wrong = right * np.where([text[0] == likeliest for text in texts], 1.25, 1.0)
    assert right.sum() == pytest.approx(1)
    for weights, good in ((right, True), (wrong, False)):
        drawn = random.choice(len(texts), COUNT, p=weights / weights.sum())
        assert all_follow([texts[place] for place in drawn], expected) is good
