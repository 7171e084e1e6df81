"""Polygraphy runners: the PyTorch source, any engine of ours, and the ONNX reference evaluator.

A runner stores its arguments and does nothing until Polygraphy activates it. In addition to the outputs it can return
`layers`: values from inside the model, by their names in the ONNX graph.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

from intaglio.accuracy.padding import without_padding
from intaglio.bundle.bundle import TensorSpec
from intaglio.bundle.external_data import read_data
from intaglio.bundle.model_file import parse
from intaglio.errors import EngineError, one_line
from intaglio.extras import load
from intaglio.plugins import DOMAIN, OPS, Operator
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.modalities.table import real_positions

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[np.generic]


class Runner(BaseRunner):  # type: ignore[misc]
    """The base class of our runners: timing, conversion to dtypes that Polygraphy knows, and removal of padding.

    With `drop_padding`, arrays over tokens are returned without the positions where the input `attention_mask` is 0:
    the values there are meaningless, and differ between correct implementations.
    """

    def __init__(self, name: str, drop_padding: bool = False):
        super().__init__(name=name)
        self.drop_padding = drop_padding

    def infer_impl(self, feed_dict: Mapping[str, Array]) -> dict[str, Array]:
        """Run once: input name -> array to output or layer name -> array."""
        start = time.perf_counter()
        outputs = self._infer(feed_dict)
        self.inference_time = time.perf_counter() - start
        known = {name: _known_dtype(array) for name, array in outputs.items()}
        return _tokens_only(known, feed_dict) if self.drop_padding else known

    def get_input_metadata_impl(self) -> Any:
        """Names, dtypes and shapes of the inputs; None is a symbolic axis."""
        metadata = TensorMetadata()
        for spec in self._inputs():
            shape = [length if isinstance(length, int) else None for length in spec.shape]
            metadata.add(spec.name, np.dtype(spec.dtype), shape)
        return metadata

    @abstractmethod
    def _inputs(self) -> Sequence[TensorSpec]: ...

    @abstractmethod
    def _infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]: ...


class EngineRunner(Runner):
    """Any engine; `open_engine` is called on activation and its context is left on deactivation."""

    def __init__(
        self, open_engine: Callable[[], AbstractContextManager[Engine]], name: str, drop_padding: bool = False
    ):
        super().__init__(name, drop_padding)
        self._open = open_engine
        self._stack = ExitStack()
        self._engine: Any = None

    def activate_impl(self) -> None:
        """Open the engine."""
        self._engine = self._stack.enter_context(self._open())

    def deactivate_impl(self) -> None:
        """Close the engine."""
        self._stack.close()
        self._engine = None

    def _inputs(self) -> Sequence[TensorSpec]:
        return tuple(self._engine.inputs)

    def _infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return dict(self._engine.run(feeds))


class ReferenceRunner(Runner):
    """An ONNX file in `onnx.reference`, our operators by their NumPy references."""

    def __init__(self, path: Path, name: str, layers: Sequence[str] = (), drop_padding: bool = False):
        super().__init__(name, drop_padding)
        self._path = path
        self._layers = layers
        self._evaluator: Any = None
        self._specs: list[TensorSpec] = []

    def activate_impl(self) -> None:
        """Load the model with its weights."""
        from onnx.reference import ReferenceEvaluator

        model = parse(self._path)
        self._specs = graph_inputs(model.graph)
        try:
            read_data(model, self._path)
            self._evaluator = ReferenceEvaluator(model, new_ops=[reference_operator(*item) for item in OPS.items()])
        except (NotImplementedError, RuntimeError, OSError, ValueError) as error:
            raise self._refused(error) from error

    def deactivate_impl(self) -> None:
        """Release the model."""
        self._evaluator = None
        self._specs = []

    def _inputs(self) -> Sequence[TensorSpec]:
        return self._specs

    def _infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        names = list(dict.fromkeys([*self._evaluator.output_names, *self._layers]))
        try:
            arrays = self._evaluator.run(names, dict(feeds))
        except Exception as error:  # each operator raises its own kinds of exceptions
            raise self._refused(error) from error
        return {name: np.asarray(array) for name, array in zip(names, arrays, strict=True)}

    def _refused(self, error: Exception) -> EngineError:
        reason = one_line(error, 300)
        return EngineError(f"{self._path}: the ONNX reference evaluator cannot run it: {reason}. Compare on ort-cpu.")


class PyTorchRunner(Runner):
    """A torch module on the CPU, such as the checkpoint that a bundle was made from.

    `load_module` is called on activation; the module takes the inputs in order and returns a tuple in the order of
    the outputs. `layers` maps module paths to the names under which their outputs are returned.
    """

    def __init__(
        self,
        load_module: Callable[[], Any],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        name: str,
        layers: Mapping[str, str] | None = None,
        drop_padding: bool = False,
    ):
        super().__init__(name, drop_padding)
        self._load_module = load_module
        self._specs = list(inputs)
        self._outputs = [spec.name for spec in outputs]
        self._layers = dict(layers or {})
        self._seen: dict[str, Array] = {}
        self._hooks: list[Any] = []
        self._module: Any = None

    def activate_impl(self) -> None:
        """Load the module and hook its layers."""
        self._module = self._load_module()
        for path, value in self._layers.items():
            self._hooks.append(self._module.get_submodule(path).register_forward_hook(self._remember(value)))

    def deactivate_impl(self) -> None:
        """Remove the hooks, and release the module."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._module = None
        self._seen = {}

    def _remember(self, value: str) -> Callable[[Any, Any, Any], None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            self._seen[value] = _to_numpy(output if load("torch").is_tensor(output) else output[0])

        return hook

    def _inputs(self) -> Sequence[TensorSpec]:
        return self._specs

    def _infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        torch = load("torch")
        tensors = [torch.from_numpy(np.require(feeds[spec.name], requirements=["C", "W"])) for spec in self._specs]
        self._seen = {}
        with torch.inference_mode():
            returned = self._module(*tensors)
        outputs = {name: _to_numpy(tensor) for name, tensor in zip(self._outputs, returned, strict=True)}
        return outputs | self._seen


def _tokens_only(outputs: Mapping[str, Array], feeds: Mapping[str, Array]) -> dict[str, Array]:
    mask = real_positions(feeds, outputs)
    return {name: without_padding(array, mask) for name, array in outputs.items()}


def reference_operator(name: str, operator: Operator) -> type:
    """The class with which `onnx.reference` runs one of our operators; missing inputs are None."""
    from onnx.reference.op_run import OpRun

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        return tuple(operator.reference(inputs, attributes))

    return type(name, (OpRun,), {"op_domain": DOMAIN, "_run": run})


def graph_inputs(graph: onnx.GraphProto) -> list[TensorSpec]:
    """The inputs of a graph that need feeds: those that are not initializers."""
    from onnx.helper import tensor_dtype_to_np_dtype

    weights = {tensor.name for tensor in graph.initializer}
    specs = []
    for value in graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
            specs.append(TensorSpec(value.name, tensor_dtype_to_np_dtype(tensor.elem_type).name, tuple(shape)))
    return specs


def _known_dtype(array: Array) -> Array:
    """Convert to a NumPy dtype, which Polygraphy needs: bfloat16 and 8-bit floats widen to float32 without loss."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def _to_numpy(tensor: Any) -> Array:
    torch = load("torch")
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return np.array(wide.detach().cpu().numpy())  # a copy: a later layer may work in place
