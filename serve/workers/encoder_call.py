"""The calls of an encoder's worker: texts of one caller, who waits in an event loop, and what ends the wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress

from intaglio.errors import IntaglioError
from intaglio.runtime.text.tasks import Ran
from intaglio.runtime.text.tokenizer import Pair, TokenSequence


class EncoderCall:
    """The texts of one caller, and their results so far."""

    def __init__(self, count: int):
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self.task = task
        self.failure: Exception | None = None
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.results: list[Ran | None] = [None] * count
        self.missing = count

    def fail(self, error: Exception) -> None:
        """Let the caller continue with `error`, wherever it waits; called in its event loop."""
        self.failure = error
        self.task.cancel()

    def end(self, error: IntaglioError | None) -> None:
        """Let the caller continue; called in its event loop."""
        if self.future.done():  # it was cancelled
            return
        if error is None:
            self.future.set_result(None)
        else:
            own = type(error)(str(error))  # a raised exception collects the traceback of its caller
            own.__cause__ = error
            self.future.set_exception(own)


class WaitingText:
    """A text in the queue."""

    def __init__(self, call: EncoderCall, place: int, text: str | Pair, tokens: TokenSequence):
        self.call, self.place, self.text, self.tokens = call, place, text, tokens
        self.arrived = time.monotonic()


def end_calls(calls: Collection[EncoderCall], error: IntaglioError | None) -> None:
    """Let callers continue, in their event loops."""
    for loop in {call.loop for call in calls}:
        ended = [call for call in calls if call.loop is loop]
        with suppress(RuntimeError):  # the loop is closed, and its callers with it
            loop.call_soon_threadsafe(_end_in_loop, ended, error)


def _end_in_loop(calls: Collection[EncoderCall], error: IntaglioError | None) -> None:
    for call in calls:
        call.end(error)
