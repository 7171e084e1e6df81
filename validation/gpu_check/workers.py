"""The child processes of `gpu-check`, several at once: a kernel that faults, crashes or hangs costs one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from intaglio.display.progress import track
from intaglio.processes.children import Child, ChildEndedError
from intaglio.processes.threads import usable_threads
from intaglio.validation.gpu_check.results import Answer, Failure

MODULE = "intaglio.validation.gpu_check.worker"
SECONDS = 600.0  # for everything
QUESTION_SECONDS = 60.0  # for one answer: a reference, or compiling an operator's kernels and running one
FINISH_SECONDS = 20.0  # for the end of a child that has answered
MOST = 8  # children at once
PROCESSORS = 2  # of the machine, for each child
MEMORY = 3.3e9  # bytes that the largest case takes, and its reference

Item = TypeVar("Item")
Result = TypeVar("Result")


class NoAnswerError(Exception):
    """A child process that failed to answer, and why."""

    def __init__(self, failure: Failure):
        super().__init__(failure.message)
        self.failure = failure


class Worker:
    """A child process that answers until `deadline`."""

    def __init__(self, child: Child, deadline: float) -> None:
        self._child, self._deadline = child, deadline

    def ask(self, question: str, kind: Any, most: float | None = None) -> Any:
        """Ask a question, and return the answer as the type `kind`, within `most` seconds. Raises `NoAnswerError`."""
        seconds = min(most or QUESTION_SECONDS, self._deadline - time.monotonic())
        if seconds <= 0:
            raise NoAnswerError(Failure("timeout", "", f"not run: the {SECONDS:g} s for everything are over"))
        start = time.monotonic()
        try:
            answer = msgspec.json.decode(self._child.ask(question, seconds), type=Answer)
        except ChildEndedError as error:
            if time.monotonic() - start >= seconds:
                raise NoAnswerError(Failure("timeout", "", f"no answer within {seconds:.0f} s")) from error
            code = f"the process ended with exit code {error.code}: {error}"
            raise NoAnswerError(Failure("crashed", "", code)) from error
        if answer.failure is not None:
            raise NoAnswerError(answer.failure)
        return msgspec.json.decode(answer.value, type=kind)

    def finish(self) -> int:
        """Let the child end by itself; return its exit code, or that of the program that it runs under."""
        return self._child.finish(FINISH_SECONDS)


class Workers:
    """Child processes that answer until `deadline`, by `time.monotonic`. An interrupt ends all of them."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._running: set[Child] = set()
        self._interrupted = False

    @contextmanager
    def start(self, *arguments: str, under: Sequence[str] = ()) -> Iterator[Worker]:
        """Start a child, `under` a program if there is one; parameters as of `Child`.

        At the end of the block it ends, before the next one needs the GPU's memory.
        """
        child = Child(MODULE, *arguments, under=under)
        self._running.add(child)
        try:
            if self._interrupted:
                child.kill()
            yield Worker(child, self._deadline)
        finally:
            self._running.discard(child)
            child.end()

    def in_parallel(self, work: Callable[[Item], Result], items: Sequence[Item], most: int) -> list[Result]:
        """The results of `work`, which may start children, for each of `items`, in order; `most` at once."""
        with ThreadPoolExecutor(most) as pool:
            results = list[Future[Result]]()
            try:
                for item in items:  # an interrupt may come while the first of them run already
                    results.append(pool.submit(work, item))
                for _ in track(as_completed(results), "gpu-check", len(results)):
                    pass
            except BaseException:
                self._interrupted = True
                for result in results:
                    result.cancel()
                for child in [*self._running]:
                    child.kill()
                raise
        return [result.result() for result in results]


def children_at_once() -> int:
    """How many children the processors and the memory of this machine allow; at least one."""
    return max(1, int(min(MOST, usable_threads() // PROCESSORS, available_memory() / MEMORY)))


def available_memory() -> float:
    """Bytes that this process and its children may still take; infinite if the system does not tell."""
    found = [float("inf")]
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        found += [1024 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # a container's limit; "max" without one
        found.append(float(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8")))
    return min(found)
