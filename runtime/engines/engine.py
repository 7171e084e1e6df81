"""The interface of engines: named arrays in, named arrays out, for every execution library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from intaglio.bundle.bundle import MODEL, Axis, TensorSpec
from intaglio.closing import Closing
from intaglio.errors import EngineError
from intaglio.runtime.adapters.adapters import Adapters
from intaglio.runtime.engines.device_array import DeviceArray
from intaglio.runtime.engines.memory import Array, Buffer, HostMemory, Memory

__all__ = ["Array", "Binding", "Engine", "EngineRunner", "check_arrays", "check_buffers"]


class Binding(ABC):
    """An engine's inputs and outputs, bound to buffers that each run reads and writes in place.

    Between runs the contents may change, but not address and shape; bind again for other shapes.
    """

    @abstractmethod
    def run(self) -> None:
        """Run once on the bound buffers; outputs in host memory are complete afterwards. Raises `EngineError`."""


class Engine(Closing):
    """An opened model. A context manager; `run` checks names, dtypes and shapes before computing."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    axes: Mapping[str, Axis]  # allowed lengths of symbolic axes; unlisted ones are unbounded
    cache_bits: int | None = None  # of a decoder's cached keys and values; None: as the graph has them
    adapter_names: Sequence[str] = ()  # of the adapters that were added to the graph; their numbers count from 1
    memory: Memory = HostMemory()  # the memory it computes in: buffers bound there are not copied

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run once: input name -> array to output name -> array. Raises `EngineError` for a wrong input."""
        check_arrays(self.inputs, self.axes, feeds)
        return self._run(feeds)

    @abstractmethod
    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run with checked inputs."""

    def bind(self, buffers: Mapping[str, Buffer]) -> Binding:
        """Bind every input and output, by name, to a buffer: a NumPy array, or one of the engine's `memory`.

        A buffer of `memory` stays there between runs; a NumPy array is copied to it and back if that is other memory.
        One buffer may serve as both an input and an output, which is then updated in place. Raises `EngineError` for
        buffers that do not fit.
        """
        check_buffers(self, buffers)
        return _CopyingBinding(self, buffers)

    @abstractmethod
    def close(self) -> None:
        """Release the session and its memory; the engine is invalid afterwards."""


class EngineRunner(Closing):
    """What runs an engine of its own. A context manager."""

    engine: Engine

    def close(self) -> None:
        """Release the engine; the runner is invalid afterwards."""
        self.engine.close()


class _CopyingBinding(Binding):
    """The binding of an engine that returns its outputs as new arrays: they are copied to the bound buffers."""

    def __init__(self, engine: Engine, buffers: Mapping[str, Buffer]):
        self._engine = engine
        self._inputs = {spec.name: np.asarray(buffers[spec.name]) for spec in engine.inputs}
        self._outputs = {spec.name: np.asarray(buffers[spec.name]) for spec in engine.outputs}

    def run(self) -> None:
        """See `Binding`."""
        found = self._engine._run(self._inputs)
        for name, array in self._outputs.items():
            array[...] = found[name]


def check_buffers(engine: Engine, buffers: Mapping[str, Buffer]) -> None:
    """Raise `EngineError` unless `buffers` has a matching one for every input and output of `engine`: see `bind`."""
    check_arrays((*engine.inputs, *engine.outputs), engine.axes, buffers, "buffer")
    for name, buffer in buffers.items():
        contiguous = buffer.contiguous if isinstance(buffer, DeviceArray) else np.asarray(buffer).flags.c_contiguous
        if not contiguous:
            raise EngineError(f"buffer {name}: not contiguous. Fix it with numpy.ascontiguousarray.")
    for spec in engine.outputs:
        buffer = buffers[spec.name]
        if not isinstance(buffer, DeviceArray) and not np.asarray(buffer).flags.writeable:
            raise EngineError(f"buffer {spec.name}: is read-only. Bind a writable array.")


def check_arrays(
    specs: tuple[TensorSpec, ...], axes: Mapping[str, Axis], arrays: Mapping[str, Buffer], what: str = "input"
) -> None:
    """Raise `EngineError` unless `arrays` has exactly the names of `specs`, with their dtypes, ranks and lengths.

    An axis of the same name must have the same length in all of them; `what` is the word for an array in messages.
    """
    names = [spec.name for spec in specs]
    if missing := [name for name in names if name not in arrays]:
        given = ", ".join(arrays) or "none"
        raise EngineError(f"{what}s missing: {', '.join(missing)}; got {given}. Give all of them.")
    if unknown := [name for name in arrays if name not in names]:
        raise EngineError(f"unknown {what}s: {', '.join(unknown)}; the model has {', '.join(names)}.")
    lengths: dict[str, tuple[int, str]] = {}  # symbolic axis -> its length and the array that set it
    for spec in specs:
        array = arrays[spec.name]
        if (dtype := _dtype(array)) != spec.dtype:
            raise EngineError(
                f"{what} {spec.name}: got dtype {dtype}, expected {spec.dtype}. "
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


def _dtype(array: Buffer) -> str:
    """The name of an array's dtype; "str" for text of any length, and for objects."""
    return "str" if array.dtype.kind in "OU" else str(array.dtype.name)


def _check_axis(where: str, name: str, length: int, axis: Axis) -> None:
    if length < axis.minimum or (axis.maximum is not None and length > axis.maximum):
        bounds = f"{axis.minimum} to {axis.maximum}" if axis.maximum is not None else f"at least {axis.minimum}"
        raise EngineError(f"{where}: {name} is {length}, expected {bounds}. Shorten, split or pad it.")


@dataclass(frozen=True)
class Opening:
    """How to open a graph. Each target uses the options that apply to it."""

    threads: int | None = None  # processor threads
    spinning: bool = True  # idle worker threads busy-wait
    outputs: Collection[str] | None = None  # outputs to compute; None: all
    graph: str = MODEL  # the bundle's ONNX file to run
    adapters: Adapters | None = None  # to add beside the products of a bundle's graph
    cache_bits: int | None = None  # of a decoder's cached keys and values, 8 or 4; None: as the graph has them
