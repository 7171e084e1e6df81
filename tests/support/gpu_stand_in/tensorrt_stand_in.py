"""TensorRT-RTX on the emulator: its own parser and builder, and a stand-in that runs what they built.

An engine is the real one, and it is opened only if it is; but the nodes that run come from the graph that the parser
read last, by our library's own plugin, which the stand-in drives as TensorRT does.
"""

from __future__ import annotations

import ctypes
import math
import os
from functools import partial
from typing import Any

import numpy as np


def give_rtx_a_gpu(fault: str, kernel: str) -> None:
    """Let the module `tensorrt_rtx` run engines; `fault` of `kernel` is injected."""
    import onnx_ir as ir

    from intaglio import rtx_parser

    assert rtx_parser.takes_plugins()
    import tensorrt_rtx as trt

    gpu = Gpu(fault, kernel)

    class Parser(trt.OnnxParser):
        def parse_from_file(self, path: str) -> bool:
            gpu.model = ir.load(path)
            return super().parse_from_file(path)

    class Builder(trt.Builder):
        def build_serialized_network(self, network: Any, config: Any) -> Any:
            made = super().build_serialized_network(network, config)
            gpu.built = None if made is None else bytes(made)
            return made

    trt.OnnxParser, trt.Builder, trt.Runtime = Parser, Builder, partial(Runtime, gpu)


class Gpu:
    """What runs the plugins, and the last graph and engine."""

    def __init__(self, fault: str, kernel: str) -> None:
        from emulated_driver import EmulatedDriver
        from gpu_stand_in import SM
        from plugin_library import PluginLibrary

        self.driver, self.library = EmulatedDriver(SM), PluginLibrary()
        self.fault, self.kernel = fault, kernel
        self.model: Any = None
        self.built: bytes | None = None

    def run(self, node: Any, inputs: list[Any]) -> list[Any] | None:
        """The outputs of a node of the plugin; None where it fails."""
        from plugin_library import RUNTIME, fields_of

        fields = fields_of(node)
        fault = self.fault if fields["kernel"].rstrip(b"\0").decode() == self.kernel else ""
        self.driver.refuses = fault == "illegal address"
        if fault == "crashed":
            os.abort()
        plugin = self.library.create(fields, RUNTIME)
        context = plugin and plugin.attach()
        outputs: list[Any] | None = context.run(inputs) if context else None
        if outputs is not None and fault == "wrong bits" and outputs[0].size:
            outputs[0].reshape(-1).view(np.uint8)[0] ^= 1
        return outputs


class Runtime:
    """`trt.Runtime` and, as there is one engine, `trt.ICudaEngine`."""

    def __init__(self, gpu: Gpu, log: Any) -> None:
        self._gpu = gpu

    def deserialize_cuda_engine(self, data: bytes) -> Runtime | None:
        return self if data == self._gpu.built else None

    def create_execution_context(self) -> Context:
        return Context(self._gpu)


class Context:
    """`trt.IExecutionContext`."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._addresses: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def execute_async_v3(self, stream: int) -> bool:
        from plugin_library import as_given

        graph = self._gpu.model.graph
        values = {
            value.name: self._array(value.name, value.dtype.numpy(), self._shapes[value.name]) for value in graph.inputs
        }
        values |= {name: value.const_value.numpy() for name, value in graph.initializers.items()}
        for node in graph:
            inputs = [as_given(values[value.name]) for value in node.inputs]
            outputs = [inputs[0].astype(np.int8)] if node.op_type == "Cast" else self._gpu.run(node, inputs)
            if outputs is None:
                return False
            values |= {value.name: array for value, array in zip(node.outputs, outputs, strict=True)}
        for value in graph.outputs:
            found = values[value.name]
            self._shapes[value.name] = found.shape
            self._array(value.name, found.dtype, found.shape)[...] = found
        return True

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Any:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        memory = (ctypes.c_uint8 * size).from_address(self._addresses[name])
        return np.frombuffer(memory, dtype).reshape(shape)
