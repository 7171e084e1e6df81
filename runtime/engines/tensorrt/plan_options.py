"""The options of plans: which of them a library has, how its builder gets them, and what opens a plan that has them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from intaglio.bundle.bundle import EngineRecord
from intaglio.bundle.plan_record import HARDWARE, PlanOptions
from intaglio.errors import EngineError, UsageError
from intaglio.runtime.engines.gpus import Gpu
from intaglio.runtime.engines.tensorrt.library import library_name
from intaglio.targets import Target

LEVELS = dict(zip(HARDWARE, ("NONE", "AMPERE_PLUS", "SAME_COMPUTE_CAPABILITY"), strict=True))
AMPERE_PLUS, AMPERE = HARDWARE[1], 80  # compute capability times ten
HOST_CODE = "INTAGLIO_ENGINE_HOST_CODE"  # environment variable; "1": version-compatible engines may run their code
BIAS_LOST = "11.3."  # versions whose refittable engines may drop a bias: known issue of NVIDIA's release notes

# Option -> why TensorRT-RTX has it not, and what to do.
NOT_IN_RTX = {
    "--version-compatible": "its engines open only in the version that built them. Build again after an update",
    "--hardware-compatibility": "it compiles for the GPUs that are named. Name each of them with --gpu",
    "--optimization-level": "it measures no kernels while it builds. Build with --target tensorrt",
}


def check_plan(plan: PlanOptions, target: Target, trt: Any) -> None:
    """Raise `UsageError` for an option that the target or its library, the module `trt`, does not have."""
    if target.takes_gpus:
        for option in plan.given:
            if option in NOT_IN_RTX:
                raise UsageError(f"target {target.name}: {NOT_IN_RTX[option]}, and leave out {option}.")
    if plan.version_compatible and (plan.refit or plan.strip_weights):
        other = "--refit" if plan.refit else "--strip-weights"
        raise UsageError(
            f"--version-compatible: the lean runtime in such an engine cannot set weights. Leave out {other}."
        )
    if plan.refit and target.name == "tensorrt" and trt.__version__.startswith(BIAS_LOST):
        raise UsageError(
            f"{library_name(trt)}: --refit may drop a bias in this version. "
            "Use another version, or --strip-weights without --refit."
        )


def check_hardware(plan: PlanOptions, gpu: Gpu) -> None:
    """Raise `UsageError` for a GPU on which no engine of this hardware compatibility can be built."""
    if is_portable(plan) and gpu.sm < AMPERE:
        raise UsageError(
            f"--hardware-compatibility {AMPERE_PLUS}: got {gpu.name} (SM{gpu.sm}), expected a GPU of SM{AMPERE} or "
            f"newer. Build on one, or use --hardware-compatibility {HARDWARE[2]}."
        )


def is_portable(plan: PlanOptions) -> bool:
    """Whether the engine runs on GPUs of other compute capabilities."""
    return plan.hardware_compatibility == AMPERE_PLUS


def oldest_gpu(plan: PlanOptions, sm: int) -> int:
    """The oldest compute capability, times ten, that an engine runs on, if it is built on a GPU of `sm`."""
    return AMPERE if is_portable(plan) else sm


def configure(trt: Any, config: Any, plan: PlanOptions, plugins: Sequence[str] = ()) -> None:
    """Set the options of an `IBuilderConfig` of the module `trt`; `plugins`: libraries that the plan is to hold."""
    flags = trt.BuilderFlag
    if plan.version_compatible:
        config.set_flag(flags.VERSION_COMPATIBLE)
        if plugins:
            config.plugins_to_serialize = list(plugins)
    if plan.hardware_compatibility != HARDWARE[0]:
        config.hardware_compatibility_level = getattr(
            trt.HardwareCompatibilityLevel, LEVELS[plan.hardware_compatibility]
        )
    if plan.strip_weights:
        config.set_flag(flags.STRIP_PLAN)  # without REFIT it implies REFIT_IDENTICAL: the same weights come back
    if plan.refit:
        config.set_flag(flags.REFIT)
    if plan.optimization_level is not None:
        config.builder_optimization_level = plan.optimization_level


def runs_on(record: EngineRecord, device: Gpu) -> bool:
    """Whether an engine runs on a GPU: of its compute capability; if it is for "ampere+", of any from Ampere on."""
    later = is_portable(record.plan) and min(record.sm or 0, device.sm) >= AMPERE
    return record.sm == device.sm or later


def check_library(record: EngineRecord, installed: str) -> None:
    """Raise `EngineError` unless the installed version of the library opens the engine: the one that built it.

    A version-compatible engine also opens in later versions.
    """
    if record.library == installed:
        return
    made, present = record.library.split(" ")[0], installed.split(" ")[0]
    later = made == present and _version(installed) >= _version(record.library)
    if record.plan.version_compatible and later:
        return
    opens = "this or a later version" if record.plan.version_compatible else "the version that built them"
    raise EngineError(
        f"engine {record.path}: built by {record.library}, but {installed} is installed, and such engines open only in "
        f"{opens}. Re-build it with --force, or install {record.library.replace(' ', '==')}."
    )


def _version(library: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", library.split(" ")[-1])]


def check_host_code(record: EngineRecord) -> None:
    """Raise `EngineError` for an engine with code for the host, unless the environment says that such code may run.

    A bundle's hashes say that it is complete, not who wrote it.
    """
    if record.plan.version_compatible and os.environ.get(HOST_CODE) != "1":
        raise EngineError(
            f"engine {record.path}: is version-compatible, so it holds a library that runs in this process with all "
            f"of its rights. Set {HOST_CODE}=1 if you trust whoever built it, or re-build it without "
            "--version-compatible."
        )
