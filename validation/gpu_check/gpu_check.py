"""The verb `gpu-check`: every CUDA kernel against the NumPy reference on the GPU of this machine, and its time.

Each operator is checked with its kernels as cubin, as PTX, and in ONNX Runtime, each in a process of its own: a kernel
that faults, crashes or hangs costs the rest of its own cases. This process never touches the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from intaglio.display.progress import track
from intaglio.errors import EngineError, MissingExtraError
from intaglio.files.atomic import atomic_write, check_output_file
from intaglio.plugins.cuda.compiler import images
from intaglio.plugins.cuda.launching.launches import operators
from intaglio.plugins.kernel_check.inputs import Sizes
from intaglio.processes.children import Child, ChildEndedError
from intaglio.validation.gpu_check.results import (
    TIMED,
    Answer,
    Failure,
    Form,
    GpuCheck,
    KernelCheck,
    Machine,
    Ran,
    Speed,
)

WORKER = "intaglio.validation.gpu_check.worker"
# Of the cases: all in each form of the driver; few where ONNX Runtime makes the same launches.
SIZES = Sizes()
FEW_SIZES = Sizes(rows=(0, 1, 17, 65), few_rows=(1, 17), depth=1024, channels=256, vocabulary=8_000)
SECONDS = 600.0  # for everything
QUESTION_SECONDS = 60.0  # for one answer: a reference, or compiling an operator's kernels and running one

Value = TypeVar("Value")


class _NoAnswerError(Exception):
    """A child process that failed to answer, and why."""

    def __init__(self, failure: Failure):
        super().__init__(failure.message)
        self.failure = failure


def gpu_check(output: str | Path | None = None, force: bool = False) -> GpuCheck:
    """Compare every CUDA kernel with the NumPy reference on the first GPU of this machine, and measure its time.

    Takes at most 10 minutes. Writes the result as JSON to the file `output`, which `force` replaces. Kernels that fail
    do not raise but return `passed=False`. Raises `EngineError` without a GPU, `MissingExtraError` without
    cuda-bindings, `UsageError` for an output that exists, `StorageError`.
    """
    if output is not None:
        check_output_file(Path(output), force, "--output")
    start = time.monotonic()
    found = _machine()
    parts = [(folder, form) for folder in operators() for form in forms(found.sm)]
    kernels = [check_part(folder, form, start + SECONDS) for folder, form in track(parts, "gpu-check", len(parts))]
    result = GpuCheck(all(each.passed for each in kernels), found, kernels, time.monotonic() - start)
    if output is not None:
        atomic_write(Path(output), msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


def forms(sm: int) -> tuple[Form, ...]:
    """The forms in which kernels are run on a GPU of `sm`."""
    return (*images(sm), "onnxruntime")


def check_part(folder: str, form: Form, deadline: float) -> KernelCheck:
    """Run all cases of an operator's kernels in a child process, and measure them; until `deadline` at the latest."""
    start = time.monotonic()
    found = KernelCheck(folder, form, False, 0, [], [], [], 0.0)
    case: str | None = ""
    sizes = FEW_SIZES if form == "onnxruntime" else SIZES
    child = Child(WORKER, folder, form, msgspec.json.encode(sizes).decode())
    ask = _questions(child, deadline)
    try:
        while (case := ask("case", str | None)) is not None:
            ran = ask("run", Ran)
            found.cases += 1
            if ran.kernel not in found.kernels:
                found.kernels.append(ran.kernel)
            if ran.failure is not None:
                found.failures.append(msgspec.structs.replace(ran.failure, case=case))
        if form == TIMED and not found.failures:
            while (speed := ask("time", Speed | None)) is not None:
                found.speeds.append(speed)
    except _NoAnswerError as error:
        found.failures.append(msgspec.structs.replace(error.failure, case=case or "measuring"))
    finally:
        child.end()  # before the next one needs the GPU's memory
    found.passed, found.seconds = not found.failures, time.monotonic() - start
    return found


def _machine() -> Machine:
    """The GPU, asked in a child process. Raises `EngineError`, `MissingExtraError`."""
    try:
        found: Machine = _questions(Child(WORKER, "machine"), time.monotonic() + QUESTION_SECONDS)("machine", Machine)
        return found
    except _NoAnswerError as error:
        missing = error.failure.kind == "missing library"
        raise (MissingExtraError if missing else EngineError)(f"gpu-check: {error.failure.message}") from error


def _questions(child: Child, deadline: float) -> Callable[[str, Any], Any]:
    """The function that asks the child a question and returns the answer as a type; raises `_NoAnswerError`."""

    def ask(question: str, kind: Any) -> Any:
        seconds = min(QUESTION_SECONDS, deadline - time.monotonic())
        if seconds <= 0:
            raise _NoAnswerError(Failure("timeout", "", f"not run: the {SECONDS:g} s for everything are over"))
        start = time.monotonic()
        try:
            answer = msgspec.json.decode(child.ask(question, seconds), type=Answer)
        except ChildEndedError as error:
            if time.monotonic() - start >= seconds:
                raise _NoAnswerError(Failure("timeout", "", f"no answer within {seconds:.0f} s")) from error
            code = f"the process ended with exit code {error.code}: {error}"
            raise _NoAnswerError(Failure("crashed", "", code)) from error
        if answer.failure is not None:
            raise _NoAnswerError(answer.failure)
        return msgspec.json.decode(answer.value, type=kind)

    return ask
