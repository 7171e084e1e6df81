"""The thread of a decoder in an event loop: shutdown."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from picture_files import picture_files

from intaglio.errors import EngineError
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.image_prompts import ImageText, message_of
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.worker import IDLE_WAIT, ChoiceEvent, DecoderWorker, GenerationStream
from intaglio.runtime.sampling.grammar_cache import compiled
from intaglio.runtime.vision.frames import Grid
from intaglio.runtime.vision.image_file import Pixels
from intaglio.runtime.vision.image_reader import ImageFile, ImageReader


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


def test_images_that_are_read_do_not_hold_up_texts(
    image_text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More prompts with images than the event loop has threads; and a client that leaves is not read for."""
    file = ImageFile(picture_files(tmp_path)[0].read_bytes(), "x")
    released, read = threading.Event(), list[str]()
    real = ImageReader.frames

    def frames(reader: ImageReader, image: ImageFile) -> tuple[Grid, Pixels]:
        read.append(image.name)
        assert released.wait(30)
        return real(reader, image)

    async def written(prompt: str | ImageText | list[Message]) -> int:
        async with await worker.submit([GenerationRequest(prompt, max_new_tokens=2, ignore_eos=True)]) as stream:
            events = [event async for event in every(stream)]
        return len(events)

    async def main() -> None:
        worker.start(asyncio.get_running_loop())
        waiting = [asyncio.create_task(written(ImageText("<image>", [file]))) for _ in range(40)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            assert await written("a text") > 0
            assert await written([message_of("user", ["a text as a part, as many clients send it"])]) > 0
            assert not any(task.done() for task in waiting)
            waiting[1].cancel()
            await asyncio.sleep(0)
            released.set()
            found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[1], asyncio.CancelledError) and len(read) == 39
        assert all(isinstance(each, int) and each > 0 for index, each in enumerate(found) if index != 1)

    monkeypatch.setattr(ImageReader, "frames", frames)
    with TextGenerator(image_text[1], batch=2) as generator:
        worker = DecoderWorker(generator)
        asyncio.run(main())
        worker.stop()


async def every(stream: GenerationStream) -> AsyncIterator[ChoiceEvent]:
    while events := await stream.next():
        for event in events:
            yield event
