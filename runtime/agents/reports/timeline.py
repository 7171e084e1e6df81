"""A run of an agent as one self-contained HTML page: a lane for each request and each call, over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Literal, NamedTuple

from intaglio.display.charts import bar, line, spacing, svg, text
from intaglio.display.markup import Markup, fill, join
from intaglio.runtime.agents.reports.run_record import RequestSpan, RunRecord, TaskSpan, record_of
from intaglio.runtime.agents.run.events import AnyEvent

LEFT, WIDTH, LANE = 300, 720, 26  # of the names, of the time, and of a lane, in the picture's units
NAME_CHARACTERS = 40
HOVER_CHARACTERS, DETAIL_CHARACTERS = 200, 4000  # of a result or a text
TICKS = 8  # at most

LANE_OF = """<g><title>$details</title>
$bars
</g>"""
ROW = """<tr><th>$name</th><td>$value</td></tr>"""
DETAIL = """<details id="$id"><summary>$name</summary><pre>$text</pre></details>"""
SLACK = 1e-9  # seconds; times of the same moment differ by less


def timeline(events: Iterable[AnyEvent], question: str | None = None) -> str:
    """Return the page for a run, from its events, or from those that `read_trace` reads.

    Bars are requests and calls, pale ones the waiting of a call for its inputs or for a place; the critical path is
    marked. What models and tools wrote is text in it, never markup.
    """
    record = record_of(events)
    path = critical_path(record)
    template = resources.files("intaglio.runtime.agents.reports").joinpath("timeline.html").read_text(encoding="utf-8")
    state = "unfinished" if record.answer is None else "answered" if record.complete else "no answer"
    return fill(
        template,
        title=question or "Run of an agent",
        state=state,
        answer=_text(record.answer or ""),
        picture=_picture(record, path),
        totals=_totals(record, path),
        details=join([_detail(span) for span in _in_order(record)]),
    )


def _in_order(record: RunRecord) -> list[RequestSpan | TaskSpan]:
    """Return the lanes: requests, and after each the calls that its answer has."""
    lanes: list[RequestSpan | TaskSpan] = [task for task in record.tasks.values() if task.request is None]
    for request in record.requests.values():
        lanes += [request, *(task for task in record.tasks.values() if task.request == request.number)]
    return lanes


def _picture(record: RunRecord, path: list[Step]) -> Markup:
    lanes = _in_order(record)
    bottom = 22 + LANE * len(lanes)
    scale = WIDTH / max(record.seconds, 1e-6)
    apart = spacing(max(record.seconds, 1e-6), TICKS)
    parts = []
    for number in range(int(record.seconds / apart) + 1):
        x = LEFT + number * apart * scale
        parts += [line("grid", x, 18, x, bottom), text(x, 12, f"{number * apart:g} s", anchor="middle")]
    parts += [_lane(record, span, 22 + LANE * place, scale, path) for place, span in enumerate(lanes)]
    return svg("timeline of the run", LEFT + WIDTH + 30, bottom + 6, parts)


def _lane(record: RunRecord, span: RequestSpan | TaskSpan, top: int, scale: float, path: list[Step]) -> Markup:
    end = record.end_of(span)
    indent = 18 if isinstance(span, TaskSpan) else 6
    bars = [bar("lane", 0, top, LEFT + WIDTH + 30, LANE), text(indent, top + 17, _name(span), "name")]

    def draw(kind: str, began: float, ended: float, inset: int, height: int) -> None:
        bars.append(bar(kind, LEFT + began * scale, top + inset, max((ended - began) * scale, 1.0), height))

    if isinstance(span, TaskSpan):
        draw("wait", span.planned, end if span.began is None else span.began, 9, 8)
        if span.began is not None:
            draw(f"task {span.status}", span.began, end, 5, 16)
    else:
        draw(f"request {span.role}", span.began, end, 5, 16)
    kind = "task" if isinstance(span, TaskSpan) else "request"
    for step in path:
        if (step.kind, step.number) == (kind, span.number):
            draw("critical", step.began, step.ended, 22, 3)
    return fill(
        LANE_OF,
        details=join([_text(fact) for fact in [*_facts(span), _cut(_brought(span), HOVER_CHARACTERS)]]),
        bars=join(bars),
    )


def _name(span: RequestSpan | TaskSpan) -> str:
    name = span.text if isinstance(span, TaskSpan) else f"request {span.number}: {span.role}"
    return name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1]}…"


def _facts(span: RequestSpan | TaskSpan) -> list[str]:
    """Return the details of a lane, a line each."""
    if isinstance(span, RequestSpan):
        facts = [f"request {span.number}: {span.role}", _times(span.began, span.ended)]
        facts += [f"first text at {span.first:.3f} s"] if span.first is not None else []
        read, written = f"{span.prompt_tokens} tokens read ({span.cached_tokens} cached)", span.completion_tokens
        facts.append(f"{read}, {written} written")
        return [*facts, f"error: {span.error}"] if span.error else facts
    facts = [span.text, f"planned at {span.planned:.3f} s; {_times(span.began, span.ended)}; {span.status}"]
    facts += [f"needs {', '.join(f'${number}' for number in span.needs)}"] if span.needs else []
    facts += [f"{span.attempts} attempts"] if span.attempts > 1 else []
    return facts + ([f"Thought: {span.thought}"] if span.thought else [])


def _times(began: float | None, ended: float | None) -> str:
    if began is None:
        return "never started"
    if ended is None:
        return f"from {began:.3f} s, never ended"
    return f"{began:.3f} s to {ended:.3f} s: {ended - began:.3f} s"


def _brought(span: RequestSpan | TaskSpan) -> str:
    return span.result if isinstance(span, TaskSpan) else span.text


def _detail(span: RequestSpan | TaskSpan) -> Markup:
    name, *facts = _facts(span)
    kind = "task" if isinstance(span, TaskSpan) else "request"
    text = _text("\n".join([*facts, "", _cut(_brought(span), DETAIL_CHARACTERS)]))
    return fill(DETAIL, id=f"{kind}-{span.number}", name=name, text=text)


def _totals(record: RunRecord, path: list[Step]) -> Markup:
    requests, tasks = record.requests.values(), record.tasks.values()
    ended = [task.status for task in tasks]
    waited = sum((record.end_of(task) if task.began is None else task.began) - task.planned for task in tasks)
    on_path = {kind: sum(step.ended - step.began for step in path if step.kind == kind) for kind in ("request", "task")}
    rows = [
        ("seconds", f"{record.seconds:.3f}"),
        ("requests", f"{len(requests)}, {sum(record.end_of(each) - each.began for each in requests):.3f} s"),
        (
            "tokens",
            f"{sum(each.prompt_tokens for each in requests)} read, of which "
            f"{sum(each.cached_tokens for each in requests)} were cached; "
            f"{sum(each.completion_tokens for each in requests)} written",
        ),
        ("calls of tools", ", ".join(f"{ended.count(each)} {each}" for each in dict.fromkeys(ended)) or "none"),
        (
            "seconds in tools",
            f"{sum(record.end_of(each) - each.began for each in tasks if each.began is not None):.3f}",
        ),
        ("seconds that calls waited", f"{waited:.3f}"),
        ("critical path", f"{on_path['request']:.3f} s in requests, {on_path['task']:.3f} s in tools"),
        ("further plans", str(len(record.replans))),
        ("invalid plans", str(len(record.plan_errors))),
    ]
    return join([fill(ROW, name=name, value=value) for name, value in rows])


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} characters more)"


def _text(text: str) -> Markup:
    """Return text with its line feeds, which `fill` would replace, escaped."""
    return join(fill("$line", line=line.replace("\t", "    ")) for line in text.splitlines())


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
