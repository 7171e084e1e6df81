"""The child process of `gpu-check`, as a fault of a kernel leaves a process without its GPU, or ends it.

    python -m intaglio.validation.gpu_check.worker machine,
    python -m intaglio.validation.gpu_check.worker bundle PATH TARGET SM        or
    python -m intaglio.validation.gpu_check.worker FOLDER FORM SIZES           (`Form`; `Sizes` as JSON)

reads questions on standard input and answers each with an `Answer` on one line of JSON, whose value is:

    machine   `Machine`
    case      the next case, made and computed by the reference, as text; null after the last one
    run       `Ran`: the kernel of this case
    time      the next `Speed`, in the order of the kernels' first cases; null after the last one
    build, compare, throughput    what `BundleRun` returns
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import msgspec
from threadpoolctl import threadpool_limits

from intaglio.errors import IntaglioError, MissingExtraError, one_line
from intaglio.plugins.cuda import cublas, launcher
from intaglio.plugins.cuda.compiler import Image
from intaglio.plugins.cuda.driver import DriverError
from intaglio.plugins.kernel_check.bounds import difference
from intaglio.plugins.kernel_check.case import Array, Case
from intaglio.plugins.kernel_check.cases import cases
from intaglio.plugins.kernel_check.inputs import Sizes
from intaglio.runtime.engines.tensorrt.library import MESSAGES
from intaglio.validation.gpu_check import onnxruntime_kernels, tensorrt_kernels
from intaglio.validation.gpu_check.bundles import BundleRun
from intaglio.validation.gpu_check.machine import machine
from intaglio.validation.gpu_check.results import TIMED, Answer, Failure, Form, Kind, Ran, Speed

OFFSET = 4  # bytes, at least; arrays that are parts of others begin at a multiple of their elements, not of 16 bytes
# Operator -> the dtype in which cuBLAS multiplies the same numbers, weights without compression.
PEERS = {"IntLinear": "int8", "LutMatMul": "float16", "GroupMatMul": "float16"}
ADDRESSES = ("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_MISALIGNED_ADDRESS")


class KernelRun:
    """The cases of an operator, one after another, and then the time of each kernel."""

    def __init__(self, folder: str, form: Form, sizes: Sizes):
        self._form = form
        self._largest: dict[str, Case] = {}  # kernel -> its case with the most bytes
        self._cases = self._with_offsets(folder, sizes)
        self._case: tuple[Case, int] | None = None
        self._expected: list[Array] = []
        self._times: Iterator[tuple[str, Case]] | None = None
        self._cublas = True

    def _with_offsets(self, folder: str, sizes: Sizes) -> Iterator[tuple[Case, int]]:
        """All cases, and then the largest of each kernel at an offset, where the form can be given one."""
        for case in cases(folder, sizes):
            yield case, 0
            entry = case.launch(launcher.kernel_sm()).entry
            if _bytes(case) > _bytes(self._largest.get(entry)):
                self._largest[entry] = case
        if self._form not in ("onnxruntime", *tensorrt_kernels.LIBRARIES):
            yield from ((case, _offset(case)) for case in self._largest.values())

    def next_case(self) -> str | None:
        """Make the next case and its reference."""
        self._case = next(self._cases, None)
        if self._case is None:
            return None
        case, offset = self._case
        self._expected = case.expected()
        return f"{case}{f', at an offset of {offset} bytes' if offset else ''}"

    def run(self) -> Ran:
        """Run the kernel of this case, and compare."""
        assert self._case is not None
        case, offset = self._case
        entry, got = self._outputs(case, offset)
        wrong = difference(case, got, self._expected)
        return Ran(entry, None if wrong is None else Failure("wrong bits", "", str(wrong), [*MESSAGES]))

    def _outputs(self, case: Case, offset: int) -> tuple[str, list[Array]]:
        """The name of the kernel that ran, and its outputs."""
        if self._form == "onnxruntime":
            return onnxruntime_kernels.run(case, launcher.device()[1])
        if self._form in tensorrt_kernels.LIBRARIES:
            return tensorrt_kernels.run(case, launcher.device()[1], self._form)
        launch = case.launch(launcher.kernel_sm())
        image, guard = (None, 0) if self._form == "sanitizer" else (cast(Image, self._form), launcher.GUARD)
        folder, outputs = case.folder, case.made()
        return launch.entry, launcher.run(folder, launch, case.inputs, outputs, image, offset, guard)

    def next_time(self) -> Speed | None:
        """Measure the next kernel."""
        if self._times is None:
            for _ in self._cases:  # finds the largest of each
                pass
            self._times = iter(self._largest.items())
        entry, case = next(self._times, (None, None))
        if entry is None or case is None:
            return None
        launch = case.launch(launcher.kernel_sm())
        times = launcher.measure(case.folder, launch, case.inputs, case.made(), TIMED)
        moved = _bytes(case)
        return Speed(
            entry,
            str(case),
            moved,
            times.warm_us,
            times.cold_us,
            moved / (1000 * times.cold_us),
            launcher.copy_time(moved) / times.cold_us,
            self._of_cublas(case, times.cold_us),
        )

    def _of_cublas(self, case: Case, microseconds: float) -> float | None:
        """The time of the same product by cuBLAS / ours; None for what is none, and without a cuBLAS that runs it."""
        if (shape := product_of(case)) is None or not self._cublas:
            return None
        try:
            return cublas.product_time(*shape) / microseconds
        except MissingExtraError:
            self._cublas = False
            return None
        except cublas.CublasError:  # it says nothing about our kernel
            return None


def product_of(case: Case) -> tuple[str, int, int, int] | None:
    """The arguments of `cublas.product_time` for the case's product; None if it is none that cuBLAS has."""
    x, dtype = case.inputs[0], PEERS.get(case.operator)
    if x is None or dtype is None or x.dtype != dtype or not x.size:
        return None
    ((shape, _),) = case.made()
    depth, channels = x.shape[-1], shape[-1]
    if dtype == "int8" and (depth % cublas.MULTIPLE or channels % cublas.MULTIPLE):
        return None
    return dtype, math.prod(x.shape[:-1]), depth, channels


