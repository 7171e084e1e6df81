"""Errors of a request or a strategy fail that request only; errors of an engine fail all running requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from failing_engine import Failing
from scheduled_models import Models
from scheduling import RANDOM, alone, request, run

from intaglio.errors import EngineError, UsageError
from intaglio.runtime.generation.scheduling.events import Failed, Finished, Piece
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.generation.text.stream import TextStream
from intaglio.runtime.sampling.constraint import LogitConstraint
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import (
    Calm,
    GeneratedSequence,
    Plain,
    Speculative,
)
from intaglio.runtime.strategies.contract import Steps


@dataclass(frozen=True)
class Raising(LogitConstraint):
    """A constraint that raises."""

    def allowed(self, written: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """See `LogitConstraint`."""
        return None if len(written) < 3 else [][0]


class Broken(Plain):
    """A strategy that raises."""

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        yield from ()
        raise ValueError("a mistake")


class Unready(Plain):
    """A strategy that raises in `prepare`."""

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:
        """See `Strategy`."""
        assert 1 / len([*large.lengths][:0])


def test_request_error_fails_only_that_request(models: dict[str, Models]) -> None:
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
    for state, (_, kind, message) in zip(states[1::2], bad, strict=True):
        assert isinstance(failed[id(state)], kind)
        assert message in str(failed[id(state)])
    assert len(failed) == len(bad)
    assert len(states[1].tokens) == 3  # the tokens before the error stay


def test_text_that_cannot_be_completed_fails_its_request(
    models: dict[str, Models], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = models["float"]
    scheduler = own.scheduler(1)
    states = [scheduler.submit(request([1])), scheduler.submit(request([1]))]

    def branch() -> TextStream:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "its last characters")

    monkeypatch.setattr(states[0]._stream, "branch", branch)
    events = run(scheduler)
    assert [(type(event), event.state) for event in events if not isinstance(event, Piece)] == [
        (Failed, states[0]),
        (Finished, states[1]),
    ]
    assert states[0].result().tokens == states[1].tokens  # for observers


def test_engine_error_fails_running_requests_and_clears_caches(
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


def test_interrupt_finishes_requests_and_keeps_the_scheduler_usable(models: dict[str, Models]) -> None:
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


def test_invalid_source_fails_only_its_request(models: dict[str, Models]) -> None:
    own = models["t5"]
    scheduler = own.scheduler(2)
    asked = [request(RANDOM[:40]), request([10_000]), request(RANDOM[:3])]
    states = [scheduler.submit(each) for each in asked]
    (failed,) = (event for event in run(scheduler) if isinstance(event, Failed))
    assert failed.state is states[1] and "token ids 10000" in str(failed.error)
    assert [states[0].tokens, states[2].tokens] == [alone(own, asked[0]), alone(own, asked[2])]
