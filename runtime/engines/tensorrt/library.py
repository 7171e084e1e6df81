"""Functions shared by building and running for the two TensorRT libraries, which have the same API."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from intaglio.plugins.trt import plugin_errors

STDOUT, STDERR = 1, 2  # file descriptors

# NumPy dtype name -> member of `DataType`.
DTYPES = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BF16",
    "int64": "INT64",
    "int32": "INT32",
    "int8": "INT8",
    "uint8": "UINT8",
    "bool": "BOOL",
}


def library_name(trt: Any) -> str:
    """A library and its version, as recorded in bundles: "tensorrt_rtx 1.7.1.116"."""
    return f"{trt.__name__} {trt.__version__}"


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python from collecting garbage while the library works.

    It holds a lock while it calls our logger. If Python collected an older builder then, whose release needs the same
    lock, the thread would wait for itself for ever.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


MESSAGES = deque[str](maxlen=1000)  # the last ones of this process, of every severity, for reports of failures
LONGEST_MESSAGE = 1000  # characters that are kept of it


class Log(Protocol):
    """A logger that prints nothing and keeps error messages; all messages of all loggers are in `MESSAGES`."""

    errors: list[str]


def logger(trt: Any) -> Log:
    """An `ILogger` of the module `trt`; it must outlive the objects created with it."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            MESSAGES.append(f"{severity.name}: {message[:LONGEST_MESSAGE]}")
            if severity <= trt.ILogger.ERROR:  # INTERNAL_ERROR, then ERROR, are the lowest members
                self.errors.append(message)

    made: Log = Logger()
    return made


def reasons(log: Log) -> str:
    """Why the library failed, on one line: the errors of our plugins, or the last one that it logged."""
    errors = plugin_errors() or log.errors[-1:]
    return "; ".join(" ".join(each.split()) for each in errors) or "no reason given"


@contextmanager
def silent(*descriptors: int) -> Iterator[None]:
    """Suppress what the library's C++ code prints directly, bypassing the logger."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {descriptor: os.dup(descriptor) for descriptor in descriptors}
    try:
        with tempfile.TemporaryFile() as file:
            for descriptor in descriptors:
                os.dup2(file.fileno(), descriptor)
            yield
    finally:
        for descriptor, original in kept.items():
            os.dup2(original, descriptor)
            os.close(original)
