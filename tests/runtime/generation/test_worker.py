"""The thread of a decoder in an event loop: shutdown."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from intaglio.errors import EngineError
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.worker import IDLE_WAIT, DecoderWorker
from intaglio.runtime.sampling.grammar_cache import compiled


def test_idle_worker_stops_immediately(tiny_decoder: Path) -> None:
    async def main() -> float:
        worker = DecoderWorker(generator)
        worker.start(asyncio.get_running_loop())
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        worker.stop()
        return time.perf_counter() - began

    with TextGenerator(tiny_decoder) as generator:
        assert asyncio.run(main()) < IDLE_WAIT / 2


def test_wake_returns_one_wait(tiny_decoder: Path) -> None:
    with TextGenerator(tiny_decoder) as generator:
        generator.scheduler.wake()
        began = time.perf_counter()
        assert not generator.scheduler.wait(30)
        woken = time.perf_counter()
        assert not generator.scheduler.wait(0.2)  # else the next worker would spin
        assert woken - began < 10
        assert time.perf_counter() - woken >= 0.2


def test_request_submitted_during_shutdown_fails(tiny_decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        worker = DecoderWorker(generator)
        worker.start(asyncio.get_running_loop())
        real = generator.scheduler.submit

        def submit(request: GenerationRequest) -> RequestState:
            state = real(request)
            worker.stop()
            return state

        monkeypatch.setattr(generator.scheduler, "submit", submit)
        async with asyncio.timeout(30):
            with pytest.raises(EngineError, match="is closed, or has stopped"):
                async with await worker.submit([GenerationRequest("a", max_new_tokens=50)]) as stream:
                    while await stream.next():
                        pass

    with TextGenerator(tiny_decoder) as generator:
        asyncio.run(main())


def test_used_grammar_is_not_compiled_again(tiny_decoder: Path) -> None:
    with TextGenerator(tiny_decoder) as generator:
        first = compiled("lark", "start: /[ab]+/", generator.tokenizer)
        assert compiled("lark", "start: /[ab]+/", generator.tokenizer) is first
        assert compiled("regex", "[ab]+", generator.tokenizer) is not first
