"""Tasks in processes of this machine. Arguments and results are pickled between this program and its own children."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from intaglio.display.verbosity import Verbosity, set_verbosity
from intaglio.errors import WorkerError, storage_errors
from intaglio.executors.executor import AHEAD, RETRIES, Executor, InOrder
from intaglio.executors.worker import environment, run_task, unwrap
from intaglio.processes.child_process import end_with_ancestor
from intaglio.processes.temporary import scratch_directory
from intaglio.processes.threads import usable_threads

Result = TypeVar("Result")


@dataclass(eq=False)
class _Task:
    call: tuple[Any, ...]  # arguments of `run_task` after the environment
    future: Future[Any]
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
        return ProcessPoolExecutor(self._processes, context, initializer=_start, initargs=(os.getpid(),))

    def share(self, value: Any) -> Any:
        """See `Executor`: a file, removed with the last reference to the returned object."""
        return _SharedFile(value, self._folder)

    def map(
        self, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], small: bool = False
    ) -> Iterator[Result]:
        """See `Executor`."""

        def start(task: tuple[Any, ...]) -> _Task:
            call = (self._threads, function, *task)
            started = _Task(call, self._submit(call))
            self._unfinished[started] = None
            return started

        return InOrder(tasks, start, self._finish, AHEAD * self._processes)

    def _submit(self, call: tuple[Any, ...]) -> Future[Any]:
        try:
            return self._pool.submit(_run, environment(), *call)
        except BrokenProcessPool:  # since the last result
            self._restart()
            return self._pool.submit(_run, environment(), *call)

    def _finish(self, task: _Task) -> Any:
        while True:
            try:
                result = task.future.result()
            except BrokenProcessPool as error:
                if task.deaths >= RETRIES:
                    raise WorkerError(
                        f"{self.name}: the process of a task ({task.call[1].__name__}) died {task.deaths + 1} times, "
                        "expected a result. It may lack memory: use fewer processes."
                    ) from error
                self._restart()
            else:
                del self._unfinished[task]
                return unwrap(result)

    def _restart(self) -> None:
        """Start new processes, and all tasks again that have no result: one dead process ends the whole pool."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._new_pool()
        for task in self._unfinished:
            if not task.future.done() or task.future.cancelled() or task.future.exception() is not None:
                task.deaths += 1
                task.future = self._pool.submit(_run, environment(), *task.call)


class _SharedFile:
    """A pickled value in a file of a private folder. It is pickled itself as the file's path."""

    def __init__(self, value: Any, folder: Path):
        self._path = folder / uuid.uuid4().hex  # never used again: processes keep what they have read
        with storage_errors(self._path), self._path.open("wb") as file:
            pickle.dump(value, file, protocol=5)
        weakref.finalize(self, self._path.unlink, missing_ok=True)

    def __reduce__(self) -> tuple[Callable[[str], _Shared], tuple[str]]:
        return _Shared, (str(self._path),)


@dataclass(frozen=True)
class _Shared:
    path: str


@lru_cache(maxsize=1)
def _load(path: str) -> Any:
    with Path(path).open("rb") as file:
        return pickle.load(file)  # noqa: S301  # written by this program, in a folder that only this user may enter


def _start(parent: int) -> None:
    """Prepare a process: it ends with the process `parent`, which alone reacts to Ctrl-C and shows progress."""
    set_verbosity(Verbosity.QUIET)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_ancestor(parent)


def _run(*call: Any) -> Any:
    return run_task(*(_load(each.path) if isinstance(each, _Shared) else each for each in call))
