"""A decoder in an event loop: one thread runs its scheduler, tasks of the loop await the events of their requests."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, Self

from intaglio.errors import EngineError, one_line
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.image_prompts import shows_images
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Event, Failed, Finished
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.scheduling.scheduler_options import Load

log = logging.getLogger(__name__)

IDLE_WAIT = 1.0  # seconds; an idle thread looks this often whether it should end, besides when it is woken
# Seconds that a pass waits until the event loop has a text's first token. Otherwise the threads of the pass keep the
# processors, and the loop gets one some milliseconds later.
FIRST_TOKEN_WAIT = 0.002


class ChoiceEvent(NamedTuple):
    """An event of one of the texts of a stream."""

    choice: int  # the number of the text
    event: Event


class GenerationStream:
    """The events of texts that were submitted together, for one task of the event loop. An async context manager.

    Leaving it cancels the texts that are not finished: their rows are free for the scheduler's next pass.
    """

    def __init__(self, worker: DecoderWorker, texts: int):
        self._worker = worker
        self._arrived = asyncio.Event()
        self._events: deque[ChoiceEvent] = deque()
        self._unfinished = texts
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.begun = False  # whether there was an event
        self.states: list[RequestState] = []
        self.closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def next(self) -> list[ChoiceEvent]:
        """Wait for the next events and return all that have arrived; none after the last text has ended.

        Raises the error of `fail`.
        """
        while self._error is not None or not self._events:
            if not self._unfinished:
                return []
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        arrived = list(self._events)
        self._events.clear()
        self._unfinished -= sum(isinstance(each.event, Finished | Failed) for each in arrived)
        return arrived

    def put(self, event: ChoiceEvent) -> None:
        """Add an event; called in the event loop."""
        self._events.append(event)
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """Let `next` raise `error` instead of waiting for more events; called in the event loop."""
        self._error = error
        self._arrived.set()

    def expire_after(self, seconds: float, error: Exception) -> None:
        """Fail with `error` if the stream is still open after `seconds`."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.fail, error)

    def close(self) -> None:
        """Cancel the texts that are not finished."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for state in self.states:
            if not state.ended:
                self._worker.cancel(state)


class DecoderWorker:
    """Runs the scheduler of `generator` in a thread of its own, until `stop` or `close`.

    stream = await worker.submit([GenerationRequest("Once upon a time")])
    async with stream:
        while events := await stream.next():
            ...
    """

    def __init__(self, generator: TextGenerator):
        self.generator = generator
        self.scheduler = generator.scheduler
        self.prompts = generator.scheduler.prompts
        self.failure: BaseException | None = None  # why the thread ended, if it did before `stop`
        self._streams: dict[int, tuple[GenerationRequest, GenerationStream, int]] = {}  # by the request's id
        self._lock = threading.Lock()  # of `_streams`
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._ended = False  # whether the thread has failed the texts that were not finished
        # Images are read one at a time, and do not keep the threads that other prompts are encoded in.
        self._images = ThreadPoolExecutor(1, "intaglio-images")
        self._thread = threading.Thread(target=self._work, name="intaglio-decoder", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; events are delivered in `loop`."""
        self._loop = loop
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are served."""
        return self._thread.is_alive()

    async def submit(self, requests: Sequence[GenerationRequest]) -> GenerationStream:
        """Queue all `requests`, or none.

        Raises `UsageError` for an invalid prompt, `BusyError` for a full queue, `EngineError` after the thread's end.
        """
        stream = GenerationStream(self, len(requests))
        if self._closing:
            raise _closed()
        shown = any(shows_images(request.prompt) for request in requests)
        try:
            if shown:
                await asyncio.get_running_loop().run_in_executor(self._images, self._submit, requests, stream)
            else:
                await asyncio.to_thread(self._submit, requests, stream)
        except BaseException:
            stream.close()
            raise
        return stream

    def _submit(self, requests: Sequence[GenerationRequest], stream: GenerationStream) -> None:
        """Encode the prompts and queue them, in a thread of its own: long prompts and images take a while."""
        if stream.closed:  # its client disconnected while other images were read
            return
        encoded = {id(request.prompt): request.prompt for request in requests}  # each once, for all of its texts
        prompts = {key: self.generator.checked(prompt) for key, prompt in encoded.items()}
        checked = [replace(request, prompt=prompts[id(request.prompt)]) for request in requests]
        for index, request in enumerate(checked):
            with self._lock:
                if self._closing or self.failure is not None:
                    raise _closed()
                self._streams[id(request)] = (request, stream, index)
            try:
                state = self.scheduler.submit(request)
            except BaseException:
                with self._lock:
                    self._streams.pop(id(request), None)
                raise
            stream.states.append(state)
            if stream.closed:  # its client disconnected meanwhile
                self.scheduler.cancel(state)
            with self._lock:
                if self._ended:  # meanwhile, and this text may not have been failed
                    raise _closed()

    def cancel(self, state: RequestState) -> None:
        """End a text before the next pass."""
        self.scheduler.cancel(state)

    def state(self) -> Load:
        """The current load, in texts."""
        return self.scheduler.load()

    def fail_all(self, error: Exception) -> int:
        """Let all open streams fail with `error`; called in the event loop. Return the number of unfinished texts."""
        with self._lock:
            streams = [stream for _, stream, _ in self._streams.values()]
        for stream in streams:
            stream.fail(error)
        return len(streams)

    def _work(self) -> None:
        try:
            while not self._closing:
                if self.scheduler.wait(IDLE_WAIT):
                    self._deliver(self.scheduler.step())
        except BaseException as error:  # a bug in the scheduler: say so to all, and report the worker as not alive
            self.failure = error
            log.critical("a model has stopped: %s", one_line(error) or repr(error), exc_info=error)
        finally:
            self._end_all()

    def _deliver(self, events: Sequence[Event]) -> None:
        """Hand the events of a step to the streams, in one call into the event loop."""
        found: list[tuple[GenerationStream, ChoiceEvent]] = []
        with self._lock:
            for event in events:
                key = id(event.state.request)
                if key in self._streams:
                    _, stream, index = self._streams[key]
                    found.append((stream, ChoiceEvent(index, event)))
                    if isinstance(event, Finished | Failed):
                        del self._streams[key]
        if found:
            taken = self._call(found)
            if not all(stream.begun for stream, _ in found):
                taken.wait(FIRST_TOKEN_WAIT)

    def _call(self, found: Sequence[tuple[GenerationStream, ChoiceEvent]]) -> threading.Event:
        """Put the events into their streams, in the event loop; return what is set when they are there."""
        assert self._loop is not None, "it was started"
        taken = threading.Event()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_put_all, found, taken)
        return taken

    def _end_all(self) -> None:
        """Fail the texts that are not finished."""
        with self._lock:
            self._ended = True
            left = list(self._streams.values())
            self._streams.clear()
        reason = EngineError("the model was closed before the text was finished. Send the request again.")
        if self.failure is not None:
            cause = one_line(self.failure) or repr(self.failure)
            reason = EngineError(f"the model has stopped, a bug in intaglio ({cause}). Open it again.")
        found: list[tuple[GenerationStream, ChoiceEvent]] = []
        for _, stream, index in left:
            found += [(stream, ChoiceEvent(index, Failed(state, reason))) for state in stream.states[index : index + 1]]
        if found:
            self._call(found)

    def stop(self) -> None:
        """End all texts, then the thread; wait until it has ended, at most for one pass."""
        self._closing = True
        self._images.shutdown(wait=False)
        self.scheduler.wake()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Stop, then close the model."""
        self.stop()
        self.generator.close()


def _closed() -> EngineError:
    return EngineError("the model is closed, or has stopped. Open it again.")


def _put_all(found: Sequence[tuple[GenerationStream, ChoiceEvent]], taken: threading.Event) -> None:
    for stream, event in found:
        stream.put(event)
        stream.begun = True
    taken.set()
