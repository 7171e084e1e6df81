"""The table of targets: the library that runs a graph, its requirements, and the functions that open and build it.

It is light, so that help texts and completions read it too. To add a target, add a row and the functions that it names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from intaglio.errors import UsageError


@dataclass(frozen=True)
class Target:
    """A row; `opens` and `builds` are "module:function" below `intaglio.runtime.engines`, documented there."""

    name: str
    library: str  # the Python module that builds and runs
    extra: str  # pip install 'intaglio[<extra>]' installs it
    runs_files: bool  # runs any .onnx file, built or not; else only engines of `intaglio build`
    needs_gpu: bool  # needs a GPU to run
    takes_gpus: bool  # builds for GPUs by name, present or not
    summary: str
    opens: str
    builds: str | None  # None: it runs graphs unchanged


_ONNX_RUNTIME = {"opens": "onnxruntime.engine:open_target", "builds": "onnxruntime.builder:build_target"}
_TENSORRT = {"opens": "tensorrt.engine:open_target", "builds": "tensorrt.builder:build_target"}

TARGETS = {
    target.name: target
    for target in (
        Target("ort-cpu", "onnxruntime", "cpu", True, False, False, "ONNX Runtime on the CPU", **_ONNX_RUNTIME),
        Target("ort-cuda", "onnxruntime", "gpu", True, True, False, "ONNX Runtime on a CUDA GPU", **_ONNX_RUNTIME),
        Target("tensorrt", "tensorrt", "gpu", False, True, False, "TensorRT, for this GPU", **_TENSORRT),
        Target("tensorrt-rtx", "tensorrt_rtx", "rtx", False, True, True, "TensorRT-RTX, for GPUs by name", **_TENSORRT),
    )
}
DEFAULT = "ort-cpu"


def find_target(name: str, others: Collection[str] = ()) -> Target:
    """The row of `name`. Raises `UsageError` with the known names, and `others` that the caller also accepts."""
    if name not in TARGETS:
        raise UsageError(f"target {name!r}: expected one of {', '.join([*TARGETS, *others])}.")
    return TARGETS[name]


def without_gpu() -> str:
    """The targets that run on any machine, for an error message: "ort-cpu", or "ort-cpu or another"."""
    return " or ".join(target.name for target in TARGETS.values() if not target.needs_gpu)


def summary() -> str:
    """The names with their descriptions, for a help text."""
    return ", ".join(f"{target.name} ({target.summary})" for target in TARGETS.values())
