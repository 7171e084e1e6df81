"""Reading nodes of our operators: which operator, its attributes, and whether its inputs are what they have to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from intaglio.errors import EngineError, GraphError
from intaglio.plugins import constant_folding
from intaglio.plugins.contract import Operator
from intaglio.plugins.operator_inputs import Given, Shape
from intaglio.plugins.registry import DOMAIN, OPS


@contextmanager
def naming(node: ir.Node) -> Iterator[None]:
    """Let what is raised about a node be a `GraphError` that names it."""
    name = node.name or f"with output {node.outputs[0].name}"
    try:
        yield
    except (EngineError, GraphError) as error:
        raise GraphError(f"node {name}: {error}") from error


def operator_of(node: ir.Node) -> Operator:
    """The operator of a node of ours. Raises `GraphError` for one that this version does not know."""
    if node.op_type not in OPS:
        raise GraphError(f"operator {DOMAIN}::{node.op_type}: unknown, expected one of {', '.join(sorted(OPS))}.")
    return OPS[node.op_type]


def attributes(node: ir.Node) -> dict[str, int | float | str]:
    """The attributes of a node of ours, as Python values."""
    return {name: attribute.value for name, attribute in node.attributes.items()}


def check(
    operator: Operator,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    outputs: Sequence[ir.Value] = (),
) -> None:
    """Raise `GraphError` where a node's inputs or outputs, as far as they are known, are not what the spec says."""
    given = [None if value is None else _given(value) for value in inputs]
    operator.check(given, attributes)
    described = operator.outputs([None] * len(inputs), attributes)
    if len(outputs) > len(described):
        raise GraphError(f"{operator.name}: {len(outputs)} outputs, expected at most {len(described)}.")
    dtypes = {spec.name: each.dtype for spec, each in zip(operator.inputs, given, strict=True) if each is not None}
    for value, output in zip(outputs, described, strict=False):
        expected = output.dtype if output.like is None else dtypes.get(output.like)
        if value.dtype is not None and expected is not None and value.dtype.numpy().name != expected:
            raise GraphError(
                f"{operator.name}: output {output.name} is {value.dtype.numpy().name}, expected {expected}."
            )


def lengths(value: ir.Value) -> Shape | None:
    """The lengths as the graph states them: a number, a name or None; None where not even their number is known."""
    if value.shape is None:
        return None
    return tuple(length if isinstance(length, int) else length.value for length in value.shape)


def _given(value: ir.Value) -> Given:
    """A constant is what its tensor is, whatever else the graph says of it."""
    tensor = value.const_value
    if tensor is not None:
        return Given(tensor.dtype.numpy().name, tuple(tensor.shape.numpy()), constant_folding.known(value))
    dtype = None if value.dtype is None else value.dtype.numpy().name
    return Given(dtype, lengths(value))
