"""The child processes of `gpu-check`: how many, and their end."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from intaglio.interrupts import Interrupted
from intaglio.validation.gpu_check import workers
from intaglio.validation.gpu_check.workers import Workers, available_memory, children_at_once


@pytest.mark.parametrize(
    ("processors", "gigabytes", "children"),
    [(1, 64, 1), (2, 64, 1), (16, 64, 8), (12, 64, 6), (64, 256, 8), (16, 12, 3), (16, 2, 1), (16, float("inf"), 8)],
)
def test_children_fit_the_processors_and_the_memory(monkeypatch, processors, gigabytes, children) -> None:
    monkeypatch.setattr(workers, "usable_threads", lambda: processors)
    monkeypatch.setattr(workers, "available_memory", lambda: gigabytes * 1e9)
    assert children_at_once() == children


def test_available_memory_is_read() -> None:
    assert 1 << 20 < available_memory() < 1 << 50


def test_results_have_the_order_of_the_items() -> None:
    running, most = [0], [0]

    def work(number: int) -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.05 * (4 - number))
        running[0] -= 1
        return number

    assert Workers(time.monotonic() + 60).in_parallel(work, range(4), 2) == [0, 1, 2, 3]
    assert most == [2]


def test_interrupt_ends_every_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two children wait for an hour, two more would follow."""
    monkeypatch.setattr(workers, "MODULE", "timeit")  # runs a statement instead of answering
    group, started = Workers(time.monotonic() + 60), []

    def work(number: int) -> None:
        with group.start("-n", "1", "import time; time.sleep(3600)") as worker:
            started.append(number)
            if len(started) == 2:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            worker.ask("case", str)

    def stop(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGINT, stop)
    start = time.monotonic()
    try:
        with pytest.raises(Interrupted):
            group.in_parallel(work, range(4), 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - start < 20 and sorted(started) == [0, 1]
