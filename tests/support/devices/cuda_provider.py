"""A stand-in for ONNX Runtime's CUDA provider: its CPU provider, on the stand-in's device memory.

Buffers bound as device memory must be within a `cudaMalloc` allocation. An input bound in host memory is copied when it
is bound, as https://github.com/microsoft/onnxruntime/issues/5857 describes: later writes to it have no effect.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from device_meter import Bound, size_of

PROVIDER = "CUDAExecutionProvider"


def install(patch: pytest.MonkeyPatch, runtime: Any) -> None:
    """Make every session run on the device of `runtime`, a stand-in for `cuda.bindings.runtime`."""

    class Binding(onnxruntime.IOBinding):
        def __init__(self, session: Any):
            super().__init__(session)
            self.bound = Bound()
            self._copies: dict[str, Any] = {}

        def bind_input(
            self, name: str, device_type: str, device_id: int, element_type: Any, shape: Any, buffer_ptr: int
        ) -> None:
            size = size_of(element_type, shape)
            if device_type == "cpu":
                copy = self._copies[name] = np.frombuffer(ctypes.string_at(buffer_ptr, size), np.uint8).copy()
                buffer_ptr = copy.ctypes.data
                runtime.ledger.upload(size)
            else:
                runtime.check(buffer_ptr, size)
            self.bound.shapes[name] = tuple(shape)
            super().bind_input(name, "cpu", 0, element_type, shape, buffer_ptr)

        def bind_output(
            self,
            name: str,
            device_type: str = "cpu",
            device_id: int = 0,
            element_type: Any = None,
            shape: Any = None,
            buffer_ptr: int | None = None,
        ) -> None:
            size = size_of(element_type, shape)
            if device_type == "cpu":
                self.bound.down[name] = size
            else:
                runtime.check(buffer_ptr, size)
            super().bind_output(name, "cpu", 0, element_type, shape, buffer_ptr)

    class Session(onnxruntime.InferenceSession):
        def __init__(
            self,
            model: str | bytes,
            options: Any,
            providers: Sequence[Any],
            disabled_optimizers: Sequence[str],
            enable_fallback: int,
        ):
            (first, given), *_ = providers
            assert not enable_fallback, "to the CPU, without a word"
            if not options.optimized_model_filepath:  # it runs
                assert int(given["user_compute_stream"]) in runtime.streams, "work runs in order"
            assert first == PROVIDER
            assert not disabled_optimizers, "what is slow on CPUs may be fast here"
            super().__init__(model, options, providers=["CPUExecutionProvider"])

        def get_providers(self) -> list[str]:
            return [PROVIDER, *super().get_providers()]

        def io_binding(self) -> Binding:
            return Binding(self)

        def run_with_iobinding(self, binding: Binding, run_options: Any = None) -> None:
            super().run_with_iobinding(binding, run_options)
            runtime.ledger.ran(binding.bound.shapes)
            runtime.ledger.download(sum(binding.bound.down.values()))

        def run(self, names: Sequence[str], feeds: Mapping[str, Any], run_options: Any = None) -> list[Any]:
            found = super().run(names, feeds, run_options)
            runtime.ledger.upload(sum(array.nbytes for array in feeds.values()))
            runtime.ledger.ran({name: array.shape for name, array in feeds.items()})
            runtime.ledger.download(sum(array.nbytes for array in found))
            return list(found)

    patch.setattr(onnxruntime, "get_available_providers", lambda: [PROVIDER, "CPUExecutionProvider"])
    patch.setattr(onnxruntime, "IOBinding", Binding)
    patch.setattr(onnxruntime, "InferenceSession", Session)
