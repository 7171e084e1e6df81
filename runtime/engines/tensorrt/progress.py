"""Report the progress of a TensorRT build, and stop it on an interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from intaglio.interrupts import SIGNALS, Interrupted


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and similar signals set; raise `Interrupted` when the block has ended.

    TensorRT calls back into Python from C++, where an exception is printed and lost; so an interrupt must not
    become an exception before the builder has returned. Outside of the main thread this does nothing.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    previous = {number: signal.signal(number, lambda number, frame: interrupted.set()) for number in SIGNALS}
    try:
        yield interrupted
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    if interrupted.is_set():
        raise Interrupted


class Phases:
    """The nested phases of a build, each with a number of steps, and the total progress."""

    def __init__(self) -> None:
        self._open: dict[str, list[int]] = {}  # phase -> [steps done, steps], outermost first
        self.done = 0.0  # total progress, 0 to 1; never decreases

    def start(self, phase: str, steps: int) -> None:
        """Enter a phase inside the open ones."""
        self._open[phase] = [0, max(steps, 1)]

    def step(self, phase: str, index: int) -> None:
        """Record that the step with this index is done."""
        if phase in self._open:
            self._open[phase][0] = index + 1
        part = 0.0
        for done, steps in reversed(self._open.values()):
            part = min(1.0, (done + part) / steps)
        self.done = max(self.done, part)

    def finish(self, phase: str) -> None:
        """Leave a phase."""
        self._open.pop(phase, None)


def monitor(trt: Any, show: Callable[[float], None], interrupted: threading.Event) -> Any:
    """An `IProgressMonitor` of the module `trt` that calls `show(part)` and stops the build once interrupted."""
    phases, lock = Phases(), threading.Lock()  # the builder calls from several threads

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with lock:
                phases.start(phase_name, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with lock:
                phases.step(phase_name, step)
                show(phases.done)
            return not interrupted.is_set()

        def phase_finish(self, phase_name: str) -> None:
            with lock:
                phases.finish(phase_name)

    return Monitor()
