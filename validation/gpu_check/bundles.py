"""A bundle on this machine's GPU, for `gpu-check`: built, compared with the CPU, and timed. Runs in a child process."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, UsageError
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.gpus import SM
from intaglio.runtime.engines.tensorrt.lengths import check_supported
from intaglio.targets import DEFAULT, TARGETS
from intaglio.validation.bench.bench import bench
from intaglio.validation.gpu_check.results import BundleComparison, Throughput
from intaglio.validation.validate_bundle import validate


class BundleRun:
    """A copy of a bundle, with engines for `target` and GPUs of `sm`, until `close`."""

    def __init__(self, path: Path, target: str, sm: int) -> None:
        self._path, self._target, self._sm = path, target, sm
        self._held = ExitStack()
        self._folder = self._held.enter_context(scratch_directory("gpu-check"))
        self._copy = self._folder / (path.resolve().name or "bundle")
        shutil.copytree(path, self._copy, ignore=shutil.ignore_patterns("reports"))

    def build(self) -> None:
        """Build the engines, where the target has them."""
        gpus = []
        if TARGETS[self._target].takes_gpus:
            gpus = [next((name for name, sm in SM.items() if sm == self._sm), f"sm{self._sm}")]
        build(self._copy, self._target, gpus=gpus, force=True)

    def compare(self) -> BundleComparison:
        """Compare the outputs, on real sentences or recordings, with those of the bundle on the CPU."""
        found = validate(self._copy, self._path, target=self._target, report=self._folder / "reports")
        beyond = [name for name, output in found.outputs.items() if not output.passed]
        beyond += [f"{measure.name}: {measure.value:.4g}" for measure in found.measures if not measure.passed]
        return BundleComparison(found.passed, len(found.outputs), beyond + found.not_compared)

    def throughput(self) -> Throughput:
        """How fast the bundle is on the target, and on the CPU."""
        here, cpu = bench(self._copy, target=self._target), bench(self._path, target=DEFAULT)
        return Throughput(here.unit, here.throughput, cpu.throughput)

    def close(self) -> None:
        """Remove the copy."""
        self._held.close()


def not_supported(path: Path, target: str) -> str:
    """Why a bundle is not checked on a target; empty if it is, or cannot be read, which the child process reports."""
    try:
        bundle = Bundle.open(path)
    except BundleError:
        return ""
    if bundle.manifest.transcriber is not None:
        return "it is compared by recordings alone: intaglio validate --wer"
    try:
        if not TARGETS[target].runs_files:
            check_supported(bundle, target)
    except UsageError as error:
        return str(error)
    return ""


def check_paths(bundles: list[Path]) -> None:
    """Raise `UsageError` for what is no folder: a check of minutes should not fail at its end."""
    for path in bundles:
        if not (path / "bundle.json").is_file():
            raise UsageError(f"--bundle {path}: no bundle. Give the folder that `intaglio export` wrote.")
