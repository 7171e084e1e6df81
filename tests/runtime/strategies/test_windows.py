"""Draft lengths: predictions of the cost model hold, and drafting is off where it cannot be faster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import Auto
from intaglio.runtime.strategies.cost_model import StepTimes
from intaglio.runtime.strategies.windows import FIRST, LOOK_AGAIN, MOST, AdaptiveWindow, CostWindow

FAST = StepTimes(0.1, (1.0, 1.05, 1.1, 1.15, 1.2))
SLOW = StepTimes(1.5, (1.0, 1.05, 1.1, 1.15, 1.2))


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("window", [0, 1, 4])
def test_predicted_speedup_matches_simulated_drafts(acceptance: float, window: int) -> None:
    random = np.random.default_rng(0)
    kept = (random.random((20_000, window)) < acceptance).cumprod(axis=1).sum(axis=1)
    seconds = window * FAST.draft + FAST.target[window]
    simulated = (kept + 1).mean() * FAST.target[0] / seconds
    assert FAST.speedup(FAST.acceptance_powers(acceptance)[:window]) == pytest.approx(simulated, rel=0.02)


@given(acceptance=st.floats(0, 1))
def test_best_window_is_optimal(acceptance: float) -> None:
    chances = FAST.acceptance_powers(acceptance)
    best = FAST.speedup(chances[: FAST.best_window(chances)])
    assert best >= max(FAST.speedup(chances[:window]) for window in range(5))


def test_slow_draft_model_is_not_used() -> None:
    assert SLOW.best_window(SLOW.acceptance_powers(1.0)) == 0
    window = CostWindow(SLOW)
    for _ in range(3 * LOOK_AGAIN):
        assert window.size() == 0
        window.observe(0, 0)


def test_bad_draft_model_is_retried_periodically() -> None:
    window, asked = CostWindow(FAST), list[int]()
    for _ in range(40 + 3 * LOOK_AGAIN):
        asked.append(window.size())
        window.observe(asked[-1], 0)
    assert asked[0] > 0
    assert 0 < sum(map(bool, asked[-2 * LOOK_AGAIN :])) <= 3
    assert set(asked[-2 * LOOK_AGAIN :]) == {0, 1}


def test_good_draft_model_drafts_more() -> None:
    window = CostWindow(FAST, acceptance=0.5)
    first = window.size()
    for _ in range(20):
        window.observe(window.size(), window.size())
    assert window.size() == FAST.longest > first


def test_adaptive_window_stays_within_its_limits() -> None:
    window = AdaptiveWindow()
    sizes = []
    for kept_whole in [True] * 12 + [False] * 30:
        size = window.size()
        sizes.append(size)
        window.observe(size, size if kept_whole else 0)
    assert sizes[:3] == [FIRST, FIRST + 2, FIRST + 4]
    assert max(sizes) == MOST
    assert sizes[-1] == 1


def test_measuring_leaves_the_caches_empty(trained_pair: tuple[Path, Path]) -> None:
    small, large = trained_pair
    with DecoderSession.open(small, batch=2) as drafting, DecoderSession.open(large, batch=2) as session:
        times = StepTimes.measure(session, drafting, longest=3)
        assert not any(drafting.lengths)
        assert not any(session.lengths)
    assert len(times.target) == 4
    assert times.draft > 0
    assert all(seconds > 0 for seconds in times.target)


def test_measurement_stays_within_the_models_positions(tiny_decoder: Path) -> None:
    with DecoderSession.open(tiny_decoder, limit=8) as session:
        assert StepTimes.measure(session, None).longest < 8


@pytest.mark.parametrize("times", [FAST, SLOW])
def test_auto_equals_the_target_text_and_forecasts(
    times: StepTimes, trained_pair: tuple[Path, Path], prompts: list[str]
) -> None:
    small, large = trained_pair
    expected = [result.tokens for result in generate(large, prompts[:6], max_new_tokens=40)]
    with TextGenerator(large, strategy="auto", draft=small, max_new_tokens=40) as generator:
        assert isinstance(generator.method, Auto)
        generator.method.times = times
        found = [generator.write(prompt).whole() for prompt in prompts[:6]]
        message = generator.method.forecast()
    assert [result.tokens for result in found] == expected
    assert any(result.calls.small for result in found) == (times is FAST)
    assert ("Drafting is off" in message) == (times is SLOW)


@pytest.mark.parametrize(
    ("large", "message"),
    [
        ((1.0,) * 13, "13.0 times as fast, if all 12 draft tokens"),
        ((1.0, 3.0, 5.0), "off: a pass over several tokens takes too long"),
    ],
)
def test_cost_of_ngram_drafts_is_verification(
    large: tuple[float, ...], message: str, trained_pair: tuple[Path, Path]
) -> None:
    with TextGenerator(trained_pair[1], strategy="auto", max_new_tokens=5) as generator:
        assert isinstance(generator.method, Auto)
        generator.method.times = StepTimes(0.0, large)
        assert message in generator.method.forecast()
