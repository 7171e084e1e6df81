"""The shapes of a node's outputs where lengths are symbols: TensorRT's, or expressions of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.plugins.contract import Operator
from intaglio.plugins.cuda.launching.geometry import Length, broadcast_length


def output_shapes(
    operator: Operator, inputs: Sequence[Sequence[Length] | None], attributes: Mapping[str, Any]
) -> list[tuple[Length, ...]]:
    """The shape of every output, for inputs of these shapes (None for one left out) and complete attributes.

    In the spec's shape inference, symbols are represented by unique names. Of two that broadcast, it takes the first,
    which may be 1 when the node runs. So each one's output is inferred again with 1 in its place: a symbol that comes
    then is the length in that case.
    """
    symbols: dict[str, Length] = {}
    shapes: list[tuple[int | str, ...] | None] = []
    for index, lengths in enumerate(inputs):
        if lengths is None:
            shapes.append(None)
            continue
        named = {f"{index}.{axis}": each for axis, each in enumerate(lengths)}
        symbols |= named
        shapes.append(tuple(each if isinstance(each, int) else name for name, each in named.items()))

    def length(output: int, axis: int, ones: tuple[str, ...] = ()) -> Length:
        given = [each and tuple(1 if name in ones else name for name in each) for each in shapes]
        found = operator.outputs(given, attributes)[output].shape[axis]
        if isinstance(found, str):
            return broadcast_length(symbols[found], length(output, axis, (*ones, found)))
        return 1 if ones and found is None else found  # None: no shape with a 1 there

    return [
        tuple(length(index, axis) for axis in range(len(output.shape)))
        for index, output in enumerate(operator.outputs(shapes, attributes))
    ]
