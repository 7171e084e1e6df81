"""The calls of TensorRT's builder to a plugin, without a builder: outputs, types and tactics, launch and kernel.

Lengths are numbers here instead of symbolic expressions; the plugins, their registry and their classes are
TensorRT's own. What only the builder checks is checked here: a plugin supports the types that the graph has, tactics
are positive and differ, and expressions are read only in calls that have an `IExprBuilder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.plugins import DOMAIN, OPS
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.plugins.trt import explicit

NAMES = {"FLOAT16": "HALF"}  # ONNX's name of an element type -> TensorRT's, where they differ
# Suffixes of input names that are not activations.
CONSTANT = ("weight", "bias", "shift", "multiplier", "packed", "lut", "scales", "zero_points")


class Expression(int):
    """A dimension expression that is a number, static for the builder or not."""

    known = True
    readable: ClassVar[bool] = False  # whether the builder is in a call that gives the plugin expressions

    def is_constant(self) -> bool:
        assert Expression.readable, "the expression is destroyed"
        return self.known

    def get_constant_value(self) -> int:
        assert Expression.readable, "the expression is destroyed"
        return int(self)


@contextmanager
def readable_expressions() -> Iterator[None]:
    """Expressions can be read inside of the block."""
    Expression.readable = True
    try:
        yield
    finally:
        Expression.readable = False


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


def explicit_node(case: Case, symbolic: bool = False) -> ir.Node:
    """The node of the case in explicit form; with `symbolic`, the builder does not know the activation lengths."""
    model = node_model(case)
    node = explicit(model).graph.node(-1)
    known = {spec.name for spec in OPS[case.operator].inputs if spec.known_width} | {"key", "value"}
    for value in node.inputs:
        assert value is not None and value.name is not None and value.shape is not None
        if symbolic and not value.name.endswith(CONSTANT):
            width = len(value.shape) - 1 if value.name in known else None
            lengths = [length if axis == width else f"n={length}" for axis, length in enumerate(value.shape)]
            value.shape = ir.Shape(lengths)
    return node


def fields(trt: Any, node: ir.Node) -> tuple[Any, list[Any]]:
    """The attributes of a node as TensorRT's parser passes them: int32, float32, characters; and their memory.

    A `PluginField` has the address of its data alone, which ends with the array or bytes that it was made from.
    """
    made, memory = [], []
    for name, attribute in node.attributes.items():
        if name in ("plugin_namespace", "plugin_version"):
            continue
        value = attribute.value
        if isinstance(value, str):
            data, kind = np.frombuffer(value.encode() + b"\0", np.int8), trt.PluginFieldType.CHAR
        elif isinstance(value, float):
            data, kind = np.array([value], np.float32), trt.PluginFieldType.FLOAT32
        else:
            data, kind = np.array([value], np.int32), trt.PluginFieldType.INT32
        memory.append(data)
        made.append(trt.PluginField(name, data, kind))
    return trt.PluginFieldCollection(made), memory


class PluginNode:
    """The plugin of an explicit node with inputs of these shapes, and what the builder asks of it.

    A length that is a symbol "name=number" is that number, but not static for the builder.
    """

    def __init__(self, trt: Any, monkeypatch: Any, node: ir.Node) -> None:
        modules = {
            name: __import__(f"tensorrt_bindings.plugin.{name}", fromlist=[name])
            for name in ("_plugin_class", "_tensor")
        }
        monkeypatch.setattr(modules["_plugin_class"].trt, "DimsExprs", lambda length: [None] * length)
        monkeypatch.setattr(modules["_tensor"], "SymExprImpl", lambda expression: expression._expr)
        creator = trt.get_plugin_registry().get_creator(node.op_type, "1", DOMAIN)
        self._trt = trt
        given, self._memory = fields(trt, node)
        self._plugin = creator.create_plugin(
            node.op_type, DOMAIN, given, trt.TensorRTPhase.BUILD, trt.QuickPluginCreationRequest.STRICT_AOT
        )
        inputs = [value for value in node.inputs if value is not None]
        self._lengths = [[_expression(length) for length in value.shape] for value in inputs]
        types = [getattr(trt.DataType, NAMES.get(value.dtype.name, value.dtype.name)) for value in inputs]
        self._outputs = list(self._plugin.get_output_data_types(types, [len(each) for each in self._lengths]))
        self._builder = ExpressionBuilder(trt)
        with readable_expressions():
            self._shapes = self._plugin.get_output_shapes(self._lengths, [], self._builder)
        self._descriptions = [
            _description(trt, each, dtype)
            for each, dtype in zip([*self._lengths, *self._shapes], [*types, *self._outputs], strict=True)
        ]

    def tactics(self) -> list[int]:
        """The tactics that the builder measures for the graph's types: 0 alone without any of the plugin's own."""
        found = self._plugin.get_supported_format_combinations(self._descriptions, len(self._lengths))
        count = len(self._descriptions)
        supported = [
            [(each.type, each.format) for each in found[start : start + count]] for start in range(0, len(found), count)
        ]
        wanted = [(each.desc.type, each.desc.format) for each in self._descriptions]
        assert wanted in supported, f"the plugin supports {supported}, and the node has {wanted}"
        inputs = len(self._lengths)
        self._plugin.configure_plugin(self._descriptions[:inputs], self._descriptions[inputs:])
        tactics = list(self._plugin.get_valid_tactics())
        assert all(tactic > 0 for tactic in tactics) and len(set(tactics)) == len(tactics)
        return tactics or [0]

    def build(self, tactic: int) -> Built:
        """The node in the engine, with a tactic."""
        inputs = len(self._lengths)
        plugin = self._plugin.clone()
        plugin.set_tactic(tactic)
        parameters, scalars = Parameters(), Scalars()
        with readable_expressions():
            plugin.get_launch_params(self._lengths, self._descriptions, inputs, parameters, scalars, self._builder)
        static = [each.desc for each in self._descriptions]
        entry, ptx = plugin.get_kernel(static[:inputs], static[inputs:])
        assert scalars.nbSymExprs == len(scalars.values)
        return Built(
            [np.dtype(self._trt.nptype(dtype)).name for dtype in self._outputs],
            [tuple(map(int, shape)) for shape in self._shapes],
            entry,
            ptx,
            (int(parameters.grid_x), int(parameters.grid_y), int(parameters.grid_z)),
            (int(parameters.block_x), int(parameters.block_y), int(parameters.block_z)),
            int(parameters.shared_mem),
            tuple(int(scalars.values[index]) for index in range(len(scalars.values))),
        )


def build(trt: Any, monkeypatch: Any, node: ir.Node) -> Built:
    """The node in an engine of the lowest optimisation level, whose builder takes the first tactic."""
    plugin = PluginNode(trt, monkeypatch, node)
    return plugin.build(plugin.tactics()[0])


def _expression(length: Any) -> Expression:
    if isinstance(length, int):
        return Expression(length)
    return Unknown(int(length.value.split("=")[1]))


def _description(trt: Any, lengths: list[Expression], dtype: Any) -> Any:
    description = trt.DynamicPluginTensorDesc()
    static = trt.PluginTensorDesc()
    static.dims = [int(length) if length.known else -1 for length in lengths]
    static.type, static.format = dtype, trt.TensorFormat.LINEAR
    description.desc = static
    return description
