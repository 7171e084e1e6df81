"""The engine: named arrays in, named arrays out, whatever executes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from intaglio.bundle import Axis, Bundle, TensorSpec
from intaglio.errors import EngineError, UsageError

Array = npt.NDArray[np.generic]


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
        check_feeds(self.inputs, self.axes, feeds)
        return self._run(feeds)

    @abstractmethod
    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run with inputs that were checked."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the session and its memory; the engine is of no use afterwards."""


def check_feeds(inputs: tuple[TensorSpec, ...], axes: Mapping[str, Axis], feeds: Mapping[str, Array]) -> None:
    """Raise `EngineError` unless `feeds` has exactly the inputs, of their dtypes, ranks and axis lengths."""
    names = [spec.name for spec in inputs]
    if missing := [name for name in names if name not in feeds]:
        raise EngineError(f"inputs missing: {', '.join(missing)}; got {', '.join(feeds) or 'none'}. Feed all of them.")
    if unknown := [name for name in feeds if name not in names]:
        raise EngineError(f"unknown inputs: {', '.join(unknown)}; the model takes {', '.join(names)}.")
    lengths: dict[str, tuple[int, str]] = {}  # symbolic axis -> its length and the input that gave it
    for spec in inputs:
        array = feeds[spec.name]
        if array.dtype.name != spec.dtype:
            raise EngineError(
                f"input {spec.name}: got dtype {array.dtype.name}, expected {spec.dtype}. "
                f"Convert it with .astype({spec.dtype!r})."
            )
        if array.ndim != len(spec.shape):
            raise EngineError(f"input {spec.name}: got shape {array.shape}, expected {_shown(spec.shape)}.")
        for got, expected in zip(array.shape, spec.shape, strict=True):
            _check_axis(spec, array, got, expected, axes, lengths)


def _check_axis(
    spec: TensorSpec,
    array: Array,
    got: int,
    expected: int | str,
    axes: Mapping[str, Axis],
    lengths: dict[str, tuple[int, str]],
) -> None:
    if isinstance(expected, int):
        if got != expected:
            raise EngineError(f"input {spec.name}: got shape {array.shape}, expected {_shown(spec.shape)}.")
        return
    axis = axes.get(expected, Axis(minimum=0))
    if got < axis.minimum or (axis.maximum is not None and got > axis.maximum):
        bounds = f"{axis.minimum} to {axis.maximum}" if axis.maximum is not None else f"at least {axis.minimum}"
        raise EngineError(
            f"input {spec.name}: {expected} is {got}, expected {bounds}. Shorten, split or pad the input."
        )
    first, where = lengths.setdefault(expected, (got, spec.name))
    if got != first:
        raise EngineError(f"input {spec.name}: {expected} is {got}, but {where} has {first}. They must agree.")


def _shown(shape: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(str(length) for length in shape) + "]"


def open_engine(path: str | Path, target: str = "ort-cpu") -> Engine:
    """Open a bundle, or any .onnx file, for running.

    `target`: "ort-cpu", "ort-cuda" or "ort-tensorrt" (ONNX Runtime's providers), "tensorrt" or "tensorrt-rtx"
    (an engine that `intaglio build` put into the bundle for this machine's GPU).
    """
    from intaglio.runtime.onnxruntime_engine import PROVIDERS, OnnxRuntimeEngine
    from intaglio.runtime.tensorrt_engine import LIBRARIES, TensorRTEngine

    path = Path(path)
    is_onnx = path.suffix == ".onnx" and not path.is_dir()
    if target in PROVIDERS:
        return OnnxRuntimeEngine(path if is_onnx else Bundle.open(path), target)
    if target not in LIBRARIES:
        raise UsageError(f"target {target!r}: expected one of {', '.join([*PROVIDERS, *LIBRARIES])}.")
    if is_onnx:
        raise UsageError(f"{path}: target {target} runs engines of a bundle. Make one with: intaglio export {path}")
    return TensorRTEngine(Bundle.open(path), target)
