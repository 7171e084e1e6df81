"""Open the executor that `--executor` names."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from intaglio.errors import UsageError
from intaglio.executors.executor import INLINE, OPTION, Executor
from intaglio.executors.process_pool import ProcessPool
from intaglio.executors.ray_cluster import RayCluster

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


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_PROCESSES):
        raise UsageError(f"{OPTION} {name}: expected 1 to {MAX_PROCESSES} processes, such as processes:4.")
    return int(text)
