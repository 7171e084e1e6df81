"""The engine: named arrays in, named arrays out, whatever executes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from intaglio.bundle import MODEL, Axis, Bundle, TensorSpec
from intaglio.errors import EngineError, UsageError

Array = npt.NDArray[np.generic]
MAX_THREADS = 1024


class Engine(ABC):
    """An opened model. A context manager; `run` checks names, dtypes and shapes before anything is computed."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    axes: Mapping[str, Axis]  # the lengths that symbolic axes may have; those not named are unbounded

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run once: input name -> array to output name -> array. Raises `EngineError` for a wrong input."""
        check_arrays(self.inputs, self.axes, feeds)
        return self._run(feeds)

    @abstractmethod
    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run with inputs that were checked."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the session and its memory; the engine is of no use afterwards."""


def check_threads(threads: int | None) -> None:
    """Raise `UsageError` for a number of processor threads that no machine has use for."""
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads {threads}: expected 1 to {MAX_THREADS}.")


def zeros(specs: Iterable[TensorSpec], lengths: Mapping[str, int]) -> dict[str, Array]:
    """An array of zeros for each of `specs`, by name; `lengths` are those of the symbolic axes."""
    return {
        spec.name: np.zeros([lengths[axis] if isinstance(axis, str) else axis for axis in spec.shape], spec.dtype)
        for spec in specs
    }


def check_arrays(
    specs: tuple[TensorSpec, ...], axes: Mapping[str, Axis], arrays: Mapping[str, Array], what: str = "input"
) -> None:
    """Raise `EngineError` unless `arrays` has exactly the names of `specs`, with their dtypes, ranks and lengths.

    An axis of the same name must have the same length in all of them; `what` is what the message calls an array.
    """
    names = [spec.name for spec in specs]
    if missing := [name for name in names if name not in arrays]:
        given = ", ".join(arrays) or "none"
        raise EngineError(f"{what}s missing: {', '.join(missing)}; got {given}. Give all of them.")
    if unknown := [name for name in arrays if name not in names]:
        raise EngineError(f"unknown {what}s: {', '.join(unknown)}; the model has {', '.join(names)}.")
    lengths: dict[str, tuple[int, str]] = {}  # symbolic axis -> its length and the array that gave it
    for spec in specs:
        array = arrays[spec.name]
        if array.dtype.name != spec.dtype:
            raise EngineError(
                f"{what} {spec.name}: got dtype {array.dtype.name}, expected {spec.dtype}. "
                f"Convert it with .astype({spec.dtype!r})."
            )
        fixed = all(
            not isinstance(want, int) or want == got for want, got in zip(spec.shape, array.shape, strict=False)
        )
        if array.ndim != len(spec.shape) or not fixed:
            shape = ", ".join(str(length) for length in spec.shape)
            raise EngineError(f"{what} {spec.name}: got shape {array.shape}, expected [{shape}].")
        for name, length in zip(spec.shape, array.shape, strict=True):
            if isinstance(name, str):
                _check_axis(f"{what} {spec.name}", name, length, axes.get(name, Axis(minimum=0)))
                first, where = lengths.setdefault(name, (length, spec.name))
                if length != first:
                    raise EngineError(
                        f"{what} {spec.name}: {name} is {length}, but {where} has {first}; they must agree."
                    )


def _check_axis(where: str, name: str, length: int, axis: Axis) -> None:
    if length < axis.minimum or (axis.maximum is not None and length > axis.maximum):
        bounds = f"{axis.minimum} to {axis.maximum}" if axis.maximum is not None else f"at least {axis.minimum}"
        raise EngineError(f"{where}: {name} is {length}, expected {bounds}. Shorten, split or pad it.")


def open_engine(
    path: str | Path | Bundle,
    target: str = "ort-cpu",
    threads: int | None = None,
    spinning: bool = True,
    outputs: Collection[str] | None = None,
    graph: str = MODEL,
) -> Engine:
    """Open a bundle, or any .onnx file, for running; `graph` is the bundle's ONNX file that is run.

    `target`: "ort-cpu", "ort-cuda" or "ort-tensorrt" (ONNX Runtime's providers), "tensorrt" or "tensorrt-rtx"
    (an engine that `intaglio build` put into the bundle for this machine's GPU). `threads`, `spinning` and `outputs`
    are for ONNX Runtime, see `OnnxRuntimeEngine`.
    """
    from intaglio.runtime.engines.onnxruntime_engine import PROVIDERS, OnnxRuntimeEngine
    from intaglio.runtime.engines.tensorrt_engine import LIBRARIES, TensorRTEngine

    if target not in (*PROVIDERS, *LIBRARIES):
        raise UsageError(f"target {target!r}: expected one of {', '.join([*PROVIDERS, *LIBRARIES])}.")
    if not isinstance(path, Bundle):
        path = Path(path)
        is_onnx = path.suffix == ".onnx" and not path.is_dir()
        if is_onnx and target in PROVIDERS:
            return OnnxRuntimeEngine(path, target, threads, spinning, outputs)
        if is_onnx:
            raise UsageError(f"{path}: target {target} runs engines of a bundle. Make one with: intaglio export {path}")
        path = Bundle.open(path)
    if target in PROVIDERS:
        return OnnxRuntimeEngine(path, target, threads, spinning, outputs, graph)
    return TensorRTEngine(path, target, graph)
