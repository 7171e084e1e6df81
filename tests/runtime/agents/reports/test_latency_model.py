"""The latency model of the thesis, with numbers computed by hand."""

from __future__ import annotations

import pytest
from agent_runs import INDEPENDENT, request, run_of, task

from intaglio.errors import UsageError
from intaglio.runtime.agents.reports.latency_model import Latency, latency_of


def numbers(found: Latency) -> tuple[float, float, float]:
    return found.predicted.react, found.predicted.llmcompiler, found.predicted.streaming


def test_independent_calls_match_the_thesis_equations() -> None:
    found = latency_of(INDEPENDENT)
    assert [call.plan_seconds for call in found.calls] == [1.0, 0.5, 1.0]  # T_P
    assert [call.tool_seconds for call in found.calls] == [3.0, 1.0, 2.0]  # T_E
    assert numbers(found) == (
        2.5 + 6.0,  # D.1
        2.5 + 3.0,  # D.2: the slowest call is the first one
        2.5 + 2.0,  # D.3: the last call ends last
    )
    assert (found.measured, found.answer_seconds, found.total_seconds) == (4.5, 1.0, 5.5)
    assert found.speedup == pytest.approx(8.5 / 5.5)  # D.4
    assert found.streaming_speedup == pytest.approx(8.5 / 4.5)
    assert found.max_speedup == 6.0 / 3.0  # D.5
    assert found.min_speedup == 1.0  # D.6


def test_slow_first_call_is_not_hidden_by_the_last() -> None:
    """D.3 as it stands would give 2 + 1 s, and the first call alone takes 1 + 5 s."""
    found = latency_of(
        run_of(
            6.5,
            request(1, "planner", 0.0, 2.0),
            task(1, 1.0, 1.0, 6.0),
            task(2, 2.0, 2.0, 3.0),
            request(2, "joiner", 6.0, 6.5),
        )
    )
    assert numbers(found) == (8.0, 7.0, 6.0)
    assert found.measured == 6.0


def test_dependent_calls_take_the_time_of_their_chain() -> None:
    found = latency_of(
        run_of(
            8.0,
            request(1, "planner", 0.0, 3.5),  # 0.5 s for join()
            task(1, 1.0, 1.0, 3.0),
            task(2, 2.0, 2.0, 3.0),
            task(3, 3.0, 3.0, 7.0, needs=[1, 2]),
            request(2, "joiner", 7.0, 8.0),
        )
    )
    assert numbers(found) == (3.0 + 7.0, 3.5 + 2.0 + 4.0, 7.0)
    assert found.max_speedup == 7.0 / 6.0


def test_plan_ending_counts_unless_a_call_overlaps() -> None:
    found = latency_of(
        run_of(3.0, request(1, "planner", 0.0, 2.0), task(1, 0.5, 0.5, 1.0), request(2, "joiner", 2.0, 3.0))
    )
    assert numbers(found) == (1.0, 2.5, 2.0)
    assert (found.min_speedup, found.speedup, found.max_speedup) == (0.25, 0.4, 1.0)


def test_later_plans_add_time_and_reuse_results() -> None:
    found = latency_of(
        run_of(
            8.0,
            request(1, "planner", 0.0, 1.0),
            task(1, 1.0, 1.0, 2.0),
            request(2, "joiner", 2.0, 2.5),
            request(3, "planner", 2.5, 4.5),
            task(2, 3.5, 3.5, 6.0, needs=[1]),
            task(3, 4.5, 4.5, 7.0, needs=[1]),
            request(4, "joiner", 7.0, 8.0),
        )
    )
    assert [call.plan_seconds for call in found.calls] == [1.0, 1.0, 1.0]
    assert numbers(found) == (3.0 + 6.0, (1.0 + 1.0) + (2.0 + 2.5), 2.0 + 4.5)
    assert (found.answer_seconds, found.measured) == (1.5, 6.5)


def test_react_run_equals_its_prediction() -> None:
    """A call is planned right after its request has ended; the last request answers."""
    react = run_of(
        7.0,
        request(1, "agent", 0.0, 1.0),
        task(1, 1.0, 1.0, 2.0),
        request(2, "agent", 2.0, 4.0),
        task(2, 4.0, 4.0, 6.0),
        request(3, "agent", 6.0, 7.0),
    )
    found = latency_of(react)
    assert (found.predicted.react, found.measured, found.answer_seconds) == (6.0, 6.0, 1.0)
    assert [call.plan_seconds for call in found.calls] == [1.0, 2.0]
    other = latency_of(INDEPENDENT, react_planning=[2.0, 2.0, 2.0])
    assert (other.predicted.react, other.min_speedup) == (12.0, 6.0 / 2.5)


def test_skipped_calls_take_no_time() -> None:
    found = latency_of(
        run_of(
            3.0,
            request(1, "planner", 0.0, 1.0),
            task(1, 0.5, 0.5, 2.0, status="failed"),
            task(2, 1.0, None, 2.0, needs=[1], status="skipped"),
            request(2, "joiner", 2.0, 3.0),
        )
    )
    assert [call.tool_seconds for call in found.calls] == [1.5, 0.0]


def test_run_without_calls_has_no_speedup() -> None:
    found = latency_of(run_of(2.0, request(1, "planner", 0.0, 1.0), request(2, "joiner", 1.0, 2.0)))
    assert (numbers(found), found.speedup, found.max_speedup, found.min_speedup) == ((0.0, 0.0, 0.0), None, None, None)
    assert (found.measured, found.answer_seconds) == (0.0, 2.0)


def test_run_without_end_is_rejected() -> None:
    with pytest.raises(UsageError, match="the run has no end"):
        latency_of(INDEPENDENT[:-1])
