"""Tasks in processes of this machine. Arguments and results are parcels between this program and its own children."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from intaglio.display.verbosity import Verbosity, set_verbosity
from intaglio.errors import WorkerError
from intaglio.executors.executor import AHEAD, RETRIES, Executor, InOrder
from intaglio.executors.parcel import Argument, Keep, Parcel, StoredValue
from intaglio.executors.worker import Failure, environment, run_task, unwrap
from intaglio.processes.child_process import end_with_ancestor
from intaglio.processes.temporary import scratch_directory
from intaglio.processes.threads import usable_threads

Result = TypeVar("Result")


@dataclass(eq=False)
class _Task:
    name: str
    call: tuple[Parcel, Path, Keep | None]  # the arguments of `_run`
    needed: list[StoredValue]  # whose files it reads, also where the caller has no more use for them
    future: Future[Parcel | Failure]
    deaths: int = 0  # of workers while it was unfinished


class ProcessPool(Executor):
    """`processes` processes, by default one per processor, which divide this process's threads among themselves."""

    def __init__(self, processes: int | None = None):
        self._processes = processes or usable_threads()
        self._threads = max(1, usable_threads() // self._processes)
        self._unfinished: dict[_Task, None] = {}
        self.name = f"processes:{self._processes}"

    def __enter__(self) -> Self:
        self._open = ExitStack()
        self._folder = self._open.enter_context(scratch_directory("shared"))
        self._pool = self._new_pool()
        return self

    def __exit__(self, *error: object) -> None:
        """Kill the processes."""
        self._unfinished.clear()
        processes = list((self._pool._processes or {}).values())  # `kill_workers` is of Python 3.14
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        self._open.close()

    def _new_pool(self) -> ProcessPoolExecutor:
        # Threads and locks of libraries do not survive a fork, so processes are spawned.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self._processes, context, initializer=_start, initargs=(os.getpid(),))
        for _ in range(self._processes):  # each starts a process, which has imported most when tasks come
            pool.submit(environment)
        return pool

    def share(self, value: Any) -> Any:
        """See `Executor`: a file, removed with the last reference to the returned object."""
        return StoredValue.of(value, self._folder, reused=True)

    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        small: bool = False,
        keep: Keep | None = None,
    ) -> Iterator[Result]:
        """See `Executor`. Processes keep what is kept, and read it, without this one."""

        def start(task: tuple[Any, ...]) -> _Task:
            arguments = Parcel.of((environment(), self._threads, function, *task), self._folder)
            call = arguments, self._folder, keep
            needed = [each for each in task if isinstance(each, StoredValue)]
            started = _Task(function.__name__, call, needed, self._submit(call))
            self._unfinished[started] = None
            return started

        return InOrder(tasks, start, self._finish, AHEAD * self._processes)

    def _submit(self, call: tuple[Parcel, Path, Keep | None]) -> Future[Parcel | Failure]:
        try:
            return self._pool.submit(_run, *call)
        except BrokenProcessPool:  # since the last result
            self._restart()
            return self._pool.submit(_run, *call)

    def _finish(self, task: _Task) -> Any:
        while True:
            try:
                result = task.future.result()
            except BrokenProcessPool as error:
                if task.deaths >= RETRIES:
                    raise WorkerError(
                        f"{self.name}: the process of a task ({task.name}) died {task.deaths + 1} times, "
                        "expected a result. It may lack memory: use fewer processes."
                    ) from error
                self._restart()
            else:
                del self._unfinished[task]
                arguments, _, keep = task.call
                arguments.remove()
                found = unwrap(result).take()
                return found if keep is None else keep.joined(*found)

    def _restart(self) -> None:
        """Start new processes, and all tasks again that have no result: one dead process ends the whole pool."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._new_pool()
        for task in self._unfinished:
            if not task.future.done() or task.future.cancelled() or task.future.exception() is not None:
                task.deaths += 1
                task.future = self._pool.submit(_run, *task.call)


@lru_cache(maxsize=1)
def _opened(parcel: Parcel) -> Any:  # no two have the same path
    return parcel.open()


def _value(argument: Any) -> Any:
    if not isinstance(argument, Argument):
        return argument
    return _opened(argument.parcel) if argument.reused else argument.parcel.open()


def _start(parent: int) -> None:
    """Prepare a process: it ends with the process `parent`, which alone reacts to Ctrl-C and shows progress."""
    set_verbosity(Verbosity.QUIET)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_ancestor(parent)


def _run(arguments: Parcel, folder: Path, keep: Keep | None) -> Parcel | Failure:
    expected, threads, function, *values = map(_value, arguments.open())
    found: Parcel | Failure = run_task(expected, threads, _packed, folder, keep, function, *values)
    return found


def _packed(folder: Path, keep: Keep | None, function: Callable[..., Any], *values: Any) -> Parcel:
    result = function(*values)
    return Parcel.of(result if keep is None else keep.split(result), folder)
