"""A request's output is independent of the other requests in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduled_models import Models, in_four_bits

from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed, Finished, Piece
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.sampling.constraint import LogitConstraint
from intaglio.runtime.sampling.sampler import Sampling
from intaglio.runtime.strategies import STRATEGIES, Strategy

KINDS = ("float", "four bits", "fixed", "medusa", "hidden-transfer", "fixed trees", "calm", "exit", "t5")
ROWS, CHUNKS = st.integers(1, 4), st.sampled_from([1, 7, 32, 256])
PREFIXES = [np.random.default_rng(seed).integers(0, 250, 60).tolist() for seed in range(2)]
OPTIONS: dict[str, dict[str, Any]] = {
    "bild": {"fallback": 0.3, "rollback": 1.0, "max_draft": 4},
    "medusa": {"tree": 6, "min_draft_prob": 1e-9},
    "hidden-transfer": {"tree": 6, "min_draft_prob": 1e-9},
    "calm": {"saturation": 0.6, "decay": 1.0},
    "ngram": {"ngram": 2, "window": 4, "min_draft_prob": 1e-3},
}


@dataclass(frozen=True)
class Odd(LogitConstraint):
    """Every other token has to be odd: an automaton of two states."""

    def allowed(self, written: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """See `LogitConstraint`."""
        return np.arange(250) % 2 == 1 if len(written) % 2 else None


@dataclass(frozen=True)
class Planned:
    """A request, its arrival, and the number of passes after which it is cancelled."""

    request: GenerationRequest
    arrives: int
    cancelled: int | None
    follows: int  # continues the text of an earlier plan, this many before, like a conversation; 0: none
    free: int  # tokens left by a prompt that is too long


def strategy_of(name: str) -> Strategy:
    return STRATEGIES[name](**OPTIONS.get(name, {}))


@st.composite
def planned(draw: st.DrawFn, names: Sequence[str]) -> Planned:
    name = draw(st.sampled_from(names))
    prefix = draw(st.sampled_from(PREFIXES))[: draw(st.sampled_from([0, 20, 40, 60]))]
    own = draw(st.lists(st.integers(0, 250), min_size=1, max_size=draw(st.sampled_from([2, 30]))))
    sampled = name == "sample" or (name != "auto" and name != "greedy" and draw(st.booleans()))
    request = GenerationRequest(
        [*prefix, *own],
        Sampling(0.9, top_k=20) if sampled else Sampling(repetition_penalty=draw(st.sampled_from([1.0, 1.3]))),
        max_new_tokens=draw(st.integers(1, 12)),
        seed=(3, draw(st.integers(0, 5))),
        strategy=strategy_of(name),
        ignore_eos=True,
        end_tokens=draw(st.sampled_from([frozenset[int](), frozenset(range(0, 250, 6))])),
        constraint=draw(st.sampled_from([None, None, Odd()])),
        priority=draw(st.integers(0, 2)),
    )
    cancelled = draw(st.one_of(st.none(), st.none(), st.integers(0, 12)))
    return Planned(request, draw(st.integers(0, 20)), cancelled, draw(st.integers(0, 2)), draw(st.integers(1, 16)))


def follow_ups(models: Models, plans: Sequence[Planned]) -> list[Planned]:
    """The plans with prompts that continue texts of others, within the models' limits."""
    made: list[Planned] = []
    limit = models.scheduler(1).limit
    for number, plan in enumerate(plans):
        prompt = list(plan.request.prompt)
        arrives = plan.arrives
        if 0 < plan.follows <= number:
            before = made[number - plan.follows]
            prompt = [*before.request.prompt, *alone(models, before.request), *prompt[-3:]]
            arrives += before.arrives
        request = replace(plan.request, prompt=prompt[: limit - plan.free])
        made.append(replace(plan, request=request, arrives=arrives))
    return made


def alone(models: Models, request: GenerationRequest) -> list[int]:
    """The request's output from a scheduler of one row, prefilled in one pass."""
    scheduler = models.scheduler(1)
    state = scheduler.submit(request)
    while not scheduler.idle:
        assert not any(isinstance(event, Failed) for event in scheduler.step())
    return state.tokens


def drive(models: Models, plans: Sequence[Planned], rows: int, chunk: int) -> list[RequestState]:
    """Submit and cancel the requests as planned; each reports its pieces, then one end."""
    scheduler = models.scheduler(rows, chunk=chunk)
    states: dict[int, RequestState] = {}
    pieces: dict[int, list[str]] = {}
    ends: dict[int, int] = {}
    for now in range(2000):
        for number, plan in enumerate(plans):
            if plan.arrives == now:
                states[number] = scheduler.submit(plan.request)
            elif plan.cancelled is not None and plan.arrives + 1 + plan.cancelled == now:
                scheduler.cancel(states[number])
        if len(states) == len(plans) and scheduler.idle:
            break
        for event in scheduler.step():
            number = next(number for number, state in states.items() if state is event.state)
            assert not isinstance(event, Failed), event.error
            assert number not in ends
            if isinstance(event, Piece):
                pieces.setdefault(number, []).append(event.text)
            if isinstance(event, Finished):
                ends[number] = now
                told = "".join(pieces.get(number, []))
                assert event.result.text == told or event.result.stopped == "interrupted"
    assert ends.keys() == states.keys()
    return [states[number] for number in range(len(plans))]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(8))
@given(data=st.data(), rows=ROWS, chunk=CHUNKS)
def test_request_output_is_independent_of_the_batch(
    kind: str, data: st.DataObject, rows: int, chunk: int, models: dict[str, Models]
) -> None:
    """72 schedules: arrivals, cancels, priorities, strategies, seeds, shared prefixes, constraints, chunks, bits."""
    check(kind, data, rows, chunk, models)


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60))
@given(data=st.data(), rows=ROWS, chunk=CHUNKS)
def test_request_output_is_independent_of_540_batches(
    kind: str, data: st.DataObject, rows: int, chunk: int, models: dict[str, Models]
) -> None:
    check(kind, data, rows, chunk, models)


def check(kind: str, data: st.DataObject, rows: int, chunk: int, models: dict[str, Models]) -> None:
    """Each request of the drawn schedule generates what it generates alone."""
    own = models[data.draw(st.sampled_from([name for name in (kind, in_four_bits(kind)) if name in models]))]
    plans = follow_ups(own, data.draw(st.lists(planned(own.strategies), min_size=1, max_size=6)))
    for plan, state in zip(plans, drive(own, plans, rows, chunk), strict=True):
        expected = alone(own, plan.request)
        if plan.cancelled is None:
            assert state.tokens == expected
        else:
            assert state.tokens == expected[: len(state.tokens)]
        assert state.result().stopped in ("eos", "length", "capacity", "interrupted")
        if plan.request.constraint is not None:
            assert all(token % 2 and token < 250 for token in state.tokens[1::2])
