"""The worker's side of executors: run one task, in an environment that computes the same numbers as the driver's."""

from __future__ import annotations

import os
import pickle
import platform
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from intaglio.errors import IntaglioError, WorkerError
from intaglio.processes.threads import bounded
from intaglio.version import __version__


@dataclass(frozen=True)
class Environment:
    """What the bits of a result depend on besides the task."""

    intaglio: str
    numpy: str
    onnxruntime: str
    blas: str  # the processor that NumPy's BLAS selected its kernels for, such as "Haswell"
    kernels: str  # the instruction set requested for our kernels

    def check(self) -> None:
        """Raise `WorkerError` if this process differs."""
        here = environment()
        for name, expected in asdict(self).items():
            if (got := getattr(here, name)) != expected:
                raise WorkerError(
                    f"the worker on {platform.node()} has {name} {got or 'none'}, this process {expected or 'none'}: "
                    f"their results would differ. {FIXES.get(name, 'Install the same versions on every node.')}"
                )


FIXES = {
    "blas": "Use nodes with the same processors, or set OPENBLAS_CORETYPE to the same value on all of them.",
    "kernels": "Set INTAGLIO_ISA to the same value on every node.",
}


@cache
def environment() -> Environment:
    """The environment of this process."""
    from importlib import metadata

    import numpy as np
    from threadpoolctl import threadpool_info

    try:
        runtime = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:  # another build of it has another name
        runtime = ""
    blas = sorted({str(each.get("architecture", "")) for each in threadpool_info() if "numpy" in each["filepath"]})
    return Environment(__version__, np.__version__, runtime, " ".join(blas), os.environ.get("INTAGLIO_ISA", ""))


@dataclass(frozen=True)
class Failure:
    """An exception of a task, and its traceback in the worker as text."""

    error: Exception
    trace: str


def run_task(expected: Environment, threads: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run `function(*arguments)` with `threads` threads; return its result, or the `Failure`."""
    try:
        expected.check()
        with bounded(threads):
            return function(*arguments)
    except Exception as error:
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
        except Exception:  # of a library, with arguments that cannot be pickled
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return Failure(error, trace)


def unwrap(result: Any) -> Any:
    """Return the result of `run_task`, or raise the exception of a failure."""
    if not isinstance(result, Failure):
        return result
    if not isinstance(result.error, IntaglioError):
        result.error.add_note(f"in a worker:\n{result.trace}")
    raise result.error
