"""The trace of a run: its events as JSON lines, for `timeline`, `latency_of`, and other programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from intaglio.errors import UsageError, one_line
from intaglio.files.input_files import open_file, stream_lines
from intaglio.runtime.agents.run.events import AnyEvent

_ENCODER = msgspec.json.Encoder(enc_hook=str)
_DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def trace_line(event: AnyEvent) -> bytes:
    """Return an event as one line of JSON: {"type": "TaskStarted", "seconds": ...}.

    Values of arguments that JSON does not have become their `str`, halves of surrogate pairs "?".
    """
    try:
        return _ENCODER.encode(event) + b"\n"
    except (TypeError, ValueError, OverflowError):  # odd keys, halves of surrogate pairs, numbers of more than 64 bits
        fields: dict[str, Any] = {"type": type(event).__name__, **msgspec.structs.asdict(event)}
        line = json.dumps(fields, ensure_ascii=False, default=str, skipkeys=True)
        return line.encode("utf-8", "replace") + b"\n"


def trace_bytes(events: Iterable[AnyEvent]) -> bytes:
    """Return the trace of a run, to be written to a file."""
    return b"".join(map(trace_line, events))


def read_trace(path: str | Path) -> Iterator[AnyEvent]:
    """Yield the events of a trace. Raises `UsageError` with the number of a line that is no event."""
    try:
        with open_file(Path(path)) as lines:
            for number, line in enumerate(stream_lines(lines, f"trace {path}"), 1):
                try:
                    yield _DECODER.decode(line)
                except (msgspec.MsgspecError, RecursionError) as error:
                    reason = one_line(error, 200)
                    fix = "Give a file that `intaglio agent --trace` wrote."
                    raise UsageError(f"trace {path}: line {number} is no event ({reason}). {fix}") from error
    except OSError as error:
        raise UsageError(f"trace {path}: {error.strerror}. Give the path of a readable file.") from error
