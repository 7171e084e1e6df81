"""Shared prefixes: cached tokens are reused by other requests, incomplete ones are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scheduled_models import Models
from scheduling import RANDOM, alone, request, run

from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.strategies import (
    BigLittleDecoder,
    Calm,
    Emitted,
    Plain,
    Speculative,
    Strategy,
)


@pytest.mark.parametrize("chunk", [64, 256, 1000])
@pytest.mark.parametrize("strategy", [Plain(), Speculative(window=2)])
def test_shared_prefix_is_prefilled_once_per_model(
    strategy: Strategy, chunk: int, long: Callable[..., Scheduler]
) -> None:
    """Four requests that arrive together, one during their decoding, and one after all of them."""
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


def test_prefix_reuse_can_be_disabled(long: Callable[..., Scheduler]) -> None:
    scheduler = long(2)
    for reuse, read in ((True, 50), (False, 50), (True, 1)):
        state = scheduler.submit(request(RANDOM[:50], 1, reuse_prefix=reuse))
        run(scheduler)
        assert (state.result().processed.large, state.reused) == (read, 50 - read)


def test_tokens_that_skipped_blocks_are_not_reused(models: dict[str, Models]) -> None:
    scheduler, prompt = models["calm"].scheduler(1), RANDOM[:30]
    first = scheduler.submit(request(prompt, 20, strategy=Calm(0.0, 0.0)))
    run(scheduler)
    assert first.result().blocks == pytest.approx((4 + 19) / 20)
    whole = request([*prompt, *first.tokens, 1], strategy=Plain())
    second = scheduler.submit(whole)
    run(scheduler)
    assert second.reused == 30
    assert second.tokens == alone(models["calm"], whole)


def test_cache_of_the_early_exit_alone_is_not_reused(models: dict[str, Models]) -> None:
    """A pass of the whole model for another row overwrites it."""
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


def traced(models: Models, asked: GenerationRequest) -> list[Emitted]:
    scheduler = models.scheduler(1)
    state = scheduler.submit(asked)
    run(scheduler)
    return state.result().trace


def test_draft_in_place_of_the_last_token_is_not_reused(models: dict[str, Models]) -> None:
    """The next prompt continues after a token that ended the text in place of a drafted one."""
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


def test_unused_rows_are_assigned_before_cached_ones(long: Callable[..., Scheduler]) -> None:
    """One request after another: each of two conversations reuses the cache of its own last turn."""
    scheduler = long(2)
    reused = []
    for turn in range(1, 4):
        for start in (0, 1000):
            state = scheduler.submit(request(RANDOM[start : start + 50 * turn], 1))
            run(scheduler)
            reused.append(state.reused)
    assert reused == [0, 0, 50, 50, 100, 100]
