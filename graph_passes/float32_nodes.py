"""Which nodes of a float16 graph compute in float32: those without a float16 form, or whose meaning depends on it.

The standard's description of an operator tells: the types that it allows, and attributes that state a dtype.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx
import onnx_ir as ir

from intaglio.graph_passes.front_end import ancestors

FLOAT = ir.DataType.FLOAT
DTYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "output_dtype")

# float16 has no number between 2048 and 2050: positions and angles would be off, ranges have another length, and the
# bits of a number are others.
EXACT_INPUTS = frozenset({"BitCast", "Cos", "Range", "Sin"})

# Their dtype attribute and their tensors are converted with the graph.
CONVERTED = frozenset({"Cast", "Constant", "ConstantOfShape"})

# ONNX Runtime (1.31) opens them in float16, and fails when they run with a reduction.
ADDING = frozenset({"ScatterElements", "ScatterND"})


def exact_nodes(nodes: Sequence[ir.Node], op_types: Collection[str] = EXACT_INPUTS) -> set[ir.Node]:
    """Return the nodes of the types that need exact inputs, and the nodes that compute these."""
    return ancestors([node for node in nodes if node.op_type in op_types and node.domain == ""])


def log_probabilities(nodes: Sequence[ir.Node]) -> set[ir.Node]:
    """Return the nodes of log-probabilities that are outputs of the graph."""
    return {node for node in nodes if node.op_type == "LogSoftmax" and node.outputs[0].is_graph_output()}


def has_no_half_form(node: ir.Node) -> bool:
    """Whether the node cannot compute in float16, although the standard allows float16 inputs.

    1. It has tensors of float32 in attributes, such as the thresholds of a TreeEnsemble.
    2. Its attribute, not its input, states that it returns float32, such as EyeLike and the windows: runtimes have no
       float16 kernel, and cannot put a Cast around one in float32. A sequence cannot be cast; it is converted.
    3. It adds to its input where an index says so.
    """
    if node.op_type in ADDING and node.domain == "":
        return "reduction" in node.attributes and node.attributes["reduction"].as_string() != "none"
    if node.op_type in CONVERTED and node.domain == "":
        return False
    stated = [attribute for attribute in node.attributes.values() if not attribute.is_ref()]
    if any(each.type == ir.AttributeType.TENSOR and each.as_tensor().dtype == FLOAT for each in stated):
        return True
    tensors = all(isinstance(value.type, ir.TensorType) for value in node.outputs if value.type is not None)
    return tensors and stated_dtype(node) == FLOAT


def stated_dtype(node: ir.Node) -> int | None:
    """Return the dtype that the node states for its output, or that the standard does by default."""
    for name in DTYPE_ATTRIBUTES:
        if name in node.attributes and not node.attributes[name].is_ref():
            return node.attributes[name].as_int()
    schema = _newest_schema(node)
    if schema is None:
        return None
    defaults = [schema.attributes[name].default_value for name in DTYPE_ATTRIBUTES if name in schema.attributes]
    return next((int(default.i) for default in defaults if default.i), None)


def _newest_schema(node: ir.Node) -> onnx.defs.OpSchema | None:
    return onnx.defs.get_schema(node.op_type, node.domain) if onnx.defs.has(node.op_type, node.domain) else None


def takes_half(schema: onnx.defs.OpSchema, side: str, index: int) -> bool:
    """Whether the standard allows float16 for input or output number `index` of the operator."""
    formal = list(getattr(schema, side))
    parameter = formal[min(index, len(formal) - 1)]  # the last one may be repeated
    for constraint in schema.type_constraints:
        if constraint.type_param_str == parameter.type_str:
            return any("float16)" in kind and "bfloat16" not in kind for kind in constraint.allowed_type_strs)
    return False