def _offset(case: Case) -> int:
    """A multiple of the elements of all inputs and outputs, and of no more."""
    return max(
        [
            OFFSET,
            *(each.itemsize for each in case.inputs if each is not None),
            *(kind.itemsize for _, kind in case.made()),
        ]
    )


def _bytes(case: Case | None) -> int:
    """The bytes of all inputs and outputs."""
    if case is None:
        return 0
    made = sum(int(dtype.itemsize * math.prod(shape)) for shape, dtype in case.made())
    return made + sum(array.nbytes for array in case.inputs if array is not None)


def failure(error: IntaglioError) -> Failure:
    """What an error is in the report."""
    kind: Kind = "error"
    if isinstance(error, MissingExtraError):
        kind = "missing library"
    elif isinstance(error, launcher.OverrunError):
        kind = "illegal address"
    elif isinstance(error, DriverError):
        kind = "load failed" if error.function.startswith("cuModule") else "launch failed"
        kind = "illegal address" if error.status in ADDRESSES else kind
    return Failure(kind, "", one_line(error), [*MESSAGES])


def main(arguments: list[str]) -> None:
    """Answer until standard input ends."""
    answers: dict[str, Callable[[], object]] = {"machine": machine}
    with ExitStack() as held:
        if arguments[0] == "bundle":
            _, path, target, sm = arguments
            bundle = BundleRun(Path(path), target, int(sm))
            held.callback(bundle.close)
            answers = {"build": bundle.build, "compare": bundle.compare, "throughput": bundle.throughput}
        elif arguments != ["machine"]:
            answers = _of_kernels(*arguments)
        _answer(answers)


def _of_kernels(folder: str, form: str, sizes: str) -> dict[str, Callable[[], object]]:
    threadpool_limits(1, user_api="blas")  # other children use the other processors
    checked = KernelRun(folder, cast(Form, form), msgspec.json.decode(sizes, type=Sizes))
    return {"case": checked.next_case, "run": checked.run, "time": checked.next_time}


def _answer(answers: dict[str, Callable[[], object]]) -> None:
    """Answer the questions on standard input until it ends."""
    for line in sys.stdin:
        try:
            answer = Answer(msgspec.Raw(msgspec.json.encode(answers[line.strip()]())))
        except IntaglioError as error:
            answer = Answer(failure=failure(error))
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
