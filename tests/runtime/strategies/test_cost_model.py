"""The cost model: forecasts are possible, and implausible times are measured again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.strategies import cost_model
from intaglio.runtime.strategies.auto import Auto
from intaglio.runtime.strategies.cost_model import REPEATS, ROUNDS, StepTimes, implausible

seconds = st.floats(1e-6, 10.0)


@pytest.fixture(autouse=True)
def _steps_are_timed_as_often_as_by_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "REPEATS", REPEATS)
    monkeypatch.setattr(cost_model, "ROUNDS", ROUNDS)


class Machine:
    """A session of a model on a clock of its own: `step(tokens, call)` are the seconds of a step, `call` its number."""

    batch, limit = 1, 1000

    def __init__(self, step: Callable[[int, int], float], monkeypatch: pytest.MonkeyPatch):
        self.calls: list[int] = []  # the tokens of each step
        self._step, self._now = step, 0.0
        monkeypatch.setattr(cost_model.time, "perf_counter", lambda: self._now)

    def append(self, tokens: Sequence[Sequence[int]], wanted: Sequence[int]) -> None:
        if len(tokens[0]) != cost_model.CONTEXT:
            self._now += self._step(len(tokens[0]), self.calls.count(len(tokens[0])))
            self.calls.append(len(tokens[0]))

    def append_uncopied(self, tokens: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Any]:
        self.append(tokens, wanted)
        return []

    def truncate(self, row: int, length: int) -> None: ...

    def rollback(self, length: int) -> None: ...


def measured(step: Callable[[int, int], float], monkeypatch: pytest.MonkeyPatch) -> tuple[StepTimes, Machine]:
    machine: Any = Machine(step, monkeypatch)
    return StepTimes.measure(machine, None, longest=4), machine


def usual(tokens: int) -> float:
    return 1.0 + 0.1 * tokens


FIRST = REPEATS + 1  # steps of a first measurement: one that is not timed, and those that are


@pytest.mark.parametrize("disturbed", [1, 3, 5])
@pytest.mark.parametrize("factor", [12.0, 1 / 12])
def test_disturbed_step_is_measured_again(disturbed: int, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    times, machine = measured(
        lambda tokens, call: usual(tokens) * (factor if tokens == disturbed and call < FIRST else 1.0), monkeypatch
    )
    assert times.target == pytest.approx([usual(tokens) for tokens in range(1, 6)], rel=0.05)
    assert machine.calls.count(disturbed) > FIRST


def test_plausible_times_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, machine = measured(lambda tokens, call: usual(tokens) * (1.1 if call % 2 else 1.0), monkeypatch)
    assert len(machine.calls) == 5 * FIRST


def test_implausible_times_are_measured_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    times, machine = measured(lambda tokens, call: 2.0**-tokens, monkeypatch)
    assert len(machine.calls) == 5 * FIRST * ROUNDS
    assert times.speedup([1.0] * 4) <= 5.0


def test_disturbed_draft_step_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    small: Any = Machine(lambda tokens, call: 0.2 * (20.0 if call < FIRST and tokens == 1 else 1.0), monkeypatch)
    found = cost_model._step_times(small, cost_model.CONTEXT, 2)
    assert found[0] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("times", "doubtful"),
    [
        ((1.0, 1.1, 1.2), []),
        ((1.0, 0.9, 0.95), []),  # noise
        ((1.0, 2.0, 3.0), []),  # each token costs as much as the first
        ((3.0, 1.1, 1.2), [1, 2]),
        ((1.0, 5.0, 1.2), [1, 2, 3]),
        ((0.1, 1.1, 1.2), [1, 2]),
        ((1.0,), []),
    ],
)
def test_implausible_times_are_found(times: tuple[float, ...], doubtful: list[int]) -> None:
    assert implausible(times) == doubtful


@given(small=st.one_of(st.just(0.0), seconds), large=st.lists(seconds, min_size=1, max_size=13), data=st.data())
def test_speedup_is_at_most_one_plus_the_accepted_drafts(small: float, large: list[float], data: st.DataObject) -> None:
    times = StepTimes(small, tuple(large))
    chances = data.draw(st.lists(st.floats(0, 1), max_size=times.longest))
    assert times.speedup(chances) <= (1 + sum(chances)) * (1 + 1e-12)
    method = Auto()
    method.times, method.most = times, data.draw(st.integers(0, times.longest))
    if found := re.search(r"up to ([\d.]+) times as fast, if all (\d+) ", method.forecast()):
        speedup, drafts = float(found[1]), int(found[2])
        assert speedup <= drafts + 1
        assert drafts <= method.most
