"""Linear layers in uniform groups: the operator GroupMatMul in the place of a MatMul or Gemm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio import interrupts
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.weights.linear_layers import LayerWriter, LinearLayer, by_weight, linear_layers
from intaglio.graph_passes.weights.uniform import Codes, Floats, Grid, usable_group_size
from intaglio.plugins.bit_packing import WORD, pack
from intaglio.progress import track


def grouped_layers(
    model: ir.Model, counts: Counts, skip: Sequence[str], group_size: int, tied: bool, branches: bool = False
) -> list[LinearLayer]:
    """The layers whose rows divide into groups: of a multiple of 32 weights, at most `group_size` (0: whole rows).

    How many layers get smaller groups than asked for is noted in `counts`. Rows that are no multiple of 32 stay as
    they are: filled up with zeros they would need every input filled up too, a copy of it at each run of the layer.
    `branches`: as of `linear_layers`.
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
    """The layers that share their weight with no other: a weight can be chosen for one input only."""
    groups = by_weight(layers)
    for group in groups:
        if len(group) > 1:
            counts.leave(f"{group[0].name}: {len(group)} layers use its weight, with inputs of their own")
    return [group[0] for group in groups if len(group) == 1]


def round_to_nearest(
    model: ir.Model,
    layers: Sequence[LinearLayer],
    grid_of: Callable[[Floats], Grid],
    activation_bits: int,
    counts: Counts,
    description: str,
) -> None:
    """Store each weight [N, K] on its grid, one after the other, while a bar with `description` shows how many are."""
    writer = LayerWriter(model)
    groups = by_weight(layers)
    for group in track(groups, description, total=len(groups)):
        with interrupts.deferred():
            matrix = group[0].matrix()
            grid = grid_of(matrix)
            codes = grid.encode(matrix)
            count(counts, group[0], matrix, codes, grid)
            emit(writer, group, codes, grid, activation_bits)


def emit(writer: LayerWriter, layers: Sequence[LinearLayer], codes: Codes, grid: Grid, activation_bits: int) -> None:
    """Put GroupMatMuls with these weights in the place of `layers`, which have one weight.

    packed: int32 [N, K·bits/32], the codes; scales: float32 [N, groups]; zero_points: uint8 [N, groups], left out
    where all are 2**(bits - 1).
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


def count(counts: Counts, layer: LinearLayer, matrix: Floats, codes: Codes, grid: Grid) -> None:
    """Note one more weight: the bytes that it now takes, its bits per weight, and what rounding did to `matrix`.

    The error is Σ (weight - rounded)² / Σ weight².
    """
    zero_points = 0 if grid.zero_points is None else grid.zero_points.nbytes
    size = codes.size * grid.bits // 8 + grid.scales.nbytes + zero_points
    counts.add("layers")
    counts.add("weights", codes.size)
    counts.add("bytes", size)
    lost = grid.decode(codes)
    lost -= matrix
    whole = float(np.vdot(matrix, matrix))
    counts.layers[layer.name] = {"bits": 8 * size / codes.size, "error": float(np.vdot(lost, lost)) / (whole or 1.0)}


def set_weight(layer: LinearLayer, matrix: npt.NDArray[Any]) -> None:
    """Give `layer` another weight, perhaps of another shape, kept in the dtype and the order of the old one [N, K]."""
    stored = matrix if layer.transposed else matrix.T
    made = ir.tensor(np.ascontiguousarray(stored, layer.dtype), name=layer.weight.name)
    layer.weight.const_value, layer.weight.shape = made, ir.Shape(stored.shape)
    factor = layer.node.inputs[1]
    while factor is not None and factor is not layer.weight:  # what transposes or casts it follows
        producer = factor.producer()
        assert producer is not None
        factor.shape = None
        factor = producer.inputs[0]
