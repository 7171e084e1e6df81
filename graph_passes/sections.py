"""The part of a value that a Slice, a Split or a Gather takes."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from intaglio.graph_passes.graphs import constant, integers


@dataclass(frozen=True)
class Section:
    """`source`, from `start` to before `stop` along `axis`, which is counted from the front; `dropped`: it is gone."""

    source: ir.Value
    axis: int
    start: int
    stop: int
    dropped: bool = False


def section(value: ir.Value) -> Section | None:
    """Return the section of another value that `value` is; None for anything else, and for unknown lengths."""
    node = value.producer()
    source = None if node is None or not node.inputs else node.inputs[0]
    if node is None or node.domain != "" or source is None or source.shape is None:
        return None
    shape = [length if isinstance(length, int) else None for length in source.shape]
    match node.op_type:
        case "Slice":
            starts, ends, axes, steps = (_numbers(node, index) for index in range(1, 5))
            if starts is None or ends is None or axes is None or len(axes) != 1 or (steps or [1]) != [1]:
                return None
            axis, length = axes[0] % len(shape), shape[axes[0]]
            return None if length is None else Section(source, axis, *slice(starts[0], ends[0]).indices(length)[:2])
        case "Split":
            axis = node.attributes.get_int("axis", 0) % len(shape)
            lengths = integers(node, "split", 1) or _equal_parts(shape[axis], len(node.outputs))
            place = node.outputs.index(value)
            return None if lengths is None else Section(source, axis, sum(lengths[:place]), sum(lengths[: place + 1]))
        case "Gather":
            index, axis = constant(node.inputs[1]), node.attributes.get_int("axis", 0) % len(shape)
            length = shape[axis]
            if index is None or len(index.shape) or length is None:
                return None
            start = int(index.numpy()) % length
            return Section(source, axis, start, start + 1, dropped=True)
    return None


def _numbers(node: ir.Node, index: int) -> list[int] | None:
    tensor = constant(node.inputs[index]) if index < len(node.inputs) else None
    return None if tensor is None else [int(number) for number in tensor.numpy().reshape(-1)]


def _equal_parts(length: int | None, count: int) -> list[int] | None:
    """Return the lengths of parts of which only the last may be shorter."""
    if length is None:
        return None
    each = -(-length // count)
    return [each] * (count - 1) + [length - each * (count - 1)]
