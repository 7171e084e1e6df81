"""A recording of one caller, who waits in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import islice

from intaglio.runtime.speech.audio_file import AudioFile
from intaglio.runtime.speech.transcript import Word
from intaglio.runtime.speech.transcription import Transcription
from intaglio.runtime.speech.whisper.recognizer import WhisperTranscription, WrittenSegment
from intaglio.serve.bodies.uploads import Upload

Found = list[Word] | list[WrittenSegment]  # of a CTC head, and of an encoder-decoder


class SpeechCall:
    """A recording, its words as they arrive, and then its `transcription`; created in the caller's event loop."""

    def __init__(
        self, transcription: Transcription | WhisperTranscription, file: AudioFile, upload: Upload, short: bool
    ):
        """`file` is open, of `upload`, and read by `transcription`; `short`: whether it is one window."""
        self.transcription, self.short = transcription, short
        self.cancelled = False
        self.queued_seconds: float | None = None  # until its first turn
        self.work_seconds = 0.0
        self._windows: Iterator[Found] = iter(transcription)
        self._file, self._upload = file, upload
        self._arrived = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Found | Exception | None] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Seconds since it arrived."""
        return time.perf_counter() - self._arrived

    async def words(self) -> AsyncIterator[Found]:
        """What became final with each window; raises the error that ended it. To be called once."""
        while (event := await self._events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    def expire_after(self, seconds: float, error: Exception) -> None:
        """Fail with `error` unless it ends before."""
        self._timer = self._loop.call_later(seconds, self.fail, error)

    def fail(self, error: Exception) -> None:
        """Let the caller continue with `error`, and stop the work; called in the event loop."""
        self._events.put_nowait(error)
        self.cancel()

    def cancel(self) -> None:
        """Stop the work before its next window; called in the event loop, also after its end."""
        self.cancelled = True
        if self._timer is not None:
            self._timer.cancel()

    def work(self) -> bool:
        """Compute one window, of a short recording also the end; return whether more follows.

        On the worker's thread, as all that follows.
        """
        if self.cancelled:
            return False
        began = time.perf_counter()
        if self.queued_seconds is None:
            self.queued_seconds = began - self._arrived
        for words in islice(self._windows, 2 if self.short else 1):
            self._send(words)
        self.work_seconds += time.perf_counter() - began
        return not self.transcription.finished

    def end(self, error: Exception | None) -> None:
        """Release the recording, and let the caller continue."""
        self._file.close()
        self._upload.close()
        self._send(error)

    def _send(self, event: Found | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed, and its callers with it
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
