"""How much is drafted: what the cost model predicts is what happens, and where drafting cannot win it is turned off."""

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
def test_the_predicted_speed_is_that_of_simulated_drafts(acceptance: float, window: int) -> None:
    random = np.random.default_rng(0)
    kept = (random.random((20_000, window)) < acceptance).cumprod(axis=1).sum(axis=1)
    seconds = window * FAST.small + FAST.large[window]
    simulated = (kept + 1).mean() * FAST.large[0] / seconds
    assert FAST.speedup(FAST.kept_alike(acceptance)[:window]) == pytest.approx(simulated, rel=0.02)


@given(acceptance=st.floats(0, 1))
def test_no_window_is_better_than_the_best(acceptance: float) -> None:
    chances = FAST.kept_alike(acceptance)
    best = FAST.speedup(chances[: FAST.best_window(chances)])
    assert best >= max(FAST.speedup(chances[:window]) for window in range(5))


def test_a_slow_draft_model_is_not_asked() -> None:
    assert SLOW.best_window(SLOW.kept_alike(1.0)) == 0
    window = CostWindow(SLOW)
    for _ in range(3 * LOOK_AGAIN):
        assert window.size() == 0
        window.observe(0, 0)


def test_a_bad_draft_model_is_asked_again_now_and_then() -> None:
    window, asked = CostWindow(FAST), list[int]()
    for _ in range(40 + 3 * LOOK_AGAIN):
        asked.append(window.size())
        window.observe(asked[-1], 0)
    assert asked[0] > 0
    assert 0 < sum(map(bool, asked[-2 * LOOK_AGAIN :])) <= 3
    assert set(asked[-2 * LOOK_AGAIN :]) == {0, 1}


def test_a_good_draft_model_is_asked_for_more() -> None:
    window = CostWindow(FAST, acceptance=0.5)
    first = window.size()
    for _ in range(20):
        window.observe(window.size(), window.size())
    assert window.size() == FAST.longest > first


def test_the_adaptive_window_grows_and_shrinks_within_its_limits() -> None:
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
    assert len(times.large) == 4
    assert times.small > 0
    assert all(seconds > 0 for seconds in times.large)


def test_models_of_few_positions_are_measured_within_them(tiny_decoder: Path) -> None:
    with DecoderSession.open(tiny_decoder, limit=8) as session:
        assert StepTimes.measure(session, None).longest < 8


@pytest.mark.parametrize("times", [FAST, SLOW])
def test_auto_writes_the_large_models_text_and_says_what_to_expect(
    times: StepTimes, trained_pair: tuple[Path, Path], prompts: list[str]
) -> None:
    small, large = trained_pair
    expected = [result.tokens for result in generate(large, prompts[:6], max_new_tokens=40)]
    with TextGenerator(large, strategy="auto", draft=small, max_new_tokens=40) as generator:
        assert isinstance(generator.method, Auto)
        generator.method.times = times
        found = [generator.write(prompt).whole() for prompt in prompts[:6]]
        said = generator.method.forecast()
    assert [result.tokens for result in found] == expected
    assert any(result.calls.small for result in found) == (times is FAST)
    assert ("Drafting is off" in said) == (times is SLOW)


@pytest.mark.parametrize(
    ("large", "said"),
    [
        ((1.0,) * 13, "13.0 times as fast, if all 12 draft tokens"),
        ((1.0, 3.0, 5.0), "off: a pass over several tokens takes too long"),
    ],
)
def test_without_a_draft_model_reviewing_is_what_costs(
    large: tuple[float, ...], said: str, trained_pair: tuple[Path, Path]
) -> None:
    with TextGenerator(trained_pair[1], strategy="auto", max_new_tokens=5) as generator:
        assert isinstance(generator.method, Auto)
        generator.method.times = StepTimes(0.0, large)
        assert said in generator.method.forecast()
