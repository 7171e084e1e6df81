"""One integer operator at a time, for the benchmarks: by its NumPy reference, or by the library's kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.plugins import DOMAIN, OPS, ort

Array = npt.NDArray[Any]
Run = Callable[[str, Sequence[Array | None], Mapping[str, Any]], list[Array]]


def runs() -> dict[str, Run]:
    """Who can run an operator here: the NumPy reference, and ONNX Runtime where the compiled library exists."""
    if ort.library() is None:
        return {"NumPy": reference}
    return {"NumPy": reference, "ONNX Runtime": OnnxRuntime()}


def reference(operator: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> list[Array]:
    """The outputs as `spec.py` defines them."""
    return OPS[operator].reference(inputs, attributes)


class OnnxRuntime:
    """Models of one node each, opened once for all lengths of their inputs' axes."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[Any, ...], Any] = {}

    def __call__(self, operator: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> list[Array]:
        """The outputs of the compiled kernel."""
        named = zip(OPS[operator].inputs, inputs, strict=False)
        arrays = {spec.name: array for spec, array in named if array is not None}
        kinds = tuple((name, array.dtype.name, array.ndim) for name, array in arrays.items())
        key = (operator, kinds, tuple(attributes.items()))
        if key not in self._sessions:
            self._sessions[key] = _session(operator, arrays, attributes)
        outputs: list[Array] = self._sessions[key].run(None, arrays)
        return outputs


def _session(operator: str, arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> Any:
    import onnxruntime

    values = {
        name: ir.Value(
            name=name,
            shape=ir.Shape([None] * array.ndim),
            type=ir.TensorType(ir.DataType.from_numpy(np.dtype(array.dtype))),
        )
        for name, array in arrays.items()
    }
    wanted = [values.get(spec.name) for spec in OPS[operator].inputs]
    while wanted[-1] is None:
        wanted.pop()
    shapes = [None if value is None else (None,) * len(value.shape or ()) for value in wanted]
    outputs = OPS[operator].outputs(OPS[operator].padded(shapes), OPS[operator].complete(attributes))
    made = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
    node = ir.Node(DOMAIN, operator, wanted, made, num_outputs=len(outputs))
    for value, output in zip(node.outputs, outputs, strict=True):
        value.name, value.dtype = output.name, ir.DataType.from_numpy(np.dtype(output.dtype))
    graph = ir.Graph(
        list(values.values()), node.outputs, nodes=[node], opset_imports={"": 23, DOMAIN: 1}, name=operator
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    ort.register(options)
    model = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
