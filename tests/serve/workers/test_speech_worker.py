"""Recordings of concurrent callers: their turns, cancellation, errors, limits, and released files."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from speech_bundles import RECORDINGS
from starlette.responses import Response

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BusyError, EngineError, UsageError
from intaglio.runtime.generation.scheduling.scheduler_options import Load
from intaglio.runtime.speech.recognizer import SpeechOptions, SpeechRecognizer
from intaglio.serve.bodies.transcription_fields import TranscriptionRequest
from intaglio.serve.bodies.uploads import Upload
from intaglio.serve.endpoints.transcriptions import Ending, Spoken
from intaglio.serve.monitoring.logs import Access
from intaglio.serve.monitoring.metrics import ServerMetrics
from intaglio.serve.workers.speech_call import SpeechCall
from intaglio.serve.workers.speech_worker import SpeechWorker

RATE = 16000
Open = Callable[..., SpeechWorker]


@pytest.fixture
def worker(recogniser: Path) -> Iterator[Open]:
    """A function that opens a worker of the small recogniser, which is closed after the test."""
    opened: list[SpeechWorker] = []

    def make(**options: Any) -> SpeechWorker:
        opened.append(SpeechWorker(Bundle.open(recogniser), threads=1, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


class Recorded:
    """Makes uploads, and knows which of them have been released."""

    def __init__(self, folder: Path):
        self.folder, self.made, self.released = folder, 0, 0

    def upload(self, source: Path | int) -> Upload:
        """A shipped recording, or this many seconds of noise."""
        self.made += 1
        path = self.folder / str(self.made)
        if isinstance(source, int):
            noise = np.random.default_rng(source).normal(0, 0.1, source * RATE).clip(-1, 1)
            soundfile.write(path, noise, RATE, format="WAV", subtype="PCM_16")
        else:
            shutil.copy(source, path)
        upload = Upload(path, self._release)
        upload.size = path.stat().st_size
        return upload

    def _release(self, size: int) -> None:
        self.released += size > 0


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """Uploads in a folder of the test."""
    return Recorded(tmp_path)


class Gate:
    """Blocks the engine of a worker, and records the turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.open, self.entered = threading.Event(), threading.Event()
        self.turns: list[SpeechCall] = []
        work = SpeechCall.work

        def held(call: SpeechCall) -> bool:
            self.entered.set()
            assert self.open.wait(60)
            if not call.cancelled:
                self.turns.append(call)
            return work(call)

        monkeypatch.setattr(SpeechCall, "work", held)


async def text(call: SpeechCall) -> str:
    return " ".join([word.text async for words in call.words() for word in words])


def test_concurrent_transcripts_equal_single_transcripts(worker: Open, recorded: Recorded, recogniser: Path) -> None:
    paths = sorted(RECORDINGS.glob("*.flac"))
    with SpeechRecognizer(Bundle.open(recogniser)) as alone:
        expected = [alone.transcribe(path) for path in paths]

    async def ask(served: SpeechWorker) -> None:
        calls = [await served.start(recorded.upload(path)) for path in paths]
        assert await asyncio.gather(*map(text, calls)) == [each.text for each in expected]
        assert [call.transcription.seconds for call in calls] == [each.seconds for each in expected]
        assert all(call.work_seconds > 0 for call in calls)

    assert len({each.text for each in expected}) == len(paths)
    served = worker()
    asyncio.run(ask(served))
    served.close()
    assert (recorded.released, list(recorded.folder.iterdir())) == (len(paths), [])


