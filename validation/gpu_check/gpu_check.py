"""The verb `gpu-check`: every CUDA kernel against the NumPy reference on the GPU of this machine, and its time.

Each operator is checked with its kernels as cubin, as PTX, in ONNX Runtime, in engines of TensorRT and TensorRT-RTX,
and under compute-sanitizer, as far as these are installed, each in a process of its own, several at once; then the
kernels are timed, one process at a time. This process never touches the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from intaglio.display.progress import track
from intaglio.errors import EngineError, MissingExtraError
from intaglio.files.atomic import atomic_write, check_output_file
from intaglio.plugins.cuda.compiler import images
from intaglio.plugins.cuda.launching.launches import kernel_folders, operators
from intaglio.plugins.kernel_check.inputs import Sizes
from intaglio.plugins.trt.explicit import plugged
from intaglio.runtime.engines.onnxruntime.provider import missing_provider
from intaglio.targets import TARGETS
from intaglio.validation.gpu_check.bundles import check_paths, not_supported
from intaglio.validation.gpu_check.report_page import REPORT, to_html
from intaglio.validation.gpu_check.results import (
    TIMED,
    BundleCheck,
    BundleComparison,
    Failure,
    Form,
    GpuCheck,
    KernelCheck,
    Machine,
    Ran,
    Speed,
    Throughput,
)
from intaglio.validation.gpu_check.sanitizer import has_sanitizer, memory_check
from intaglio.validation.gpu_check.tensorrt_kernels import LIBRARIES, installed
from intaglio.validation.gpu_check.workers import (
    QUESTION_SECONDS,
    SECONDS,
    NoAnswerError,
    Worker,
    Workers,
    children_at_once,
)
from intaglio.validation.reports.page import make_directory, now

# Of the cases: all in each form of the driver; few where ONNX Runtime and TensorRT make the same launches; small ones
# for compute-sanitizer, under which a kernel takes many times as long.
SIZES = Sizes()
FEW_SIZES = Sizes(rows=(0, 1, 17, 65), few_rows=(1, 17), depth=1024, channels=256, vocabulary=8_000)
ENGINE_SIZES = msgspec.structs.replace(FEW_SIZES, rows=(1, 17, 65))  # an engine takes no axis of length 0
SMALL_SIZES = Sizes(rows=(0, 1, 17, 65), few_rows=(1, 17), depth=256, channels=128, vocabulary=1_000)
# The operators with the longest references begin first, so that none of them is left alone at the end.
LONGEST = ("int_linear", "group_matmul", "lut_matmul", "int_attention")


class Part(NamedTuple):
    """What a child process checks."""

    folder: str
    form: Form

    def arguments(self) -> tuple[str, ...]:
        """The arguments of the child process."""
        sizes = {"onnxruntime": FEW_SIZES, "sanitizer": SMALL_SIZES, **dict.fromkeys(LIBRARIES, ENGINE_SIZES)}.get(
            self.form, SIZES
        )
        return self.folder, self.form, msgspec.json.encode(sizes).decode()


def gpu_check(
    output: str | Path | None = None,
    force: bool = False,
    report: str | Path | None = None,
    bundles: Sequence[str | Path] = (),
) -> GpuCheck:
    """Compare every CUDA kernel with the NumPy reference on the first GPU of this machine, and measure its time.

    `bundles`: folders of bundles, each of which is then built for every target of this machine's GPU, compared with
    the CPU, and timed; they are not changed. The kernels take at most 10 minutes, and a bundle on a target as much.
    Writes the result as JSON to the file `output`, which `force` replaces, and as JSON and HTML to the directory
    `report`. What fails does not raise but returns `passed=False`. Raises `EngineError` without a GPU,
    `MissingExtraError` without cuda-bindings, `UsageError` for an output that exists or a folder that is no bundle,
    `StorageError`.
    """
    paths = [Path(path) for path in bundles]
    check_paths(paths)
    if output is not None:
        check_output_file(Path(output), force, "--output")
    if report is not None:
        make_directory(Path(report))
    start = time.monotonic()
    found = _machine(Workers(start + QUESTION_SECONDS))
    workers = Workers(start + SECONDS)
    parts = [Part(folder, form) for folder in kernel_folders() for form in forms(found.sm) if has_form(folder, form)]
    begun = sorted(parts, key=lambda part: part.folder not in LONGEST)
    checked = workers.in_parallel(lambda part: check_part(workers, part), begun, children_at_once())
    checks = dict(zip(begun, checked, strict=True))
    timed = [part for part in parts if part.form == TIMED and checks[part].passed]
    for part in track(timed, "gpu-check: times", len(timed)):
        measure_part(workers, part, checks[part])
    kernels = [checks[part] for part in parts]
    runs = [(path, target) for path in paths for target in bundle_targets(found.sm)]
    checks_of_bundles = [
        check_bundle(path, target, found.sm) for path, target in track(runs, "gpu-check: bundles", len(runs))
    ]
    passed = all(each.passed for each in kernels) and all(each.passed is not False for each in checks_of_bundles)
    result = GpuCheck(passed, found, kernels, time.monotonic() - start, checks_of_bundles)
    _write(result, Path(output) if output is not None else None, Path(report) if report is not None else None)
    return result


def forms(sm: int) -> tuple[Form, ...]:
    """The forms in which kernels are run on a GPU of `sm`, by what is installed here."""
    under: tuple[Form, ...] = ("sanitizer",) if has_sanitizer() else ()
    return (*images(sm), "onnxruntime", *installed(sm), *under)


def has_form(folder: str, form: Form) -> bool:
    """Whether kernels are run in a form: TensorRT has no plugin of those that sessions of ONNX Runtime add.

    Those beside engines are no nodes.
    """
    if form == "onnxruntime":
        return folder in operators()
    return form not in LIBRARIES or folder in {operator.folder for operator in plugged()}


def check_part(workers: Workers, part: Part) -> KernelCheck:
    """Run all cases of an operator's kernels in a child process."""
    start = time.monotonic()
    found = KernelCheck(part.folder, part.form, False, 0, [], [], [], 0.0)
    with ExitStack() as held:
        sanitizer = held.enter_context(memory_check()) if part.form == "sanitizer" else None
        under = sanitizer.command if sanitizer else ()
        worker = held.enter_context(workers.start(*part.arguments(), under=under))
        _run_cases(worker, found)
        if sanitizer:
            found.failures = sanitizer.judge(found.failures, worker.finish())
    found.passed, found.seconds = not found.failures, time.monotonic() - start
    return found


