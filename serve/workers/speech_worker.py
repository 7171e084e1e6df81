"""The worker of a speech recogniser: transcribes the recordings of all callers in turns, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from itertools import chain

from intaglio.bundle.bundle import Bundle
from intaglio.closing import Closing
from intaglio.errors import BusyError, EngineError, IntaglioError, UsageError, one_line
from intaglio.extras import load
from intaglio.runtime.generation.scheduling.scheduler_options import Load
from intaglio.runtime.speech.audio_file import AudioFile
from intaglio.runtime.speech.recognizer import SpeechOptions
from intaglio.runtime.speech.recordings.opening import open_recognizer
from intaglio.runtime.speech.transcription import Transcription
from intaglio.runtime.speech.whisper.recognizer import WhisperRecognizer, WhisperTranscription
from intaglio.runtime.speech.whisper_options import WhisperOptions
from intaglio.serve.bodies.uploads import FILE, Upload
from intaglio.serve.workers.encoder_worker import CLOSED
from intaglio.serve.workers.speech_call import SpeechCall
from intaglio.targets import DEFAULT

OPTION = "--max-audio-seconds of the server"


class SpeechWorker(Closing):
    """Transcribes recordings of many callers with one bundle, one window of one of them at a time.

    Up to `rows` recordings are in progress, and take turns; others wait in the order of their arrival. Every other turn
    is for a recording that has not begun, if a row is free for it, or if it is not longer than one window: so a short
    recording does not wait for long ones to end, and long ones continue regardless of how many short ones arrive.
    """

    def __init__(
        self,
        bundle: Bundle,
        target: str = DEFAULT,
        threads: int | None = None,
        rows: int = 8,
        max_waiting: int = 256,
        options: SpeechOptions | None = None,
    ):
        """`max_waiting`: recordings that have not begun. `threads`: of the engine. `options`: of every recording.

        Raises `UsageError` for numbers below 1, `MissingExtraError`, and the errors of `SpeechRecognizer`.
        """
        if min(rows, max_waiting) < 1:
            raise UsageError(f"rows {rows}, max waiting {max_waiting}: expected at least 1 of both.")
        for library in ("soundfile", "soxr"):
            load(library)
        self._recognizer = open_recognizer(bundle, target, threads, spinning=False, options=options)
        self._rows, self._max_waiting = rows, max_waiting
        self._changed = threading.Condition()  # guards all that follows
        self._new: deque[SpeechCall] = deque()  # oldest first
        self._begun: deque[SpeechCall] = deque()  # in the order of their turns
        self._working: SpeechCall | None = None
        self._new_turn = True  # the next turn is for a new one
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="intaglio-speech", daemon=True)
        self._thread.start()

    async def start(self, upload: Upload, whisper: WhisperOptions | None = None) -> SpeechCall:
        """Queue a recording, which belongs to the worker afterwards; it runs until its end, or `SpeechCall.cancel`.

        `whisper`: the options of this recording, for an encoder-decoder.
        Raises `UsageError` for an invalid or too long recording, and for options that the model does not have;
        `BusyError` if too many wait, `EngineError` after `close`. Then it still belongs to the caller.
        """
        self._check_queue()
        file = await asyncio.to_thread(self._open, upload)
        short = file.seconds is not None and file.seconds <= self._recognizer.window_seconds
        try:
            call = SpeechCall(self._begin(file, whisper), file, upload, short)
            with self._changed:
                self._check_queue()
                self._new.append(call)
                self._changed.notify_all()
        except IntaglioError:
            file.close()
            raise
        return call

    @property
    def alive(self) -> bool:
        """Whether recordings are transcribed."""
        return self._thread.is_alive()

    def state(self) -> Load:
        """The current load, in recordings."""
        with self._changed:
            return Load(len(self._begun) + (self._working is not None), len(self._new))

    def fail_all(self, error: Exception) -> int:
        """Let all callers continue with `error`; called in their event loop. Return the number of recordings."""
        with self._changed:
            calls = [*self._new, *self._begun, *([self._working] if self._working else [])]
        for call in calls:
            call.fail(error)
        return len(calls)

    def close(self) -> None:
        """Finish all recordings, and release the engine. Later calls of `start` raise `EngineError`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._recognizer.close()

    def _check_queue(self) -> None:
        if self._closed:
            raise EngineError(CLOSED)
        if len(self._new) >= self._max_waiting:
            raise BusyError(f"{len(self._new)} recordings are waiting, the maximum. Try again later.")

    def _begin(self, file: AudioFile, whisper: WhisperOptions | None) -> Transcription | WhisperTranscription:
        if isinstance(self._recognizer, WhisperRecognizer):
            return self._recognizer.begin(file.blocks(), whisper)
        return self._recognizer.begin(file.blocks())

    def _open(self, upload: Upload) -> AudioFile:
        """Open a recording and remove its path: its bytes are freed when it is closed, or the server is killed."""
        recognizer = self._recognizer
        file = AudioFile(upload.path, recognizer.sample_rate, recognizer.max_seconds, OPTION, FILE)
        file.open()
        upload.path.unlink(missing_ok=True)  # the caller may have been cancelled
        return file

    def _work(self) -> None:
        """Transcribe until `close`, on the worker's thread."""
        while (call := self._next()) is not None:
            error: Exception | None = None
            try:
                follows = call.work()
            except Exception as raised:
                follows = False
                error = raised if isinstance(raised, IntaglioError) else EngineError(one_line(raised) or repr(raised))
            if not follows:
                call.end(error)
            with self._changed:
                self._working = None
                if follows:
                    self._begun.append(call)

    def _next(self) -> SpeechCall | None:
        """Wait for the recording whose turn it is; None after `close`."""
        with self._changed:
            while not self._new and not self._begun:
                if self._closed:
                    return None
                self._changed.wait()
            self._working = self._take()
            return self._working

    def _take(self) -> SpeechCall:
        """Take a recording out of the queues; cancelled ones first, as they release what they hold."""
        call = next((call for call in chain(self._new, self._begun) if call.cancelled), None)
        if call is None and (self._new_turn or not self._begun):
            free_row = len(self._begun) < self._rows
            call = next((call for call in self._new if free_row or call.short), None)
        self._new_turn = call is None
        if call is None:
            return self._begun.popleft()
        (self._new if call in self._new else self._begun).remove(call)
        return call
