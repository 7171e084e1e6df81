"""A stand-in for full TensorRT that builds plans and opens them, on the GPU of `cuda_ledger`.

A plan is the ONNX file that was parsed. Its metadata has what the builder was asked for, and a plan without weights has
their names in place of them. What TensorRT refuses is refused: a plan of another version or GPU, one with code for the
host, one that lacks weights or plugins; and a GPU that is too old for a hardware compatibility.
"""

from __future__ import annotations

import enum
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from cuda_ledger import Engine as AnyEngine
from cuda_ledger import gpu

Severity = enum.IntEnum("Severity", "ERROR WARNING")
BuilderFlag = enum.Enum("BuilderFlag", "REFIT REFIT_IDENTICAL STRIP_PLAN VERSION_COMPATIBLE")
HardwareCompatibilityLevel = enum.Enum("HardwareCompatibilityLevel", "NONE AMPERE_PLUS SAME_COMPUTE_CAPABILITY")
NetworkDefinitionCreationFlag = enum.IntEnum("NetworkDefinitionCreationFlag", "PREFER_AOT_PYTHON_PLUGINS")
H100: Any = {"product": "H100 80GB HBM3", "sm": 90}  # of `full_tensorrt_with_a_gpu`
REFITTING = {BuilderFlag.REFIT, BuilderFlag.REFIT_IDENTICAL}  # one of them at most


class Logger:
    """`trt.ILogger`."""

    ERROR = Severity.ERROR


class Monitor:
    """`trt.IProgressMonitor`."""


class Config:
    """`trt.IBuilderConfig`."""

    def __init__(self) -> None:
        self.flags: set[BuilderFlag] = set()
        self.hardware_compatibility_level = HardwareCompatibilityLevel.NONE
        self.builder_optimization_level = 3
        self.plugins_to_serialize: list[str] = []

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.add(flag)
        assert len(self.flags & REFITTING) <= 1, "the second one unsets the first"

    def add_optimization_profile(self, profile: Any) -> int:
        return 0

    def create_timing_cache(self, stored: bytes) -> object:
        return object()

    def set_timing_cache(self, cache: object, ignore_mismatch: bool) -> bool:
        return True

    def get_timing_cache(self) -> None:
        return None


class OnnxParser:
    """`trt.OnnxParser`."""

    def __init__(self, network: Any, log: Any) -> None:
        self._network = network

    def parse_from_file(self, path: str) -> bool:
        self._network.model = onnx.shape_inference.infer_shapes(onnx.load(path))
        return True


def _sm(runtime: Any) -> int:
    _, properties = runtime.cudaGetDeviceProperties(0)
    return int(10 * properties.major + properties.minor)


def _is_weight(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type != onnx.TensorProto.INT64  # shapes and indices stay in a plan


class Builder:
    """`trt.Builder`; `trt` is the stand-in, `log` an `ILogger`."""

    def __init__(self, trt: Any, log: Any) -> None:
        self._trt, self._log = trt, log

    def create_network(self, flags: int) -> Any:
        return SimpleNamespace(model=None)

    def create_builder_config(self) -> Config:
        self._trt.config = Config()
        config: Config = self._trt.config
        return config

    def create_optimization_profile(self) -> Any:
        return SimpleNamespace(set_shape=lambda *shapes: None)

    def build_serialized_network(self, network: Any, config: Config) -> bytes | None:
        level, sm = config.hardware_compatibility_level, _sm(self._trt.cuda)
        if level is HardwareCompatibilityLevel.AMPERE_PLUS and sm < 80:
            self._log.log(Severity.ERROR, f"SM {sm} does not support this hardware compatibility level")
            return None
        plan = onnx.ModelProto()
        plan.CopyFrom(network.model)
        stripped = []
        if BuilderFlag.STRIP_PLAN in config.flags:
            config.flags |= set() if config.flags & REFITTING else {BuilderFlag.REFIT_IDENTICAL}
            stripped = [tensor for tensor in plan.graph.initializer if _is_weight(tensor)]
            for tensor in stripped:
                plan.graph.initializer.remove(tensor)
        options = {
            "version": self._trt.__version__,
            "flags": sorted(flag.name for flag in config.flags),
            "level": level.name,
            "sm": sm,
            "plugins": config.plugins_to_serialize,
            "stripped": {tensor.name: [tensor.data_type, *tensor.dims] for tensor in stripped},
        }
        onnx.helper.set_model_props(plan, {"plan": json.dumps(options)})
        return plan.SerializeToString()


class Runtime:
    """`trt.Runtime`."""

    def __init__(self, trt: Any, log: Any) -> None:
        self._trt, self._log = trt, log
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, data: bytes) -> Engine | None:
        model = onnx.load_from_string(data)
        options = json.loads(model.metadata_props[0].value)
        for refused in self._refusals(model, options):
            self._log.log(Severity.ERROR, refused)
            return None
        return Engine(self._trt.cuda, model, options)

    def _refusals(self, model: onnx.ModelProto, options: dict[str, Any]) -> Iterator[str]:
        compatible = "VERSION_COMPATIBLE" in options["flags"]
        made, installed = (list(map(int, re.findall(r"\d+", each))) for each in (options["version"], self._version))
        if made != installed and not (compatible and made < installed):
            yield f"Version tag does not match: {options['version']}, {self._version}"
        if compatible and not self.engine_host_code_allowed:
            yield "Plan contains host code, which the runtime does not allow"
        sm = _sm(self._trt.cuda)
        if options["sm"] != sm and (options["level"] != "AMPERE_PLUS" or sm < 80):
            yield f"The plan is for SM {options['sm']}, the device is {sm}"
        if compatible and not options["plugins"] and any(node.op_type == "CudaKernel" for node in model.graph.node):
            yield "Cannot find the plugin CudaKernel"

    @property
    def _version(self) -> str:
        return str(self._trt.__version__)