def _run_cases(worker: Worker, found: KernelCheck) -> None:
    case: str | None = ""
    try:
        while (case := worker.ask("case", str | None)) is not None:
            ran = worker.ask("run", Ran)
            found.cases += 1
            if ran.kernel not in found.kernels:
                found.kernels.append(ran.kernel)
            if ran.failure is not None:
                _add(found, ran.failure, case)
    except NoAnswerError as error:
        _add(found, error.failure, case or "")


def _add(found: KernelCheck, failure: Failure, case: str) -> None:
    log = [] if found.failures else failure.log
    found.failures.append(msgspec.structs.replace(failure, case=case, log=log))


def measure_part(workers: Workers, part: Part, found: KernelCheck) -> None:
    """Measure the time of each kernel in another child process, and add it to `found`.

    The child makes the cases again: those of all operators together would take several gigabytes of memory.
    """
    start = time.monotonic()
    with workers.start(*part.arguments()) as worker:
        try:
            while (speed := worker.ask("time", Speed | None)) is not None:
                found.speeds.append(speed)
        except NoAnswerError as error:
            found.failures.append(msgspec.structs.replace(error.failure, case="measuring"))
    found.passed = not found.failures
    found.seconds += time.monotonic() - start


def bundle_targets(sm: int) -> list[str]:
    """The targets for a GPU of `sm`, by what is installed here."""
    found = ["ort-cuda"] if missing_provider("ort-cuda") is None else []
    return found + [form for form in installed(sm) if form in TARGETS]


def check_bundle(path: Path, target: str, sm: int) -> BundleCheck:
    """Build a bundle for a target, compare it with the CPU, and measure its speed, in a child process."""
    start = time.monotonic()
    found = BundleCheck(str(path), target, None, None, None, None, 0.0)
    if reason := not_supported(path, target):
        found.failure = Failure("not supported", "", reason)
        return found
    with Workers(start + SECONDS).start("bundle", str(path), target, str(sm)) as worker:
        try:
            worker.ask("build", None, SECONDS)
            found.compared = worker.ask("compare", BundleComparison, SECONDS)
            found.throughput = worker.ask("throughput", Throughput, SECONDS)
        except NoAnswerError as error:
            found.failure = error.failure
        if found.failure is None or found.failure.kind not in ("timeout", "crashed"):
            worker.finish()  # it removes its copy of the bundle
    found.passed = found.failure is None and found.compared is not None and found.compared.passed
    found.seconds = time.monotonic() - start
    return found


def _write(result: GpuCheck, output: Path | None, report: Path | None) -> None:
    data = msgspec.json.format(msgspec.json.encode(result)) + b"\n"
    if output is not None:
        atomic_write(output, data)
    if report is not None:
        atomic_write(report / "gpu-check.json", data)
        atomic_write(report / REPORT, to_html(result, now()).encode())


def _machine(workers: Workers) -> Machine:
    """The GPU, asked in a child process. Raises `EngineError`, `MissingExtraError`."""
    try:
        with workers.start("machine") as worker:
            found: Machine = worker.ask("machine", Machine)
            return found
    except NoAnswerError as error:
        missing = error.failure.kind == "missing library"
        raise (MissingExtraError if missing else EngineError)(f"gpu-check: {error.failure.message}") from error
