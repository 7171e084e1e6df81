"""Tasks on the nodes of a Ray cluster, which schedules them, moves their data and retries them where a worker dies."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from intaglio import interrupts
from intaglio.errors import UsageError, WorkerError, one_line
from intaglio.executors.executor import AHEAD, OPTION, RETRIES, Executor, InOrder
from intaglio.executors.parcel import Keep
from intaglio.executors.worker import environment, run_task, unwrap
from intaglio.extras import load

Result = TypeVar("Result")

CONNECT_SECONDS = 10.0


class RayCluster(Executor):
    """A cluster whose nodes have this version of intaglio. A task takes one processor, and uses one thread.

    Ray pickles tasks and results between this process and the nodes, all of which have to be trusted.
    """

    def __init__(self, address: str | None = None):
        """`address`: as for `ray.init`; None: RAY_ADDRESS, or the cluster of this machine, else a new one."""
        self.name = address or "ray"
        self._address = address
        self._ray = load("ray")

    def __enter__(self) -> Self:
        ray = self._ray
        self._connected = not ray.is_initialized()
        if self._connected:
            _check_reachable(self.name, self._address or os.environ.get("RAY_ADDRESS", ""))
            handlers = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
            try:
                ray.init(self._address, log_to_driver=False, logging_level="ERROR")
            except Exception as error:  # of several libraries
                ray.shutdown()
                raise UsageError(
                    f"{OPTION} {self.name}: cannot connect: {one_line(error, 200)}. "
                    "Check RAY_ADDRESS, that `ray status` answers, and RAY_AUTH_MODE=token if the cluster has a token."
                ) from error
            finally:
                for number, handler in handlers.items():  # Ray sets its own
                    signal.signal(number, handler)
        self._call = ray.remote(num_cpus=1, max_retries=RETRIES)(run_task)
        return self

    def __exit__(self, *error: object) -> None:
        """Disconnect, which ends the tasks."""
        if self._connected:
            self._ray.shutdown()

    def share(self, value: Any) -> Any:
        """See `Executor`: an object of Ray's store."""
        return self._ray.put(value)

    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        small: bool = False,
        keep: Keep | None = None,
    ) -> Iterator[Result]:
        """See `Executor`. What is kept becomes an object of this node: another one, once lost, would take it along."""
        call = self._call.options(name=function.__name__)

        def start(task: tuple[Any, ...]) -> Any:
            arguments = (each.reference if isinstance(each, _StoredObject) else each for each in task)
            return call.remote(environment(), 1, function, *arguments)

        def finish(reference: Any) -> Any:
            result = self._finish(reference)
            if keep is None:
                return result
            kept = [_StoredObject(self._ray.put(each), self._ray.get) for each in result[: keep.count]]
            return *kept, *result[keep.count :]

        processors = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        return InOrder(tasks, start, finish, AHEAD * processors)

    def _finish(self, reference: Any) -> Any:
        try:
            result = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise WorkerError(
                f"{OPTION} {self.name}: a task has no result after {RETRIES} retries: {one_line(error, 300)}. "
                "Check that its nodes run, have enough memory, and have intaglio installed."
            ) from error
        return unwrap(result)


@dataclass(frozen=True)
class _StoredObject:
    """See `Stored`."""

    reference: Any
    get: Callable[[Any], Any]

    def open(self) -> Any:
        """See `Stored`."""
        return self.get(self.reference)


def _check_reachable(name: str, address: str) -> None:
    """Raise `UsageError` if nothing listens at HOST:PORT, which Ray would wait minutes for."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not (colon and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"{OPTION} {name}: nothing answers at {address} ({error}). Start the cluster with `ray start --head`, and "
            "check RAY_ADDRESS."
        ) from error
