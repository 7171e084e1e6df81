"""Who is served when: rows, chunks, prefixes, bounds, priorities, errors, and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from failing_engine import Failing
from scheduled_models import Models

from intaglio.bundle import Bundle
from intaglio.errors import BusyError, EngineError, UsageError
from intaglio.runtime.engines.onnxruntime_engine import OnnxRuntimeEngine
from intaglio.runtime.generation.constraint import LogitConstraint
from intaglio.runtime.generation.events import Event, Failed, Finished, Piece
from intaglio.runtime.generation.request import GenerationRequest
from intaglio.runtime.generation.scheduler import Scheduler
from intaglio.runtime.generation.scheduler_options import SchedulerOptions
from intaglio.runtime.generation.text_run import RequestsRun
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.strategies import (
    Auto,
    BigLittleDecoder,
    Calm,
    GeneratedSequence,
    Plain,
    Speculative,
    Strategy,
    Written,
)
from intaglio.runtime.strategies.contract import Steps
from intaglio.runtime.strategies.cost_model import StepTimes
from intaglio.runtime.strategies.draft_tree import DRAFT_TREES

RANDOM = np.random.default_rng(0).integers(0, 250, 2000).tolist()


def request(prompt: Any, count: int = 8, **options: Any) -> GenerationRequest:
    return GenerationRequest(prompt, max_new_tokens=count, ignore_eos=True, **options)


def run(scheduler: Scheduler) -> list[Event]:
    """All events until there is nothing to do."""
    events: list[Event] = []
    while not scheduler.idle:
        events += scheduler.step()
    return events


def alone(models: Models, asked: GenerationRequest) -> list[int]:
    scheduler = models.scheduler(1)
    state = scheduler.submit(asked)
    run(scheduler)
    return state.tokens


@pytest.fixture(scope="module")
def long(make_decoder: Callable[..., tuple[Path, Path]]) -> Callable[..., Scheduler]:
    """A function that makes a scheduler of a model of 1024 positions, which also drafts for itself."""
    bundle = Bundle.open(make_decoder("gpt2", n_positions=1024)[1])
    engine = OnnxRuntimeEngine(bundle, threads=1)

    def scheduler(rows: int = 4, **options: int) -> Scheduler:
        sessions = [DecoderSession(engine, decoder_of(bundle), rows) for _ in range(2)]
        return Scheduler(bundle, *sessions, SchedulerOptions(**options))

    return scheduler


@pytest.mark.parametrize("chunk", [64, 256, 1000])
@pytest.mark.parametrize("strategy", [Plain(), Speculative(window=2)])
def test_a_prefix_that_requests_share_is_read_once_by_each_model(
    strategy: Strategy, chunk: int, long: Callable[..., Scheduler]
) -> None:
    """Of four that come together, one that comes when they are being written, and one after all of them."""
    scheduler, prefix = long(chunk=chunk), RANDOM[:400]
    asked = [request([*prefix, number, *RANDOM[500 : 504 + number]], strategy=strategy) for number in range(6)]
    states = [scheduler.submit(each) for each in asked[:4]]
    while not states[0].ended:
        scheduler.step()
    states.append(scheduler.submit(asked[4]))
    run(scheduler)
    states.append(scheduler.submit(asked[5]))
    run(scheduler)
    for number, state in enumerate(states):
        result, own = state.result(), len(asked[number].prompt) - 400
        assert (result.reused_tokens, result.prompt_tokens) == (0 if number == 0 else 400, 400 + own)
        drafted = result.accepted + result.rolled_back
        assert result.processed.large == (400 if number == 0 else 0) + own + len(result.tokens) - 1 + result.rolled_back
        if drafted:
            assert result.processed.small <= (400 if number == 0 else 0) + own + len(result.tokens) + drafted
    for each, state in zip(asked, states, strict=True):
        fresh = long(1)
        expected = fresh.submit(each)
        run(fresh)
        assert state.tokens == expected.tokens


def test_a_request_can_ask_for_its_whole_prompt_to_be_read(long: Callable[..., Scheduler]) -> None:
    scheduler = long(2)
    for reuse, read in ((True, 50), (False, 50), (True, 1)):
        state = scheduler.submit(request(RANDOM[:50], 1, reuse_prefix=reuse))
        run(scheduler)
        assert (state.result().processed.large, state.reused) == (read, 50 - read)


def test_tokens_that_did_not_go_through_all_blocks_are_not_reused(models: dict[str, Models]) -> None:
    scheduler, prompt = models["calm"].scheduler(1), RANDOM[:30]
    first = scheduler.submit(request(prompt, 20, strategy=Calm(0.0, 0.0)))
    run(scheduler)
    assert first.result().blocks == pytest.approx((4 + 19) / 20)
    whole = request([*prompt, *first.tokens, 1], strategy=Plain())
    second = scheduler.submit(whole)
    run(scheduler)
    assert second.reused == 30
    assert second.tokens == alone(models["calm"], whole)


def test_what_an_early_exit_alone_has_read_is_not_reused(models: dict[str, Models]) -> None:
    """A pass of the whole model for another row writes over it."""
    own = models["exit"]
    scheduler = own.scheduler(3)
    beside = scheduler.submit(request([1], 60))
    scheduler.step()
    strategy = BigLittleDecoder(0.0, 2.0, 4)
    asked = request(RANDOM[:40], 20, strategy=strategy)
    first = scheduler.submit(asked)
    while first.counts.calls.small != 4:
        scheduler.step()
    before = len(beside.tokens)
    while len(beside.tokens) == before:
        scheduler.step()
    assert first.counts.calls.large == 0
    scheduler.cancel(first)
    second = scheduler.submit(asked)
    run(scheduler)
    assert second.result().trace == traced(own, asked)


def traced(models: Models, asked: GenerationRequest) -> list[Written]:
    scheduler = models.scheduler(1)
    state = scheduler.submit(asked)
    run(scheduler)
    return state.result().trace


def test_a_draft_in_the_place_of_the_last_token_is_not_reused(models: dict[str, Models]) -> None:
    """The next prompt goes on after a token that ended the text in the place of one that was drafted."""
    own, found = models["float"], 0
    for start in range(0, 400, 20):
        prompt = RANDOM[start : start + 20]
        free = traced(own, request(prompt, 12, strategy=Speculative()))
        rejected = [place for place, each in enumerate(free[:-1]) if each.rolled_back and free[place + 1].by == "large"]
        if not rejected:
            continue
        end = free[rejected[0] + 1].token
        scheduler = own.scheduler(1)
        asked = request(prompt, 12, strategy=Speculative(), end_tokens=frozenset([end]))
        first = scheduler.submit(asked)
        run(scheduler)
        found += first.result().trace[-2].rolled_back if len(first.result().trace) > 1 else 0
        later = request([*prompt, *first.tokens, 5], 6, strategy=Speculative())
        second = scheduler.submit(later)
        run(scheduler)
        assert second.reused == len(prompt) + len(first.tokens) - 1
        assert second.tokens == alone(own, later)
    assert found > 2


def test_a_row_of_its_own_is_taken_before_one_that_may_still_serve(long: Callable[..., Scheduler]) -> None:
    """One request after another: each of two conversations finds what its own last turn left."""
    scheduler = long(2)
    reused = []
    for turn in range(1, 4):
        for start in (0, 1000):
            state = scheduler.submit(request(RANDOM[start : start + 50 * turn], 1))
            run(scheduler)
            reused.append(state.reused)
    assert reused == [0, 0, 50, 50, 100, 100]


def test_a_cancelled_row_serves_another_request_in_the_next_pass(models: dict[str, Models]) -> None:
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


def test_a_request_that_waits_can_be_cancelled(models: dict[str, Models]) -> None:
    """Another may wait in its place at once."""
    scheduler = models["float"].scheduler(1, max_waiting=2, max_waiting_tokens=2)
    states = [scheduler.submit(request([1], 3)) for _ in range(2)]
    scheduler.cancel(states[1])
    states.append(scheduler.submit(request([2], 3)))
    assert {event.state for event in run(scheduler) if isinstance(event, Finished)} == set(states)
    assert [len(state.tokens) for state in states] == [3, 0, 3]


class Watched(Plain):
    """Plain decoding that tells when it was closed."""

    closed: ClassVar[list[bool]] = []

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        try:
            yield from super().write(sequence)
        finally:
            self.closed.append(True)


def test_strategies_are_closed_at_whatever_end(models: dict[str, Models]) -> None:
    scheduler, strategy = models["float"].scheduler(2), Watched()
    states = [scheduler.submit(request([1], count, strategy=strategy, strategy_name="watched")) for count in (2, 50)]
    for _ in range(3):
        scheduler.step()
    assert strategy.closed == [True]
    scheduler.cancel(states[1])
    scheduler.step()
    assert strategy.closed == [True, True]


def test_more_than_may_wait_are_refused_and_the_others_are_written(models: dict[str, Models]) -> None:
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


def test_priority_comes_before_arrival(models: dict[str, Models]) -> None:
    scheduler = models["float"].scheduler(1)
    states = [scheduler.submit(request([1], 2, priority=priority)) for priority in (0, 1, 0, 5, 1)]
    ended = [event.state for event in run(scheduler) if isinstance(event, Finished)]
    assert [states.index(state) for state in ended] == [3, 1, 4, 0, 2]


def test_rows_write_between_the_chunks_of_a_long_prompt(long: Callable[..., Scheduler]) -> None:
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
def test_trees_beside_rows_near_the_end_of_a_cache_of_one_length(
    first: int, second: int, models: dict[str, Models]
) -> None:
    """What does not fit into one pass takes two; what gave way meanwhile is read again."""
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


def test_a_row_is_filled_again_while_others_are_written(models: dict[str, Models]) -> None:
    """Two rows: 24 tokens in one take as many passes as four times 6 in the other, and prompts are one token."""
    scheduler = models["float"].scheduler(2)
    counts = [24, 6, 6, 6, 6]
    runs = RequestsRun(scheduler, (request([number], count) for number, count in enumerate(counts)), 2)
    large = scheduler._large
    passes = []
    append = large.append
    large.append = lambda *given, **options: passes.append(1) or append(*given, **options)  # type: ignore[method-assign,func-returns-value]
    results = [run.result() for run in runs]
    assert [len(result.tokens) for result in results] == counts
    assert len(passes) == 24


@dataclass(frozen=True)
class Raising(LogitConstraint):
    """A constraint with a mistake."""

    def allowed(self, written: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """See `LogitConstraint`."""
        return None if len(written) < 3 else [][0]


class Broken(Plain):
    """A strategy with a mistake."""

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        yield from ()
        raise ValueError("a mistake")


class Unready(Plain):
    """A strategy with a mistake before the first token."""

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:
        """See `Strategy`."""
        assert 1 / len([*large.lengths][:0])


def test_an_error_of_one_request_ends_that_one_alone(models: dict[str, Models]) -> None:
    own = models["float"]
    scheduler = own.scheduler(2)
    good = request(RANDOM[:20], 10)
    bad = [
        (request([1], constraint=Raising()), IndexError, "list index"),
        (request([1], strategy=Broken(), strategy_name="broken"), ValueError, "a mistake"),
        (request([1], strategy=Unready(), strategy_name="unready"), ZeroDivisionError, "division"),
        (request([1] * 128), UsageError, "prompt of 128 tokens: the model takes at most 128"),
        (request([]), UsageError, "the prompt is empty"),
        (request("\udcff"), UsageError, "not Unicode"),
        (request([1], strategy=Calm()), UsageError, "no exit after every block"),
        (request([1], strategy=Speculative(window=500)), UsageError, "window 500: expected less than"),
    ]
    states = [scheduler.submit(good)]
    for each, _, _ in bad:
        states += [scheduler.submit(each), scheduler.submit(good)]
    failed = {id(event.state): event.error for event in run(scheduler) if isinstance(event, Failed)}
    expected = alone(own, good)
    assert [state.tokens for state in states[::2]] == [expected] * 9
    for state, (_, kind, said) in zip(states[1::2], bad, strict=True):
        assert isinstance(failed[id(state)], kind)
        assert said in str(failed[id(state)])
    assert len(failed) == len(bad)
    assert len(states[1].tokens) == 3  # what was written before the error stays


def test_a_failure_of_the_engine_ends_what_it_was_writing_and_nothing_stale_is_reused(
    models: dict[str, Models],
) -> None:
    own = models["float"]
    large, draft = own.sessions(2)
    large = DecoderSession(Failing(large.engine, 4), large.decoder, 2)
    scheduler = Scheduler(own.bundle, large, draft)
    asked = [request(RANDOM[start : start + 40]) for start in (0, 40, 0)]
    states = [scheduler.submit(each) for each in asked]
    failed = [event for event in run(scheduler) if isinstance(event, Failed)]
    assert [event.state for event in failed] == states[:2]
    assert {(type(event.error), str(event.error)) for event in failed} == {(EngineError, "the device is lost")}
    assert states[2].tokens == alone(own, asked[2])
    assert states[2].reused == 0


def test_an_interrupt_ends_what_is_written_and_the_scheduler_goes_on(models: dict[str, Models]) -> None:
    class Interrupting(LogitConstraint):
        def allowed(self, written: Sequence[int]) -> npt.NDArray[np.bool_] | None:
            if len(written) == 2:
                raise KeyboardInterrupt
            return None

    scheduler = models["float"].scheduler(2)
    state = scheduler.submit(request([1], constraint=Interrupting()))
    with pytest.raises(KeyboardInterrupt):
        run(scheduler)
    assert (len(state.tokens), state.result().stopped) == (2, "interrupted")
    again = scheduler.submit(request([1]))
    run(scheduler)
    assert again.tokens == alone(models["float"], request([1]))


def test_a_source_that_the_encoder_refuses_ends_its_request_alone(models: dict[str, Models]) -> None:
    own = models["t5"]
    scheduler = own.scheduler(2)
    asked = [request(RANDOM[:40]), request([10_000]), request(RANDOM[:3])]
    states = [scheduler.submit(each) for each in asked]
    (failed,) = (event for event in run(scheduler) if isinstance(event, Failed))
    assert failed.state is states[1] and "token ids 10000" in str(failed.error)
    assert [states[0].tokens, states[2].tokens] == [alone(own, asked[0]), alone(own, asked[2])]


def test_models_are_measured_once_and_only_while_they_are_idle(
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


def test_threads_submit_and_cancel_while_one_runs_the_steps(models: dict[str, Models]) -> None:
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
    ("options", "said"),
    [({"chunk": 0}, "chunk 0: expected at least 1"), ({"max_waiting_tokens": 0}, "max waiting tokens 0: expected")],
)
def test_options_out_of_range_are_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        SchedulerOptions(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_new_tokens": 0}, "max new tokens 0"),
        ({"seed": -1}, "seed -1"),
        ({"seed": (1, -1)}, "seed"),
        ({"stop": ("",)}, "a stop string is empty"),
    ],
)
def test_requests_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        GenerationRequest("a", **options)
