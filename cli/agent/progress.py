"""The progress of an agent's run on standard error: a line for each request and call; on a terminal, what runs now."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import click

from intaglio.cli.printing.printable import printable
from intaglio.runtime.agents.reports.run_record import RequestSpan, RunRecord, TaskSpan
from intaglio.runtime.agents.run.events import AnyEvent, ModelEnded, PlanFailed, Replanned, TaskEnded

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

CALL_CHARACTERS, RESULT_CHARACTERS = 100, 160
LIVE_LINES = 12  # of what runs now, on a terminal
PER_SECOND = 8


class AgentProgress:
    """Shows a run as its events come; an observer of it, and a context manager around it."""

    def __init__(self) -> None:
        self.record = RunRecord()
        self._began = 0.0  # of the run, on the clock `time.perf_counter`
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(stderr=True),
                get_renderable=self._running,
                refresh_per_second=PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: AnyEvent) -> None:
        """Add an event, and print the line of the request or call that it ends."""
        self._began = time.perf_counter() - event.seconds
        self.record.add(event)
        match event:
            case ModelEnded() if event.request in self.record.requests:
                self._print(request_line(self.record.requests[event.request]))
            case TaskEnded() if event.number in self.record.tasks:
                self._print(task_line(self.record.tasks[event.number]))
            case PlanFailed():
                self._print(_line(event.seconds, "invalid", _shown(event.reason, RESULT_CHARACTERS)))
            case Replanned():
                self._print(_line(event.seconds, "replan", _shown(event.reason, RESULT_CHARACTERS)))

    def _print(self, line: str) -> None:
        if self._live is None:
            click.echo(line, err=True)
            return
        from rich.text import Text

        self._live.console.print(Text(line), overflow="ellipsis", no_wrap=True)

    def _running(self) -> Text:
        """What runs and waits now; called by the thread that refreshes the terminal."""
        from rich.text import Text

        lines = list(self._running_lines(time.perf_counter() - self._began))
        if len(lines) > LIVE_LINES:
            lines[LIVE_LINES:] = [f"          … and {len(lines) - LIVE_LINES} more"]
        return Text("\n".join(lines), style="dim", overflow="ellipsis", no_wrap=True)

    def _running_lines(self, now: float) -> Iterator[str]:
        for request in [*self.record.requests.values()]:
            if request.ended is None:
                yield _line(now - request.began, request.role, "writes" if request.text else "reads")
        tasks = [each for each in [*self.record.tasks.values()] if each.ended is None]
        for task in sorted(tasks, key=lambda each: each.began is None):
            call = _shown(task.text, CALL_CHARACTERS)
            if task.began is not None:
                yield _line(now - task.began, "runs", call)
            else:
                yield _line(now - task.planned, "waits", call)


def request_line(request: RequestSpan) -> str:
    """Return the line of a request that has ended."""
    text = (
        f"{request.prompt_tokens:,} tokens read ({request.cached_tokens:,} cached), "
        f"{request.completion_tokens:,} written"
    )
    if request.error is not None:
        text = f"{text}; {_shown(request.error, RESULT_CHARACTERS)}"
    return _line((request.ended or request.began) - request.began, request.role, text)


def task_line(task: TaskSpan) -> str:
    """Return the line of a call that has ended."""
    ended = task.planned if task.ended is None else task.ended
    seconds = 0.0 if task.began is None else ended - task.began
    return _line(
        seconds, task.status, f"{_shown(task.text, CALL_CHARACTERS)} → {_shown(task.result, RESULT_CHARACTERS)}"
    )


def _line(seconds: float, state: str, text: str) -> str:
    return f"{seconds:7.2f} s  {state:<8} {text}"


def _shown(text: str, most: int) -> str:
    """Return the beginning of a text on one line, without characters that a terminal would act on."""
    line = printable(" ".join(text[: 4 * most].split()))
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 1]}…"
