"""Texts of concurrent callers in common batches: equal results, bounds, cancellation, errors, and closing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BusyError, EngineError, UsageError
from intaglio.exporters import export
from intaglio.runtime import run
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.generation.scheduling.scheduler_options import Load
from intaglio.runtime.text.tasks import Ran
from intaglio.samples.sentences import sentences
from intaglio.serve.workers.batch_plan import BatchLimits
from intaglio.serve.workers.encoder_worker import EncoderWorker

TEXTS = sentences()[:40]
Open = Callable[..., EncoderWorker]


@pytest.fixture
def worker(tiny_bundle: Path) -> Iterator[Open]:
    """A function that opens a worker of the tiny model, which is closed after the test."""
    opened: list[EncoderWorker] = []

    def make(**options: Any) -> EncoderWorker:
        opened.append(EncoderWorker(Bundle.open(tiny_bundle), threads=1, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


class Gate:
    """Blocks the engine of a worker, and records the batches that go through; fails those that `fails` names."""

    def __init__(self, worker: EncoderWorker, fails: str = ""):
        self.open = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[str]] = []
        self.shapes: list[tuple[int, ...]] = []
        self._fails, self._inside = fails, worker._runner.run_tokens
        engine = worker._runner.engine
        original = engine.run

        def record(feeds: Mapping[str, Array]) -> dict[str, Array]:
            self.shapes.append(feeds["input_ids"].shape)
            return original(feeds)

        engine.run = record  # type: ignore[method-assign]
        worker._runner.run_tokens = self.run  # type: ignore[method-assign,assignment]

    def run(self, texts: list[str], sequences: Any) -> list[Ran]:
        self.entered.set()
        self.batches.append(list(texts))
        assert self.open.wait(30)
        if self._fails in texts:
            raise EngineError("ONNX Runtime failed: out of memory")
        return self._inside(texts, sequences)


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", ["tiny_bundle", "tiny_int8_bundle"])
def test_concurrent_results_equal_single_results(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    opened = EncoderWorker(Bundle.open(path), threads=1, linger_seconds=0.5)
    gate = Gate(opened)
    gate.open.set()

    async def ask() -> list[list[Ran]]:
        calls = [opened.run([text]) for text in TEXTS[:20]]
        return await asyncio.gather(*calls, opened.run(TEXTS[20:]))

    with opened:
        results = [result for answers in asyncio.run(ask()) for result in answers]
    assert [result.text for result in results] == TEXTS
    expected = list(run(path, TEXTS, batch_size=1))
    for result, alone in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.embedding, alone.embedding, atol=1e-5)  # see the class
        assert result.tokens == alone.tokens > 0
    assert len(gate.batches) < len(TEXTS) / 2  # they shared batches


def test_batches_hold_texts_of_similar_length(worker: Open) -> None:
    opened = worker()
    gate = Gate(opened)
    short, long = ["a b"] * 8, ["a " * 200] * 8

    async def ask() -> None:
        gate.open.set()
        mixed = [text for pair in zip(short, long, strict=True) for text in pair]
        await asyncio.gather(*(opened.run([text]) for text in mixed))

    asyncio.run(ask())
    assert sum(rows * longest for rows, longest in gate.shapes) == 8 * 4 + 8 * 202


def test_batch_width_obeys_the_limits(worker: Open) -> None:
    opened = worker(limits=BatchLimits(texts=3))
    gate = Gate(opened)
    gate.open.set()
    asyncio.run(opened.run(["a"] * 10))
    assert [len(batch) for batch in gate.batches] == [3, 3, 3, 1]


def test_single_text_waits_at_most_linger_seconds(worker: Open) -> None:
    opened = worker(linger_seconds=0.2)

    async def ask() -> float:
        began = time.monotonic()
        await opened.run(["a"])
        return time.monotonic() - began

    assert 0.2 <= asyncio.run(ask()) < 5
    full = worker(linger_seconds=60, limits=BatchLimits(texts=2))
    assert len(asyncio.run(full.run(["a", "b"]))) == 2  # a full batch does not wait


def test_input_may_be_token_ids(worker: Open) -> None:
    opened = worker()
    tokenizer = opened._runner.tokenizer
    (sequence,) = tokenizer.encode(["a b c"])
    given, text = asyncio.run(opened.run([sequence.ids, "a b c"]))
    np.testing.assert_array_equal(given.embedding, text.embedding)
    with pytest.raises(UsageError, match=r"input: token ids 93 to 93, expected 0 to 92"):
        asyncio.run(opened.run([[tokenizer.backend.get_vocab_size()]]))


def test_too_long_text_is_named_in_the_error(worker: Open) -> None:
    opened = worker()
    with pytest.raises(UsageError, match=r"input\[1\]: text of 302 tokens, the model takes at most 256"):
        asyncio.run(opened.run(["a", "1 " * 300, "b"]))
    with pytest.raises(UsageError, match=r"input: no tokens"):
        asyncio.run(opened.run([[]]))
    assert opened.state() == Load()  # nothing of it counts


def test_texts_beyond_the_queue_limits_raise_busy_error(worker: Open) -> None:
    opened = worker(max_waiting=4, max_waiting_tokens=40, linger_seconds=0)
    gate = Gate(opened)

    async def ask() -> None:
        first = asyncio.create_task(opened.run(["a"]))
        await until(gate.entered.is_set)
        waiting = asyncio.create_task(opened.run(["b", "c"]))
        await until(lambda: len(opened._queue) == 2)
        assert opened.state() == Load(running=1, waiting=2)
        with pytest.raises(BusyError, match="2 texts are waiting, the maximum is 4"):
            await opened.run(["d"] * 3)
        with pytest.raises(BusyError, match="6 tokens are waiting, the maximum is 40"):
            await opened.run(["d " * 35])
        with pytest.raises(UsageError, match="5 texts, expected at most 4"):
            await opened.run(["d"] * 5)
        with pytest.raises(UsageError, match="102 tokens, expected at most 40"):
            await opened.run(["d " * 100])
        gate.open.set()
        assert [len(results) for results in await asyncio.gather(first, waiting)] == [1, 2]
        assert len(await opened.run(["d"] * 4)) == 4  # rejected texts took no slot
        assert opened.state() == Load()

    asyncio.run(ask())


def test_cancelled_caller_removes_its_texts_from_the_queue(worker: Open) -> None:
    opened = worker(linger_seconds=0)
    gate = Gate(opened)

    async def ask() -> None:
        running = asyncio.create_task(opened.run(["a"]))
        await until(gate.entered.is_set)
        gone = asyncio.create_task(opened.run(["b", "c"]))
        stays = asyncio.create_task(opened.run(["d"]))
        await until(lambda: len(opened._queue) == 3)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert opened.state() == Load(running=1, waiting=1)
        gate.open.set()
        await asyncio.gather(running, stays)

    asyncio.run(ask())
    assert gate.batches == [["a"], ["d"]]


def test_cancelling_during_a_batch_does_not_affect_others(worker: Open) -> None:
    opened = worker(linger_seconds=60, limits=BatchLimits(texts=2))
    gate = Gate(opened)

    async def ask() -> None:
        gone, stays = (asyncio.create_task(opened.run([text])) for text in ("a", "b"))
        await until(gate.entered.is_set)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        gate.open.set()
        assert [result.text for result in await stays] == ["b"]

    asyncio.run(ask())
    assert gate.batches == [["a", "b"]]


@pytest.mark.parametrize("seed", range(3))
def test_cancelling_at_any_time_leaves_no_texts_queued(seed: int, worker: Open) -> None:
    opened, random = worker(limits=BatchLimits(texts=8)), np.random.default_rng(seed)
    texts = [[TEXTS[place] for place in random.integers(0, len(TEXTS), random.integers(1, 6))] for _ in range(60)]
    delays = random.random(len(texts)) / 10

    async def call(place: int) -> list[Ran]:
        await asyncio.sleep(delays[place] / 2)
        return await opened.run(texts[place])

    async def ask() -> list[Any]:
        tasks = [asyncio.create_task(call(place)) for place in range(len(texts))]
        for place, task in enumerate(tasks):
            if place % 3 == 0:
                asyncio.get_running_loop().call_later(delays[place], task.cancel)
        return await asyncio.gather(*tasks, return_exceptions=True)

    for place, answer in enumerate(asyncio.run(ask())):
        if not (place % 3 == 0 and isinstance(answer, asyncio.CancelledError)):
            assert [result.text for result in answer] == texts[place]
            assert all(result.embedding is not None for result in answer)
    asyncio.run(until(lambda: opened.state().running == 0))
    assert opened.state() == Load()


def test_engine_error_fails_only_the_callers_of_its_batch(worker: Open) -> None:
    opened = worker(linger_seconds=0, limits=BatchLimits(texts=2))
    gate = Gate(opened, fails="b")

    async def ask() -> None:
        running = asyncio.create_task(opened.run(["a"]))
        await until(gate.entered.is_set)
        calls = [asyncio.create_task(opened.run(texts)) for texts in (["b", "c", "d"], ["e", "f"])]
        await until(lambda: len(opened._queue) == 5)
        gate.open.set()
        failed, succeeded = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(failed, EngineError) and "out of memory" in str(failed)
        assert isinstance(succeeded, list) and len(succeeded) == 2
        assert len(await running) == 1

    asyncio.run(ask())
    assert gate.batches == [["a"], ["b", "c"], ["e", "f"]]  # the rest of the failed call was dropped
    assert opened.state() == Load()


def test_close_finishes_queued_texts(worker: Open) -> None:
    opened = worker(linger_seconds=60, limits=BatchLimits(texts=3))

    async def ask() -> None:
        call = asyncio.create_task(opened.run(["a", "b"]))
        await until(lambda: len(opened._queue) == 2)
        await asyncio.to_thread(opened.close)
        assert len(await call) == 2
        with pytest.raises(EngineError, match="shutting down"):
            await opened.run(["c"])

    asyncio.run(ask())


def test_closed_event_loop_does_not_stop_the_worker(worker: Open) -> None:
    opened = worker(linger_seconds=0)
    gate = Gate(opened)

    async def leave() -> None:
        task = asyncio.create_task(opened.run(["a"]))
        await until(gate.entered.is_set)
        task.cancel()

    asyncio.run(leave())
    gate.open.set()
    assert len(asyncio.run(opened.run(["b"]))) == 1


def test_text_without_mask_token_fails_alone(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    export(str(make_checkpoint("BertForMaskedLM", num_hidden_layers=1)), tmp_path / "bundle", check=False)
    with EncoderWorker(Bundle.open(tmp_path / "bundle"), threads=1) as opened:

        async def ask() -> list[Any]:
            return await asyncio.gather(opened.run(["a b"]), opened.run(["a [MASK]"]), return_exceptions=True)

        wrong, right = asyncio.run(ask())
    assert isinstance(wrong, UsageError) and "without a blank" in str(wrong)
    assert right[0].label


@pytest.mark.parametrize("options", [{"max_waiting": 0}, {"max_waiting_tokens": 0}, {"linger_seconds": -1.0}])
def test_out_of_range_options_raise_usage_error(options: dict[str, Any], worker: Open) -> None:
    with pytest.raises(UsageError, match="expected at least"):
        worker(**options)
