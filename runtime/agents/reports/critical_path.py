"""The critical path of a run: the requests and calls that its time consists of; nothing else would shorten it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from intaglio.runtime.agents.reports.run_record import RequestSpan, RunRecord, TaskSpan

SLACK = 1e-9  # seconds; times of the same moment differ by less


class Step(NamedTuple):
    """A part of the path: a request, or a call of a tool, while the others waited for it."""

    kind: Literal["request", "task"]
    number: int
    began: float  # seconds since the beginning of the run
    ended: float


def critical_path(record: RunRecord) -> list[Step]:
    """Return the critical path of a run, in the order of time.

    It is followed from the end back: the last request or call to end, then what that one waited for, and so on. A call
    waits for the request whose answer has it, until it is read, and for the calls that it needs; a request waits for
    all requests and calls that ended before it. What is between two steps is the time to start the second one, or the
    wait for a free place.
    """
    steps: list[Step] = []
    span: RequestSpan | TaskSpan | None = _last(record, record.seconds)
    until = record.seconds if span is None else record.end_of(span)
    while span is not None:
        began = span.began if span.began is not None else record.end_of(span)
        kind: Literal["request", "task"] = "request" if isinstance(span, RequestSpan) else "task"
        steps.append(Step(kind, span.number, began, until))
        span, until = _waited_for(record, span, began)
    return steps[::-1]


def _waited_for(
    record: RunRecord, span: RequestSpan | TaskSpan, began: float
) -> tuple[RequestSpan | TaskSpan | None, float]:
    """Return what `span` waited for last, and until when."""
    if isinstance(span, RequestSpan):
        found = _last(record, began, before=span)
        return found, began if found is None else record.end_of(found)
    inputs = [record.tasks[number] for number in span.needs if number in record.tasks]
    last = max(inputs, key=record.end_of, default=None)
    if last is not None and record.end_of(last) > span.planned:
        return last, record.end_of(last)
    request = record.requests.get(span.request) if span.request is not None else None
    return request, span.planned if request is None else min(span.planned, record.end_of(request))


def _last(record: RunRecord, until: float, before: RequestSpan | None = None) -> RequestSpan | TaskSpan | None:
    """Return what ended last, at `until` or before it; of requests, only those that were sent before `before`."""
    return max(
        (span for span in _spans(record, before) if record.end_of(span) <= until + SLACK),
        key=record.end_of,
        default=None,
    )


def _spans(record: RunRecord, before: RequestSpan | None) -> Iterator[RequestSpan | TaskSpan]:
    for request in record.requests.values():
        if before is None or request.number < before.number:
            yield request
    for task in record.tasks.values():
        if task.began is not None and (before is None or (task.request or 0) < before.number):
            yield task
