"""Read nodes of our operators: operator, attributes, checks of inputs; state all their outputs; replace a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from intaglio.errors import EngineError, GraphError
from intaglio.plugins import constant_folding
from intaglio.plugins.contract import Made, Operator
from intaglio.plugins.cuda.launching.geometry import Length, Tensor
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
    given = [
        None if value is None else _given(value, None if spec.known_values else constant_folding.LARGEST)
        for spec, value in zip(operator.inputs, inputs, strict=True)
    ]
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


class OurNode(NamedTuple):
    """What one of our nodes says."""

    operator: Operator
    inputs: list[ir.Value | None]  # every input of the operator that the node computes with, None for one left out
    attributes: dict[str, Any]  # all of the operator's


def read(node: ir.Node) -> OurNode:
    """Read one of our nodes. Raises `GraphError` for one that does not match its operator."""
    operator = operator_of(node)
    complete = operator.complete(attributes(node))
    inputs = operator.padded(node.inputs)
    check(operator, inputs, complete, node.outputs)
    unused = {
        name
        for group in operator.groups
        if any(complete[attribute] == value for attribute, value in group.unused)
        for name in group.names
    }
    used = [None if spec.name in unused else value for spec, value in zip(operator.inputs, inputs, strict=True)]
    return OurNode(operator, used, complete)


def tensors(
    operator: Operator, inputs: Sequence[ir.Value | None], length_of: Callable[[int, int], Length]
) -> list[Tensor | None]:
    """The inputs of a node for its launch; `length_of(input, axis)` is used where the graph states no number.

    Raises `GraphError` for an unknown rank, and for an unknown width if it selects the kernel.
    """
    found: list[Tensor | None] = []
    for index, (spec, value) in enumerate(zip(operator.inputs, inputs, strict=True)):
        if value is None:
            found.append(None)
            continue
        shape = lengths(value)
        if shape is None:
            raise GraphError(f"{operator.name}: the rank of {spec.name} ({value.name}) is not known. Infer its shape.")
        if spec.known_width and not isinstance(shape[-1], int):
            raise GraphError(f"{operator.name}: the width of {spec.name} ({value.name}) is unknown. Make it constant.")
        numbers = [each if isinstance(each, int) else length_of(index, axis) for axis, each in enumerate(shape)]
        found.append(Tensor(numbers, spec.dtypes[0] if value.dtype is None else value.dtype.numpy().name))
    return found


def add_outputs(node: ir.Node, described: Sequence[Made], inputs: Mapping[str, ir.Value | None]) -> None:
    """Add all outputs of the operator to the node, with their dtypes; `inputs` by name."""
    present = len(node.outputs)
    node.resize_outputs(len(described))
    for index, (output, description) in enumerate(zip(node.outputs, described, strict=True)):
        if index >= present:
            output.name = f"{node.outputs[0].name}_{description.name}"
            output.shape = ir.Shape(description.shape)
        source = inputs[description.like] if description.like else None
        known = None if source is None else source.dtype
        output.dtype = known or ir.DataType.from_numpy(np.dtype(description.dtype))


def lengths(value: ir.Value) -> Shape | None:
    """The lengths stated by the graph, each a number, a name or None; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(length if isinstance(length, int) else length.value for length in value.shape)


def _given(value: ir.Value, largest: int | None) -> Given:
    """The known properties of a value; those of a constant come from its tensor, not from the graph's annotations.

    Its values are among them up to `largest` elements; None: any number.
    """
    tensor = value.const_value
    if tensor is not None:
        return Given(tensor.dtype.numpy().name, tuple(tensor.shape.numpy()), constant_folding.known(value, largest))
    dtype = None if value.dtype is None else value.dtype.numpy().name
    return Given(dtype, lengths(value))


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Replace all uses of `old` by `new`, which takes its name and type; `old` loses its name."""
    name, new.type, new.shape = old.name, old.type, old.shape
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None
    new.name = name
