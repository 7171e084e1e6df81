"""Scheduling: rows, chunks, limits, priorities, and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from scheduled_models import Models
from scheduling import RANDOM, alone, request, run

from intaglio.errors import BusyError, UsageError
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Event, Failed, Finished, Piece
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.generation.scheduling.scheduler_options import SchedulerOptions
from intaglio.runtime.generation.text_run import RequestsRun
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import (
    Auto,
    GeneratedSequence,
    Plain,
)
from intaglio.runtime.strategies.contract import Steps
from intaglio.runtime.strategies.cost_model import StepTimes
from intaglio.runtime.strategies.draft_tree import DRAFT_TREES


def test_cancelled_row_is_reused_in_the_next_pass(models: dict[str, Models]) -> None:
    scheduler = models["float"].scheduler(1)
    first, second = scheduler.submit(request([1], 100)), scheduler.submit(request([2], 100))
    for _ in range(3):
        scheduler.step()
    assert (len(first.tokens), len(second.tokens)) == (3, 0)
    scheduler.cancel(first)
    events = scheduler.step()
    assert [event.result.stopped for event in events if isinstance(event, Finished)] == ["interrupted"]
    assert (len(first.tokens), len(second.tokens)) == (3, 1)
    scheduler.cancel(second)
    scheduler.cancel(first)  # which is at its end
    assert [event.state for event in scheduler.step()] == [second]
    assert scheduler.idle


def test_waiting_request_can_be_cancelled(models: dict[str, Models]) -> None:
    """Its place in the queue is free immediately."""
    scheduler = models["float"].scheduler(1, max_waiting=2, max_waiting_tokens=2)
    states = [scheduler.submit(request([1], 3)) for _ in range(2)]
    scheduler.cancel(states[1])
    states.append(scheduler.submit(request([2], 3)))
    assert {event.state for event in run(scheduler) if isinstance(event, Finished)} == set(states)
    assert [len(state.tokens) for state in states] == [3, 0, 3]


class Watched(Plain):
    """Plain decoding that reports when it is closed."""

    closed: ClassVar[list[bool]] = []

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        try:
            yield from super().write(sequence)
        finally:
            self.closed.append(True)


def test_strategies_are_closed_when_a_request_ends(models: dict[str, Models]) -> None:
    scheduler, strategy = models["float"].scheduler(2), Watched()
    states = [scheduler.submit(request([1], count, strategy=strategy, strategy_name="watched")) for count in (2, 50)]
    for _ in range(3):
        scheduler.step()
    assert strategy.closed == [True]
    scheduler.cancel(states[1])
    scheduler.step()
    assert strategy.closed == [True, True]


def test_requests_beyond_the_queue_limit_raise_busy_error(models: dict[str, Models]) -> None:
    scheduler = models["float"].scheduler(1, max_waiting=3, max_waiting_tokens=20)
    states = [scheduler.submit(request([number] * 5)) for number in range(3)]
    with pytest.raises(BusyError, match=r"^3 requests are waiting, the maximum is 3\. Try again later\.$"):
        scheduler.submit(request([1]))
    scheduler.step()
    with pytest.raises(BusyError, match=r"^prompt of 11 tokens: 10 prompt tokens are waiting, the maximum is 20\. "):
        scheduler.submit(request([1] * 11))
    states.append(scheduler.submit(request([1] * 10)))
    run(scheduler)
    assert [len(state.tokens) for state in states] == [8] * 4


def test_priority_precedes_arrival_order(models: dict[str, Models]) -> None:
    scheduler = models["float"].scheduler(1)
    states = [scheduler.submit(request([1], 2, priority=priority)) for priority in (0, 1, 0, 5, 1)]
    ended = [event.state for event in run(scheduler) if isinstance(event, Finished)]
    assert [states.index(state) for state in ended] == [3, 1, 4, 0, 2]


def test_rows_decode_between_prefill_chunks(long: Callable[..., Scheduler]) -> None:
    scheduler = long(3, chunk=50)
    writing = [scheduler.submit(request([number], 100)) for number in range(2)]
    scheduler.step()
    late = scheduler.submit(request(RANDOM[:301], 5))
    steps = 0
    while not late.tokens:
        before = [len(state.tokens) for state in writing], late.counts.processed.large
        scheduler.step()
        steps += 1
        written = [len(state.tokens) - count for state, count in zip(writing, before[0], strict=True)]
        read = late.counts.processed.large - before[1]
        assert (written, read) == (([0, 0], 50) if steps % 2 else ([1, 1], 1 if late.tokens else 0))
    assert steps == 12  # six chunks, and a token of each of the others after each


@pytest.mark.parametrize("first", [5, 25, 40, 50])
@pytest.mark.parametrize("second", [5, 30, 45, 58])
def test_draft_trees_fit_next_to_nearly_full_rows(first: int, second: int, models: dict[str, Models]) -> None:
    """Chunks that do not fit into one pass take two; truncated tokens are prefilled again."""
    own = models["fixed trees"]
    scheduler = own.scheduler(3)
    tree = DRAFT_TREES["hidden-transfer"](tree=12, min_draft_prob=1e-9)
    asked = [
        request(RANDOM[:first], 30, strategy=tree),
        request(RANDOM[100 : 100 + second], 3),
        request(RANDOM[200 : 200 + second], 30, strategy=tree),
    ]
    states = []
    for each in asked:
        states.append(scheduler.submit(each))
        for _ in range(2):
            scheduler.step()
    assert not any(isinstance(event, Failed) for event in run(scheduler))
    for each, state in zip(asked, states, strict=True):
        assert state.tokens == alone(own, each)


def test_freed_row_is_reused_while_others_run(models: dict[str, Models]) -> None:
    """Two rows: 24 tokens in one need as many passes as four times 6 in the other; prompts have one token."""
    scheduler = models["float"].scheduler(2)
    counts = [24, 6, 6, 6, 6]
    runs = RequestsRun(scheduler, (request([number], count) for number, count in enumerate(counts)), 2)
    target = scheduler._target
    passes = []
    append = target.append_uncopied
    target.append_uncopied = lambda *given: passes.append(1) or append(*given)  # type: ignore[method-assign,func-returns-value]
    results = [run.result() for run in runs]
    assert [len(result.tokens) for result in results] == counts
    assert len(passes) == 24


def test_models_are_measured_once_and_only_when_idle(
    models: dict[str, Models], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = models["float"]
    measured: list[list[int]] = []
    measure = StepTimes.measure

    def counted(large: DecoderSession, small: DecoderSession | None) -> StepTimes:
        measured.append(list(large.lengths))
        return measure(large, small)

    monkeypatch.setattr(StepTimes, "measure", counted)
    scheduler = own.scheduler(3)
    asked = [request(RANDOM[:20], 10), request(RANDOM[20:40], strategy=Auto()), request(RANDOM[40:60])]
    states = [scheduler.submit(each) for each in asked]
    scheduler.step()
    assert measured == []
    with pytest.raises(UsageError, match="strategy auto measures the models, which are running"):
        scheduler.prepare(Auto())
    run(scheduler)
    states.append(scheduler.submit(request(RANDOM[:20])))
    scheduler.step()
    states.append(scheduler.submit(request(RANDOM[20:40], strategy=Auto())))
    scheduler.step()
    assert not states[-2].ended and states[-1].sequence is not None  # side by side: it was measured before
    run(scheduler)
    assert measured == [[0, 0, 0]]
    assert [len(state.tokens) for state in states] == [10, 8, 8, 8, 8]
    assert states[1].tokens == states[4].tokens == alone(own, request(RANDOM[20:40]))


def test_threads_may_submit_and_cancel_during_steps(models: dict[str, Models]) -> None:
    own = models["float"]
    scheduler = own.scheduler(3)
    asked = [request(RANDOM[start : start + 30], 6) for start in range(0, 600, 30)]
    done: dict[int, Event] = {}
    texts: dict[int, str] = {}
    states: dict[int, Any] = {}

    def serve() -> None:
        while len(done) < len(asked):
            scheduler.wait()
            for event in scheduler.step():
                if isinstance(event, Piece):
                    texts[id(event.state)] = texts.get(id(event.state), "") + event.text
                else:
                    done[id(event.state)] = event

    def ask(first: int) -> None:
        for number in range(first, len(asked), 4):
            states[number] = scheduler.submit(asked[number])
            if number % 5 == 4:
                scheduler.cancel(states[number])

    assert scheduler.wait(0.01) is False
    server = threading.Thread(target=serve, daemon=True)
    server.start()
    clients = [threading.Thread(target=ask, args=(first,), daemon=True) for first in range(4)]
    for client in clients:
        client.start()
    for thread in (*clients, server):
        thread.join(60)
        assert not thread.is_alive()
    for number, state in states.items():
        event = done[id(state)]
        assert isinstance(event, Finished)
        expected = alone(own, asked[number])
        assert event.result.tokens == (expected if number % 5 != 4 else expected[: len(event.result.tokens)])
        if number % 5 != 4:
            assert texts[id(state)] == event.result.text


@pytest.mark.parametrize(
    ("options", "message"),
    [({"chunk": 0}, "chunk 0: expected at least 1"), ({"max_waiting_tokens": 0}, "max waiting tokens 0: expected")],
)
def test_out_of_range_options_raise_usage_error(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        SchedulerOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max new tokens 0"),
        ({"seed": -1}, "seed -1"),
        ({"seed": (1, -1)}, "seed"),
        ({"stop": ("",)}, "a stop string is empty"),
    ],
)
def test_invalid_requests_raise_usage_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GenerationRequest("a", **options)
