"""A trace of the schedulers' work, for chrome://tracing and Perfetto: `--trace FILE`.

The file is a JSON array of trace events, one a line, each written at once, so that a killed server leaves all of them:
the viewers read an array without its end. Each model is a process with a track for its passes and one for those of its
draft model, a track for each request, and a counter of running and waiting requests.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from intaglio.closing import Closing
from intaglio.errors import UsageError, storage_errors
from intaglio.runtime.generation.scheduling.events import Failed, Finished
from intaglio.runtime.generation.scheduling.observer import Pass
from intaglio.runtime.generation.scheduling.request_state import RequestState

MEGABYTE = 1_000_000
MAX_MEGABYTES = 256  # Perfetto holds some ten times that in memory
END = b"\n]\n"
NOTE_BYTES = 256  # kept free for the note that closes a full file
THREADS = {"large": 1, "small": 2}

_log = logging.getLogger(__name__)


class TraceFile(Closing):
    """A trace that is being written, of any number of schedulers, in any number of threads. A context manager.

    When it is full, or cannot be written, it ends with a note, and the schedulers continue without it.
    """

    def __init__(self, path: Path, max_megabytes: float = MAX_MEGABYTES):
        """`path` is replaced if it exists.

        Raises `UsageError` for a path that cannot be a file, or a size that holds no event, and `StorageError`.
        """
        self._bytes_left = int(max_megabytes * MEGABYTE) - len(END) - NOTE_BYTES
        if self._bytes_left <= NOTE_BYTES:
            raise UsageError(f"trace of {max_megabytes} MB: expected at least 0.001.")
        self._path, self._megabytes = path, max_megabytes
        self._began = time.perf_counter()
        self._lock = threading.Lock()
        try:
            with storage_errors(path):
                self._file: BinaryIO | None = path.open("wb", buffering=0)
        except OSError as error:
            raise UsageError(f"--trace {path}: {error.strerror}. Give a file in an existing directory.") from error
        self._separator = b"[\n"  # before the next event
        self._schedulers = 0

    def scheduler(self, model: str) -> SchedulerTrace:
        """Return the observer for the scheduler of the model with this name."""
        with self._lock:
            self._schedulers += 1
            number = self._schedulers
        return SchedulerTrace(self, model, number)

    def microseconds(self, moment: float) -> float:
        """Convert a moment of `time.perf_counter` to the trace's time."""
        return round((moment - self._began) * 1e6, 1)

    def write(self, event: dict[str, Any]) -> None:
        """Append an event, or close the full file."""
        if self._file is None:
            return
        line = msgspec.json.encode(event)
        with self._lock:
            if len(self._separator) + len(line) <= self._bytes_left:
                self._append(line)
            else:
                name = f"the trace ends here: it has reached its limit of {self._megabytes:g} MB"
                moment = self.microseconds(time.perf_counter())
                self._append(msgspec.json.encode({"name": name, "ph": "i", "s": "g", "pid": 0, "tid": 0, "ts": moment}))
                self._end()

    def close(self) -> None:
        """Complete the JSON array; events that come later are dropped."""
        with self._lock:
            self._end()

    def _append(self, line: bytes) -> None:
        self._put(self._separator + line)
        self._bytes_left -= len(self._separator) + len(line)
        self._separator = b",\n"

    def _end(self) -> None:
        self._put(b"[" + END if self._separator == b"[\n" else END)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(data)
        except OSError as error:
            _log.warning("the trace %s ends: it cannot be written: %s", self._path, error.strerror)
            self._file.close()
            self._file = None


class SchedulerTrace:
    """Writes the events of one scheduler: set it as the scheduler's `observer`."""

    def __init__(self, file: TraceFile, model: str, number: int):
        self._file, self._number = file, number
        self._requests = 0  # those that have begun or ended
        self._begun: dict[int, tuple[int, float]] = {}  # id of a state -> the request's number, when it got a row
        self._waiting = 0
        self._name("process_name", 0, model)
        self._name("thread_name", THREADS["large"], "target model")
        self._name("thread_name", THREADS["small"], "draft model")

    def admitted(self, state: RequestState) -> None:
        """See `Observer`."""
        now, number = time.perf_counter(), self._count()
        arrived = now - state.result().queued_seconds
        self._begun[id(state)] = number, now
        self._phase("b", "request", number, arrived, {"prompt_tokens": len(state.prompt.tokens)})
        self._span("queued", number, arrived, now)

    def passed(self, made: Pass) -> None:
        """See `Observer`."""
        began = self._file.microseconds(made.began)
        self._write(
            {
                "name": made.kind if made.model == "large" or made.kind == "prefill" else "draft",
                "ph": "X",
                "tid": THREADS[made.model],
                "ts": began,
                "dur": round(made.seconds * 1e6, 1),
                "args": {"rows": made.rows, "tokens": made.tokens},
            }
        )
        self._waiting = made.waiting
        self._load(made.began)

    def finished(self, event: Finished | Failed) -> None:
        """See `Observer`."""
        state, now = event.state, time.perf_counter()
        result = event.result if isinstance(event, Finished) else state.result()
        reason = result.stopped if isinstance(event, Finished) else type(event.error).__name__
        if (known := self._begun.pop(id(state), None)) is None:  # it never got a row
            number, arrived = self._count(), now - result.queued_seconds
            self._phase("b", "request", number, arrived, {"prompt_tokens": result.prompt_tokens})
            self._span("queued", number, arrived, now)
        else:
            number, begun = known
            first = begun + result.prompt_seconds if result.tokens else now
            self._span("prompt", number, begun, first, {"reused_tokens": result.reused_tokens})
            if result.tokens:
                drafted = {"accepted": result.accepted, "rolled_back": result.rolled_back}
                self._span("decoding", number, first, now, {"tokens": len(result.tokens), **drafted})
        self._phase("e", "request", number, now, {"tokens": len(result.tokens), "reason": reason})
        self._load(now)

    def _load(self, moment: float) -> None:
        args = {"running": len(self._begun), "waiting": self._waiting}
        self._write({"name": "requests", "ph": "C", "tid": 0, "ts": self._file.microseconds(moment), "args": args})

    def _count(self) -> int:
        self._requests += 1
        return self._requests

    def _span(self, name: str, number: int, began: float, ended: float, args: dict[str, Any] | None = None) -> None:
        self._phase("b", name, number, began, args)
        self._phase("e", name, number, ended)

    def _phase(self, phase: str, name: str, number: int, moment: float, args: dict[str, Any] | None = None) -> None:
        """Write the beginning (b) or the end (e) of a span on the track of request `number`."""
        identifier = {"local": f"{number:#x}"}  # within the process
        event = {"name": name, "cat": "request", "ph": phase, "id2": identifier, "tid": 0}
        self._write({**event, "ts": self._file.microseconds(moment), "args": args or {}})

    def _name(self, what: str, thread: int, name: str) -> None:
        self._write({"name": what, "ph": "M", "tid": thread, "ts": 0, "args": {"name": name}})

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write({**event, "pid": self._number})