class Engine(AnyEngine):
    """`trt.ICudaEngine`."""

    def __init__(self, runtime: Any, model: onnx.ModelProto, options: dict[str, Any]) -> None:
        super().__init__(runtime, model)
        self.refittable = any(flag.startswith("REFIT") for flag in options["flags"])
        self.missing: dict[str, list[int]] = options["stripped"]

    def create_execution_context(self, strategy: str = "") -> Any:
        return None if self.missing else super().create_execution_context(strategy)


class Refitter:
    """`trt.Refitter`."""

    def __init__(self, engine: Engine, log: Any) -> None:
        if not engine.refittable:
            log.log(Severity.ERROR, "The engine is not refittable")
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self.engine = engine
        self.given: dict[str, onnx.TensorProto] = {}

    def get_missing_weights(self) -> list[str]:
        return [name for name in self.engine.missing if name not in self.given]

    def refit_cuda_engine(self) -> bool:
        if self.get_missing_weights():
            return False
        self.engine.model.graph.initializer.extend(self.given.values())
        self.engine.missing = {}
        return True


class OnnxParserRefitter:
    """`trt.OnnxParserRefitter`: sets the weights of a file's initializers, found by name."""

    def __init__(self, refitter: Refitter, log: Any) -> None:
        self._refitter = refitter
        self._errors: list[str] = []

    def refit_from_file(self, path: str) -> bool:
        expected = self._refitter.engine.missing
        for tensor in onnx.load(path).graph.initializer:
            if tensor.name in expected:
                if [tensor.data_type, *tensor.dims] != expected[tensor.name]:
                    self._errors.append(f"Failed to set named weights {tensor.name}")
                    return False
                self._refitter.given[tensor.name] = tensor
        if len(self._refitter.given) != len(expected):
            count = f"{len(self._refitter.given)} weights out of {len(expected)}"
            self._errors.append(f"Only successfully refitted {count}")
        return not self._errors

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return SimpleNamespace(desc=lambda: self._errors[index])


@contextmanager
def full_tensorrt_with_a_gpu(
    version: str = "11.4.0.106", product: str = "A100-SXM4-40GB", sm: int = 80
) -> Iterator[Any]:
    """The module `tensorrt` of this version on a machine with this GPU, inside the block."""
    with gpu() as ledger, pytest.MonkeyPatch.context() as patch:
        properties = SimpleNamespace(name=f"NVIDIA {product}".encode(), major=sm // 10, minor=sm % 10)
        success = ledger.runtime.cudaError_t.cudaSuccess
        patch.setattr(ledger.runtime, "cudaGetDeviceProperties", lambda device: (success, properties))
        trt = sys.modules["tensorrt"]
        parts = (BuilderFlag, HardwareCompatibilityLevel, NetworkDefinitionCreationFlag, OnnxParser, Refitter)
        made: dict[str, Any] = {part.__name__: part for part in (*parts, OnnxParserRefitter)}
        made |= {"__version__": version, "ILogger": Logger, "IProgressMonitor": Monitor, "cuda": ledger.runtime}
        made |= {"Builder": lambda log: Builder(trt, log), "Runtime": lambda log: Runtime(trt, log)}
        for name, part in made.items():
            patch.setattr(trt, name, part, raising=False)
        yield trt


def weights(model: onnx.ModelProto) -> int:
    """The bytes of a model's weights that a plan without them does not have."""
    return sum(onnx.numpy_helper.to_array(each).nbytes for each in model.graph.initializer if _is_weight(each))
