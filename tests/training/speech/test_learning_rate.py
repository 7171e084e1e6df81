from __future__ import annotations

from itertools import pairwise

import pytest

from intaglio.training.speech.learning_rate import LearningRate


@pytest.mark.parametrize("decay", [0.5, 1.0])
def test_learning_rate_equals_the_thesis(decay: float) -> None:
    """Section 5.3: lr(t) = peak·t / T0, peak, peak·T0ᵈ / (t - T_peak)ᵈ."""
    rate = LearningRate(2e-3, warm_up=20, hold=160, decay=decay)
    assert rate.at(1) == pytest.approx(2e-3 / 20)
    assert rate.at(10) == pytest.approx(1e-3)
    assert {rate.at(step) for step in range(20, 180)} == {2e-3}
    assert rate.at(200) == pytest.approx(2e-3 * 20**decay / 40**decay)
    assert rate.at(500) == pytest.approx(2e-3 * 20**decay / 340**decay)


def test_learning_rate_is_continuous() -> None:
    rate = LearningRate(1e-3, warm_up=1000, hold=3000)
    rates = [rate.at(step) for step in range(1, 10_000)]
    assert max(abs(after - before) for before, after in pairwise(rates)) <= 1.001e-3 / 1000
    assert rate.at(1000) == rate.at(4000) == max(rates) == 1e-3


def test_final_decay_reaches_zero_for_any_step_count() -> None:
    rate = LearningRate(1.0, warm_up=10, hold=1000, cool_down=0.25)
    assert [rate.at(500, progress) for progress in (0.0, 0.75, 0.875, 1.0)] == pytest.approx([1.0, 1.0, 0.5, 0.0])
    assert rate.at(5, 0.875) == pytest.approx(0.25)  # in addition to the other schedule


def test_schedule_without_hold_and_decay_of_one_half_is_noam() -> None:
    rate = LearningRate(1.0, warm_up=100, hold=0, decay=0.5)
    for step in (1, 50, 100, 101, 400, 10_000):
        assert rate.at(step) == pytest.approx(100**0.5 * min(step**-0.5, step * 100**-1.5))
