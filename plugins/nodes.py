"""Read nodes of our operators: the operator, its attributes, and checks of its inputs."""

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
    """Convert errors about a node into a `GraphError` that names it."""
    name = node.name or f"with output {node.outputs[0].name}"
    try:
        yield
    except (EngineError, GraphError) as error:
        raise GraphError(f"node {name}: {error}") from error


def operator_of(node: ir.Node) -> Operator:
    """The operator of one of our nodes. Raises `GraphError` for one that this version does not know."""
    if node.op_type not in OPS:
        raise GraphError(f"operator {DOMAIN}::{node.op_type}: unknown, expected one of {', '.join(sorted(OPS))}.")
    return OPS[node.op_type]


def attributes(node: ir.Node) -> dict[str, int | float | str]:
    """The attributes of one of our nodes, as Python values."""
    return {name: attribute.value for name, attribute in node.attributes.items()}


def check(
    operator: Operator,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    outputs: Sequence[ir.Value] = (),
) -> None:
    """Raise `GraphError` if a node's inputs or outputs, as far as known, do not match the spec."""
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
    """The lengths stated by the graph, each a number, a name or None; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(length if isinstance(length, int) else length.value for length in value.shape)


def _given(value: ir.Value) -> Given:
    """The known properties of a value; those of a constant come from its tensor, not from the graph's annotations."""
    tensor = value.const_value
    if tensor is not None:
        return Given(tensor.dtype.numpy().name, tuple(tensor.shape.numpy()), constant_folding.known(value))
    dtype = None if value.dtype is None else value.dtype.numpy().name
    return Given(dtype, lengths(value))