def test_short_and_long_recordings_do_not_block_each_other(
    worker: Open, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def ask(served: SpeechWorker) -> None:
        long = [await served.start(recorded.upload(80)) for _ in range(2)]
        short = [await served.start(recorded.upload(1)) for _ in range(5)]
        gate.open.set()
        await asyncio.gather(*map(text, (*long, *short)))
        names = {**dict(zip(long, "AB", strict=True)), **dict.fromkeys(short, "s")}
        # 80 seconds are three windows and a last turn; B waits for A, the short ones wait for a window.
        assert "".join(names[call] for call in gate.turns) == "AAsAsABBsBsBs"

    asyncio.run(ask(worker(rows=1)))


def test_rows_limit_recordings_in_progress(worker: Open, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    async def ask(served: SpeechWorker) -> None:
        calls = [await served.start(recorded.upload(70)) for _ in range(4)]
        gate.open.set()
        await asyncio.gather(*map(text, calls))
        assert "".join(str(calls.index(call)) for call in gate.turns) == "0010102121323233"

    asyncio.run(ask(worker(rows=2)))


def test_cancelled_recording_stops_at_its_next_window(
    worker: Open, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    served = worker()

    async def ask() -> None:
        call = await served.start(recorded.upload(600))
        waiting = await served.start(recorded.upload(600))
        assert await asyncio.to_thread(gate.entered.wait, 60)
        call.cancel()
        waiting.cancel()
        gate.open.set()

    asyncio.run(ask())
    served.close()  # waits for all that are queued
    assert len(gate.turns) <= 1
    assert recorded.released == 2
    assert served.state() == Load()


@pytest.mark.parametrize("leaves", ["full response", "streamed", "unread"])
def test_client_disconnect_stops_the_work(
    worker: Open, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    gate = Gate(monkeypatch)

    async def ask(served: SpeechWorker) -> None:
        call = await served.start(recorded.upload(70))
        spoken = Spoken(
            call,
            TranscriptionRequest("speech"),
            ServerMetrics(),
            Access("POST", "/v1/audio/transcriptions", 200, model="speech"),
        )
        if leaves == "full response":
            await left(spoken.full_response())
        elif leaves == "streamed":
            await left(anext(spoken.streamed()))
        else:
            gone = Ending(Response(b"a"), call.cancel)
            with pytest.raises(OSError, match="the client is gone"):
                await gone({"type": "http"}, unread, unread)
        assert call.cancelled
        gate.open.set()

    async def left(waiting: Awaitable[object]) -> None:
        task = asyncio.ensure_future(waiting)
        assert await asyncio.to_thread(gate.entered.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def unread(*_: object) -> Any:
        raise OSError("the client is gone")

    asyncio.run(ask(worker()))


def test_failed_caller_does_not_wait_for_its_window(
    worker: Open, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def ask(served: SpeechWorker) -> None:
        late = await served.start(recorded.upload(1))
        late.expire_after(0.01, EngineError("too late"))
        with pytest.raises(EngineError, match="too late"):
            await text(late)
        running, waiting = [await served.start(recorded.upload(1)) for _ in range(2)]
        assert served.fail_all(EngineError("the server stops")) == 3
        for call in (running, waiting):
            with pytest.raises(EngineError, match="the server stops"):
                await text(call)
        gate.open.set()

    asyncio.run(ask(worker()))


def test_damaged_recording_fails_alone(worker: Open, recorded: Recorded) -> None:
    broken = recorded.upload(1)
    samples = np.zeros(40 * RATE, np.float32)
    samples[35 * RATE] = np.nan
    soundfile.write(broken.path, samples, RATE, format="WAV", subtype="FLOAT")

    async def ask(served: SpeechWorker) -> None:
        bad, good = await served.start(broken), await served.start(recorded.upload(1))
        with pytest.raises(UsageError, match=r"^file: NaN or infinite samples at 35\.000 seconds"):
            await text(bad)
        assert isinstance(await text(good), str)

    served = worker()
    asyncio.run(ask(served))
    served.close()
    assert recorded.released == 2


def test_engine_error_fails_only_its_recording(
    worker: Open, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = worker()
    run, failed = served._recognizer.engine.run, []

    def fails(feeds: Any) -> Any:
        if not failed:
            failed.append(True)
            raise ValueError("no\nmemory")
        return run(feeds)

    monkeypatch.setattr(served._recognizer.engine, "run", fails)

    async def ask() -> None:
        with pytest.raises(EngineError, match=r"^no memory$"):
            await text(await served.start(recorded.upload(1)))
        await text(await served.start(recorded.upload(1)))

    asyncio.run(ask())
    assert served.alive


def test_rejected_recording_belongs_to_the_caller(
    worker: Open, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    served = worker(max_waiting=1, options=SpeechOptions(max_seconds=10))

    async def ask() -> None:
        calls = [await served.start(recorded.upload(1))]
        assert await asyncio.to_thread(gate.entered.wait, 60)
        calls.append(await served.start(recorded.upload(1)))
        busy, long, empty = recorded.upload(1), recorded.upload(11), recorded.upload(1)
        with pytest.raises(BusyError, match=r"1 recordings are waiting, the maximum\. Try again later\."):
            await served.start(busy)
        gate.open.set()
        await asyncio.gather(*map(text, calls))
        with pytest.raises(UsageError, match=r"file: 11\.0 seconds, expected at most 10\. Raise --max-audio-seconds"):
            await served.start(long)
        empty.path.write_bytes(b"")
        with pytest.raises(UsageError, match=r"^file: is empty"):
            await served.start(empty)

    asyncio.run(ask())
    served.close()
    assert recorded.released == 2
    with pytest.raises(EngineError, match="shutting down"):
        asyncio.run(served.start(recorded.upload(1)))


def test_out_of_range_options_raise_usage_error(recogniser: Path, tiny_bundle: Path) -> None:
    with pytest.raises(UsageError, match="rows 0, max waiting 256: expected at least 1"):
        SpeechWorker(Bundle.open(recogniser), rows=0)
    with pytest.raises(UsageError, match="does not take recordings"):
        SpeechWorker(Bundle.open(tiny_bundle))
