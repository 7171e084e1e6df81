"""Host-device traffic in each run of an engine, counted at the calls of the libraries.

All copies use one of two paths: `cuda.bindings.runtime`, called by `DeviceMemory` and TensorRT's engines, and ONNX
Runtime, which copies values bound in host memory when it binds an input, and after a run for an output. Values that it
does not copy, because a node on the CPU reads them there, are counted too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from intaglio.extras import load
from intaglio.runtime.engines.tensorrt.engine import TensorRTEngine

Shapes = dict[str, tuple[int, ...]]


@dataclass
class Step:
    """The traffic of one run of an engine, in bytes."""

    up: int = 0
    down: int = 0
    shapes: Shapes = field(default_factory=dict)  # of the inputs


@dataclass
class Ledger:
    """Host-device traffic. Copies before an engine runs count for that run, downloads for the last."""

    steps: list[Step] = field(default_factory=list)
    allocated: dict[int, int] = field(default_factory=dict)  # address -> bytes
    most: int = 0  # bytes allocated at present
    runtime: Any = field(default=None, compare=False)  # the stand-in that counts, if one does
    _next: Step = field(default_factory=Step)

    def allocate(self, address: int, size: int) -> None:
        self.allocated[address] = size
        self.most = max(self.most, sum(self.allocated.values()))

    def free(self, address: int) -> None:
        del self.allocated[address]

    def copy(self, size: int, kind: str) -> None:
        """`kind`: the name of CUDA's constant."""
        if kind == "cudaMemcpyHostToDevice":
            self.upload(size)
        elif kind == "cudaMemcpyDeviceToHost":
            self.download(size)
        else:
            assert kind == "cudaMemcpyDeviceToDevice", f"{kind} does not say where the bytes go"

    def upload(self, size: int) -> None:
        self._next.up += size

    def download(self, size: int) -> None:
        self.steps[-1].down += size

    def ran(self, shapes: Shapes) -> None:
        self._next.shapes = dict(shapes)
        self.steps.append(self._next)
        self._next = Step()


@dataclass
class Bound:
    """The bindings of an `IOBinding` of ONNX Runtime."""

    shapes: Shapes = field(default_factory=dict)  # of the inputs
    down: dict[str, int] = field(default_factory=dict)  # output in host memory -> bytes


def size_of(element: Any, shape: tuple[int, ...]) -> int:
    """The bytes of an array."""
    return prod(shape) * np.dtype(element).itemsize


@contextmanager
def metered() -> Iterator[Ledger]:
    """A counter of the copies of engines on a GPU inside the block; nothing may run on other targets there."""
    ledger = Ledger()
    with pytest.MonkeyPatch.context() as patch:
        _meter_cuda(patch, ledger)
        _meter_tensorrt(patch, ledger)
        _meter_onnxruntime(patch, ledger)
        yield ledger


def _after(patch: pytest.MonkeyPatch, owner: Any, name: str, count: Callable[..., None]) -> None:
    """Call `count` after every call of a function with its result, then its arguments."""
    real = getattr(owner, name)

    def seen(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        count(result, *arguments, **named)
        return result

    patch.setattr(owner, name, seen)


def _meter_cuda(patch: pytest.MonkeyPatch, ledger: Ledger) -> None:
    runtime = load("cuda.bindings.runtime")

    def done(result: Any) -> bool:
        return bool(result[0] == runtime.cudaError_t.cudaSuccess)

    def allocated(result: Any, size: int) -> None:
        if done(result):
            ledger.allocate(int(result[1]), size)

    def freed(result: Any, address: int) -> None:
        if done(result):
            ledger.free(int(address))

    def copied(result: Any, target: int, source: int, size: int, kind: Any, stream: Any) -> None:
        if done(result):
            ledger.copy(size, kind.name)

    def copied_rows(result: Any, to: int, pitch: int, start: int, from_pitch: int, *rest: Any) -> None:
        width, rows, kind, _ = rest
        if done(result):
            ledger.copy(width * rows, kind.name)

    _after(patch, runtime, "cudaMalloc", allocated)
    _after(patch, runtime, "cudaFree", freed)
    _after(patch, runtime, "cudaMemcpyAsync", copied)
    _after(patch, runtime, "cudaMemcpy2DAsync", copied_rows)


def _meter_tensorrt(patch: pytest.MonkeyPatch, ledger: Ledger) -> None:
    def ran(_: None, engine: TensorRTEngine, buffers: Any) -> None:
        ledger.ran({spec.name: buffers[spec.name].shape for spec in engine.inputs})

    _after(patch, TensorRTEngine, "execute", ran)


def _meter_onnxruntime(patch: pytest.MonkeyPatch, ledger: Ledger) -> None:
    onnxruntime = load("onnxruntime")
    bindings: WeakKeyDictionary[Any, Bound] = WeakKeyDictionary()

    def bound_input(_: None, binding: Any, name: str, device: str, *place: Any) -> None:
        _, element, shape, _ = place
        bindings.setdefault(binding, Bound()).shapes[name] = tuple(shape)
        ledger.upload(size_of(element, shape) if device == "cpu" else 0)

    def bound_output(_: None, binding: Any, name: str, device: str, *place: Any) -> None:
        _, element, shape, _ = place
        bindings.setdefault(binding, Bound()).down[name] = size_of(element, shape) if device == "cpu" else 0

    def ran_bound(_: None, session: Any, binding: Any) -> None:
        ledger.ran(bindings[binding].shapes)
        ledger.download(sum(bindings[binding].down.values()))

    def ran(found: list[Any], session: Any, names: list[str], feeds: dict[str, Any]) -> None:
        ledger.upload(sum(array.nbytes for array in feeds.values()))
        ledger.ran({name: array.shape for name, array in feeds.items()})
        ledger.download(sum(array.nbytes for array in found))

    _after(patch, onnxruntime.IOBinding, "bind_input", bound_input)
    _after(patch, onnxruntime.IOBinding, "bind_output", bound_output)
    _after(patch, onnxruntime.InferenceSession, "run_with_iobinding", ran_bound)
    _after(patch, onnxruntime.InferenceSession, "run", ran)
