"""Linear layers in uniform groups: replace a MatMul or Gemm by the operator GroupMatMul."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio import interrupts
from intaglio.display.progress import track
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.weights.linear_layers import LayerWriter, LinearLayer, by_weight, linear_layers
from intaglio.graph_passes.weights.transposed import transposed
from intaglio.graph_passes.weights.uniform import Codes, Floats, Grid, squares, usable_group_size
from intaglio.plugins.bit_packing import WORD, pack


def grouped_layers(
    model: ir.Model, counts: Counts, skip: Sequence[str], group_size: int, tied: bool, branches: bool = False
) -> list[LinearLayer]:
    """Return the layers whose rows divide into groups: a multiple of 32 weights, at most `group_size` (0: whole rows).

    `counts` notes how many layers get smaller groups than `group_size`. Layers whose rows are not a multiple of 32 are
    left: padding them with zeros would require padding every input too, a copy at each run of the layer.
    `branches`: as for `linear_layers`.
    """
    layers = linear_layers(model, counts, skip, WORD, tied, branches)
    inputs = [layer.shape[1] for layer in layers]
    sizes = {length: usable_group_size(length, group_size) for length in sorted(set(inputs))}
    smaller = [f"{size} for {length} inputs" for length, size in sizes.items() if size < group_size]
    if smaller:
        number = sum(sizes[length] < group_size for length in inputs)
        counts.leave(
            f"group_size {group_size} does not divide the rows of {number} layer{'s' * (number > 1)}, "
            f"which have smaller groups: {', '.join(smaller)}"
        )
    return layers


def own_weights(layers: Sequence[LinearLayer], counts: Counts) -> list[LinearLayer]:
    """Return the layers that do not share their weight: a weight can only be optimised for one input."""
    groups = by_weight(layers)
    for group in groups:
        if len(group) > 1:
            counts.leave(f"{group[0].name}: {len(group)} layers use its weight, with different inputs")
    return [group[0] for group in groups if len(group) == 1]


def round_to_nearest(
    model: ir.Model,
    layers: Sequence[LinearLayer],
    grid_of: Callable[[Floats], Grid],
    activation_bits: int,
    counts: Counts,
    description: str,
) -> None:
    """Store each weight [N, K] on its grid, one after the other, with a progress bar named `description`."""
    writer = LayerWriter(model)
    groups = by_weight(layers)
    for group in track(groups, description, total=len(groups)):
        with interrupts.deferred():
            matrix = group[0].matrix()
            grid = grid_of(matrix)
            codes = grid.encode(matrix)
            count(counts, group[0], grid, squares(matrix, grid.decode(codes)))
            emit(writer, group, codes, grid, activation_bits)


def emit(writer: LayerWriter, layers: Sequence[LinearLayer], codes: Codes, grid: Grid, activation_bits: int) -> None:
    """Replace `layers`, which share one weight, by GroupMatMul nodes with these codes.

    packed: int32 [N, K·bits/32], the codes; scales: float32 [N, groups]; zero_points: uint8 [N, groups], omitted if
    all are 2**(bits - 1).
    """
    name, length = layers[0].name, codes.shape[1]
    constants: list[ir.Value | None] = [
        writer.constant(pack(codes, grid.bits), f"{name}.packed"),
        writer.constant(grid.scales, f"{name}.scales"),
    ]
    if grid.zero_points is not None:
        constants.append(writer.constant(grid.zero_points, f"{name}.zero_points"))
    group_size = length // grid.scales.shape[1]
    attributes = {"bits": grid.bits, "K": length, "group_size": group_size, "activation_bits": activation_bits}
    for layer in layers:
        layer.replace(writer, writer.product(layer, "GroupMatMul", [layer.x, *constants], **attributes))


def count(counts: Counts, layer: LinearLayer, grid: Grid, lost_and_whole: npt.NDArray[np.float64]) -> None:
    """Record one more weight: its compressed bytes, its bits per weight, and the error by its `squares`."""
    number = layer.shape[0] * layer.shape[1]
    zero_points = 0 if grid.zero_points is None else grid.zero_points.nbytes
    size = number * grid.bits // 8 + grid.scales.nbytes + zero_points
    counts.add("layers")
    counts.add("weights", number)
    counts.add("bytes", size)
    lost, whole = map(float, lost_and_whole)
    counts.layers[layer.name] = {"bits": 8 * size / number, "error": lost / (whole or 1.0)}


def set_weight(layer: LinearLayer, matrix: npt.NDArray[Any]) -> None:
    """Replace the weight of `layer` by `matrix` [N, K], possibly of another shape, in the old dtype and layout."""
    stored = np.ascontiguousarray(matrix, layer.dtype) if layer.transposed else transposed(matrix, layer.dtype)
    made = ir.tensor(stored, name=layer.weight.name)
    layer.weight.const_value, layer.weight.shape = made, ir.Shape(stored.shape)
    factor = layer.node.inputs[1]
    while factor is not None and factor is not layer.weight:  # a Transpose or Cast of the weight
        producer = factor.producer()
        assert producer is not None
        factor.shape = None
        factor = producer.inputs[0]
