"""Open the executor that `--executor` names."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext

from intaglio.errors import UsageError
from intaglio.executors.executor import INLINE, OPTION, Executor
from intaglio.executors.process_pool import ProcessPool
from intaglio.executors.ray_cluster import RayCluster
from intaglio.targets import DEFAULT

MAX_PROCESSES = 256


def open_executor(name: str) -> Executor:
    """Return the executor `inline`, `processes`, `processes:N`, `ray` or `ray://HOST:PORT`, to be entered with `with`.

    `processes` has one process per processor. `ray` follows Ray's own rules: the cluster of RAY_ADDRESS, or the one
    that runs on this machine, else one is started here until the end. Raises `UsageError` for another name,
    `MissingExtraError` without Ray. Nothing is started before the executor is entered.
    """
    if name == INLINE.name:
        return INLINE
    kind, _, rest = name.partition(":")
    if kind == "processes":
        return ProcessPool(_number(name, rest) if ":" in name else None)
    if name == "ray" or (name.startswith("ray://") and len(name) > len("ray://")):
        return RayCluster(None if name == "ray" else name)
    raise UsageError(f"{OPTION} {name}: expected inline, processes, processes:N, ray or ray://HOST:PORT.")


def opened(executor: str | Executor) -> AbstractContextManager[Executor]:
    """Return a context with the executor of this name, or with an open one, which stays open."""
    return open_executor(executor) if isinstance(executor, str) else nullcontext(executor)


def check_target(executor: str | Executor, target: str, others: Collection[str] = ()) -> None:
    """Raise `UsageError` for a target that workers do not run: all but "ort-cpu" and `others`."""
    name = executor if isinstance(executor, str) else executor.name
    if name != INLINE.name and target not in (known := [DEFAULT, *others]):
        raise UsageError(
            f"{OPTION} {name}: workers run {' or '.join(known)}, got the target {target}. "
            "Leave one of the two options out."
        )


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_PROCESSES):
        raise UsageError(f"{OPTION} {name}: expected 1 to {MAX_PROCESSES} processes, such as processes:4.")
    return int(text)
