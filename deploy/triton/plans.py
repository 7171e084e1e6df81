"""The TensorRT plans of a bundle that Triton's tensorrt backend loads, one for each compute capability."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from intaglio.bundle.bundle import MODEL, Bundle
from intaglio.bundle.manifest import EngineRecord
from intaglio.errors import UsageError
from intaglio.runtime.engines.gpus import named

TENSORRT, TENSORRT_RTX = "tensorrt", "tensorrt-rtx"


class Plans(NamedTuple):
    """The plans, and the texts and tokens that all of them take."""

    files: dict[str, Path]  # compute capability, such as "8.0" -> file
    texts: int  # at most, in a batch
    shortest: int  # tokens
    longest: int  # tokens


def find_plans(bundle: Bundle, gpus: Sequence[str]) -> Plans:
    """The plans for `gpus`; without any, all that the bundle has.

    Raises `UsageError` for a GPU without a plan, naming the engines of TensorRT-RTX, which Triton cannot load.
    """
    records = [engine for engine in bundle.manifest.engines if engine.graph == MODEL]
    chosen = [engine for engine in records if engine.target == TENSORRT]
    if gpus:
        chosen = [_plan(bundle, records, gpu) for gpu in dict.fromkeys(gpus)]
    elif not chosen:
        raise _missing(bundle, records, "a GPU")
    files: dict[str, Path] = {}
    for engine in chosen:
        if engine.plan.strip_weights:
            raise UsageError(
                f"bundle {bundle.path}: {engine.path} has no weights, and Triton's tensorrt backend sets none. "
                f"Build it again without them stripped: intaglio build {bundle.path} --target {TENSORRT} --force"
            )
        capability = f"{engine.sm // 10}.{engine.sm % 10}" if engine.sm is not None else ""
        if capability in files:
            raise UsageError(
                f"bundle {bundle.path}: {files[capability].name} and {Path(engine.path).name} are both for compute "
                f"capability {capability}, and Triton takes one for each. Choose with --gpu."
            )
        files[capability] = bundle.path / engine.path
    if len({engine.library for engine in chosen}) > 1:
        libraries = ", ".join(sorted({engine.library for engine in chosen}))
        raise UsageError(f"bundle {bundle.path}: its plans are of {libraries}, and a server has one. Build them again.")
    shapes = [shape for engine in chosen for shape in engine.profiles.values()]
    if (first := max(shape["min"][0] for shape in shapes)) > 1:
        raise UsageError(
            f"bundle {bundle.path}: a plan takes {first} texts or more, expected 1. "
            f"Build it again: intaglio build {bundle.path} --target {TENSORRT} --batch 1:8:32"
        )
    return Plans(
        files,
        min(shape["max"][0] for shape in shapes),
        max(shape["min"][1] for shape in shapes),
        min(shape["max"][1] for shape in shapes),
    )


def _plan(bundle: Bundle, records: Sequence[EngineRecord], gpu: str) -> EngineRecord:
    """The plan for `gpu`, or for another one of the same compute capability."""
    wanted = named(gpu)
    found = [engine for engine in records if engine.target == TENSORRT and engine.sm == wanted.sm]
    if not found:
        raise _missing(bundle, records, gpu)
    return next((engine for engine in found if engine.gpu == wanted.name), found[0])


def _missing(bundle: Bundle, records: Sequence[EngineRecord], gpu: str) -> UsageError:
    others = [engine.path for engine in records if engine.target == TENSORRT_RTX]
    has = f"has no TensorRT plan for {gpu}"
    if others:
        has += f"; {', '.join(others)}: of TensorRT-RTX, which Triton's tensorrt backend cannot load"
    build = f"Build it on that GPU: intaglio build {bundle.path} --target {TENSORRT}"
    return UsageError(f"bundle {bundle.path}: {has}. {build}, or use --backend onnxruntime.")
