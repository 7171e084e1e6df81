"""The calls of TensorRT's builder to a plugin, without a builder: outputs, launch and kernel.

Lengths are numbers here instead of symbolic expressions; the plugins, their registry and their classes are
TensorRT's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.plugins import DOMAIN

NAMES = {"FLOAT16": "HALF"}  # ONNX's name of an element type -> TensorRT's, where they differ


class Expression(int):
    """A dimension expression that is a number, static for the builder or not."""

    known = True

    def is_constant(self) -> bool:
        return self.known

    def get_constant_value(self) -> int:
        return int(self)


class Unknown(Expression):
    """A length that is not static for the builder."""

    known = False


class ExpressionBuilder:
    """`IExprBuilder` over numbers that a dimension can be; results that depend on an unknown length are unknown."""

    def __init__(self, trt: Any) -> None:
        operation = trt.DimensionOperation
        self._compute = {
            operation.SUM: lambda a, b: a + b,
            operation.SUB: lambda a, b: a - b,
            operation.PROD: lambda a, b: a * b,
            operation.FLOOR_DIV: lambda a, b: a // b,
            operation.EQUAL: lambda a, b: int(a == b),
            operation.LESS: lambda a, b: int(a < b),
        }

    def constant(self, value: int) -> Expression:
        assert 0 <= value < 2**31, f"{value} is no dimension"
        return value if isinstance(value, Expression) else Expression(value)

    def operation(self, operation: Any, a: Expression, b: Expression) -> Expression:
        kind = Expression if a.known and b.known else Unknown
        result = self._compute[operation](int(a), int(b))
        assert 0 <= result < 2**31, f"{result} is no dimension"
        return kind(result)


@dataclass
class Scalars:
    """`ISymExprs`: the scalar parameters."""

    nbSymExprs: int = 0  # noqa: N815
    values: dict[int, Any] = field(default_factory=dict)

    def __setitem__(self, index: int, value: Any) -> None:
        self.values[index] = value


class Parameters:
    """`IKernelLaunchParams`: grid, block and shared memory."""


@dataclass
class Built:
    """The data of a node in the engine."""

    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    entry: str
    ptx: bytes
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    scalars: tuple[int, ...]


def fields(trt: Any, node: ir.Node) -> Any:
    """The attributes of a node as TensorRT's parser passes them: int32, float32, characters."""
    made = []
    for name, attribute in node.attributes.items():
        if name in ("plugin_namespace", "plugin_version"):
            continue
        value = attribute.value
        if isinstance(value, str):
            made.append(trt.PluginField(name, value.encode() + b"\0", trt.PluginFieldType.CHAR))
        elif isinstance(value, float):
            made.append(trt.PluginField(name, np.array([value], np.float32), trt.PluginFieldType.FLOAT32))
        else:
            made.append(trt.PluginField(name, np.array([value], np.int32), trt.PluginFieldType.INT32))
    return trt.PluginFieldCollection(made)


def build(trt: Any, monkeypatch: Any, node: ir.Node) -> Built:
    """Create the plugin of an explicit node with inputs of these shapes, and call it as the builder does.

    A length that is a symbol "name=number" is that number, but not static for the builder.
    """
    modules = {
        name: __import__(f"tensorrt_bindings.plugin.{name}", fromlist=[name]) for name in ("_plugin_class", "_tensor")
    }
    monkeypatch.setattr(modules["_plugin_class"].trt, "DimsExprs", lambda length: [None] * length)
    monkeypatch.setattr(modules["_tensor"], "SymExprImpl", lambda expression: expression._expr)
    creator = trt.get_plugin_registry().get_creator(node.op_type, "1", DOMAIN)
    plugin = creator.create_plugin(
        node.op_type, DOMAIN, fields(trt, node), trt.TensorRTPhase.BUILD, trt.QuickPluginCreationRequest.STRICT_AOT
    )
    inputs = [value for value in node.inputs if value is not None]
    lengths = [[_expression(length) for length in value.shape] for value in inputs]
    types = [getattr(trt.DataType, NAMES.get(value.dtype.name, value.dtype.name)) for value in inputs]
    outputs = list(plugin.get_output_data_types(types, [len(each) for each in lengths]))
    builder = ExpressionBuilder(trt)
    shapes = plugin.get_output_shapes(lengths, [], builder)
    descriptions = [
        _description(trt, each, dtype) for each, dtype in zip([*lengths, *shapes], [*types, *outputs], strict=True)
    ]
    plugin.configure_plugin(descriptions[: len(inputs)], descriptions[len(inputs) :])
    plugin.set_tactic(0)
    parameters, scalars = Parameters(), Scalars()
    plugin.get_launch_params(lengths, descriptions, len(inputs), parameters, scalars, builder)
    static = [each.desc for each in descriptions]
    entry, ptx = plugin.get_kernel(static[: len(inputs)], static[len(inputs) :])
    assert scalars.nbSymExprs == len(scalars.values)
    return Built(
        [np.dtype(trt.nptype(dtype)).name for dtype in outputs],
        [tuple(map(int, shape)) for shape in shapes],
        entry,
        ptx,
        (int(parameters.grid_x), int(parameters.grid_y), int(parameters.grid_z)),
        (int(parameters.block_x), int(parameters.block_y), int(parameters.block_z)),
        int(parameters.shared_mem),
        tuple(int(scalars.values[index]) for index in range(len(scalars.values))),
    )


def _expression(length: Any) -> Expression:
    if isinstance(length, int):
        return Expression(length)
    return Unknown(int(length.value.split("=")[1]))


def _description(trt: Any, lengths: list[Expression], dtype: Any) -> Any:
    description = trt.DynamicPluginTensorDesc()
    static = trt.PluginTensorDesc()
    static.dims, static.type, static.format = [int(length) for length in lengths], dtype, trt.TensorFormat.LINEAR
    description.desc = static
    return description
