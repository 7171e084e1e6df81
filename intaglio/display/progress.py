"""Progress bars for long work: on a terminal's standard error only, so that pipes and logs stay clean.

With --verbose, the time that each took is a line on standard error, in pipes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from intaglio import interrupts
from intaglio.display.verbosity import shows_progress, timed

Item = TypeVar("Item")


@contextmanager
def step(description: str) -> Iterator[None]:
    """Show a spinner with the elapsed time while the block runs; an interrupt waits for its end."""
    with interrupts.deferred(), spinner(description):
        yield


@contextmanager
def spinner(description: str) -> Iterator[None]:
    """Show a spinner with the elapsed time while the block runs, which an interrupt ends at once."""
    if not shows_progress():
        with timed(description):
            yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    with timed(description), bar as progress:
        progress.add_task(description, total=None)
        yield


@contextmanager
def fraction(description: str) -> Iterator[Callable[[float], None]]:
    """Show a bar while the block runs, and yield the function that sets its fraction (0 to 1)."""
    if not shows_progress():
        with timed(description):
            yield lambda part: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with timed(description), Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=1.0)
        yield lambda part: progress.update(task, completed=part)


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield from `items` while a bar shows how many are done."""
    if shows_progress():
        from rich.console import Console
        from rich.progress import track as bar

        items = bar(items, description, total=total, console=Console(stderr=True), transient=True)
    with timed(description):
        yield from items
