"""The weights of a decoder's graph under the names that its checkpoint has for them.

Initializers are named after the checkpoint's tensors, and the passes keep these names:

    <name>, <name>_transposed                                     in floating point
    <path>.packed, .scales, .zero_points, or <path>.weight.packed, …  of GroupMatMul, and of rows that are looked up

Products that transformers joins while it loads a checkpoint, the gate and up projections of an expert, are cut again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.formats import StoredTensor
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, Groups, rows_of
from intaglio.exporters.files.computed_tensor import ComputedTensor
from intaglio.plugins.group_matmul.look_up import PACKED, Codes, codes_looked_up
from intaglio.plugins.group_matmul.minimums import MINIMUMS
from intaglio.plugins.registry import DOMAIN

PRODUCT, DEQUANTIZE = "GroupMatMul", "DequantizeLinear"
TRANSPOSED, WEIGHT, HEAD = "_transposed", ".weight", "lm_head.weight"
JOINT = ".gate_up_proj"  # an expert's first two products, which a traced graph has in one
PARAMETERS = (WEIGHT, ".bias", ".sinks", JOINT)  # the ends of names; other constants follow from config.json
JOINED = re.compile(r"(.*)\.experts\.(\d+)\.gate_up_proj\.weight")
CUT = {"w2": ("w1", "w3"), "down_proj": ("gate_proj", "up_proj")}  # an expert's last product -> its first two


@dataclass(frozen=True)
class GraphWeights:
    """The weights by name, unread: `GroupedWeight`s, and others as float32; and the names of the tables among them."""

    tensors: dict[str, StoredTensor]
    tables: frozenset[str]  # whose rows are looked up
    tied: bool  # whether the head multiplies by the codes of a table

    @property
    def grouped(self) -> dict[str, GroupedWeight]:
        """The weights of layers that are quantised, by the paths of the layers."""
        return {
            name.removesuffix(WEIGHT): weight
            for name, weight in self.tensors.items()
            if isinstance(weight, GroupedWeight) and name not in self.tables
        }

    @property
    def float_layers(self) -> list[str]:
        """The paths of the linear layers in floating point, with that of a head that is tied."""
        found = [
            name.removesuffix(WEIGHT)
            for name, weight in self.tensors.items()
            if isinstance(weight, ComputedTensor) and len(weight.shape) == 2 and name.endswith(WEIGHT)
            if name not in self.tables
        ]
        return found if HEAD in self.tensors else [*found, HEAD.removesuffix(WEIGHT)]


def graph_weights(model: ir.Model) -> GraphWeights:
    """The weights of a graph. Raises `SourceError` for weights that are stored in another form.

    A head that has codes of its own, while the embedding that it is tied to has none, is called `HEAD`, and so is one
    that has the embedding's codes.
    """
    tables, tied = set[str](), False
    found: dict[str, StoredTensor] = {}
    for name, value in model.graph.initializers.items():
        plain = name.removesuffix(TRANSPOSED)
        if plain.endswith(PARAMETERS) and value.dtype is not None and value.dtype.is_floating_point():
            found[plain + WEIGHT if plain.endswith(JOINT) else plain] = _floats(value, plain != name)
    for node in model.graph.all_nodes():
        if (node.domain == DOMAIN and node.op_type != PRODUCT) or node.op_type == DEQUANTIZE:
            raise _not_grouped(node)
        if node.op_type == PRODUCT:
            name = _stem(node.inputs[1], ".packed")
            name = name if name.endswith(WEIGHT) else name + WEIGHT
            tied = tied or name in tables
            found[HEAD if name in tables or isinstance(found.get(name), ComputedTensor) else name] = _product(
                model, node
            )
        elif (codes := codes_looked_up(node)) is not None:
            table = _stem(node.inputs[0], PACKED)
            found[table] = _look_up(model, table, codes)
            tables.add(table)
        elif node.op_type == "Gather" and (table := _stem(node.inputs[0], "")) in model.graph.initializers:
            tables.add(table)
    return GraphWeights(dict(_cut(found)), frozenset(tables), tied)


def _stem(value: ir.Value | None, ending: str) -> str:
    assert value is not None
    return str(value.name).removesuffix(ending)


def _not_grouped(node: ir.Node) -> SourceError:
    stored = next((str(each.name) for each in node.inputs[1:] if each is not None and each.is_initializer()), "")
    layer = stored.rpartition(".")[0] or str(node.name)
    return SourceError(
        f"{layer}: stored for {node.op_type}, and only weights in groups ({PRODUCT}: rtn, gptq, awq, int8-absmax) and "
        "in floating point can be written. Compress the bundle with one of these recipes."
    )


def array_of(value: ir.Value | None) -> npt.NDArray[Any]:
    """A copy of an initializer's numbers; what is mapped for it is released."""
    tensor = value.const_value if value is not None else None
    assert tensor is not None
    array = np.array(tensor.numpy())
    if isinstance(tensor, ir.ExternalTensor):
        tensor.release()
    return array


def _lengths(value: ir.Value | None) -> tuple[int, ...]:
    assert value is not None and value.const_value is not None
    return tuple(int(length) for length in value.const_value.shape.numpy())


def _floats(value: ir.Value, transposed: bool) -> ComputedTensor:
    shape = _lengths(value)

    def read() -> Any:
        import torch

        array = array_of(value).astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(array.T if transposed else array))

    return ComputedTensor(shape[::-1] if transposed else shape, read)


def _product(model: ir.Model, node: ir.Node) -> GroupedWeight:
    x, packed, scales, *rest = node.inputs
    bits, depth, size = (node.attributes[name].as_int() for name in ("bits", "K", "group_size"))
    zeros, levels = [*rest, None, None][:2]
    minimums = model.graph.initializers.get(f"{_stem(packed, '.packed')}.{MINIMUMS}")
    sorts = x.producer() if x is not None else None
    order = sorts.inputs[1] if sorts is not None and sorts.op_type == "Gather" else None

    read = partial(_groups, packed, scales, zeros, minimums, bits)
    sorted_by = array_of(order) if order is not None and order.is_initializer() and order.name else None
    table = None if levels is None else array_of(levels)
    return GroupedWeight((_lengths(packed)[0], depth), bits, size, read, sorted_by, minimums is not None, table)


def _look_up(model: ir.Model, name: str, codes: Codes) -> GroupedWeight:
    packed, scales, zeros, minimums, levels = (
        model.graph.initializers.get(f"{name}.{kind}")
        for kind in ("packed", "scales", "zero_points", MINIMUMS, "levels")
    )
    table = None if levels is None else array_of(levels)
    size = codes.width // _lengths(scales)[1]
    read = partial(_groups, packed, scales, zeros, minimums, codes.bits)
    shape = _lengths(packed)[0], codes.width
    return GroupedWeight(shape, codes.bits, size, read, None, minimums is not None, table)


def _groups(
    packed: ir.Value | None, scales: ir.Value | None, zeros: ir.Value | None, minimums: ir.Value | None, bits: int
) -> Groups:
    factors = array_of(scales).astype(np.float32)
    middles = np.full(factors.shape, 2 ** (bits - 1), np.uint8) if zeros is None else array_of(zeros)
    lowest = None if minimums is None else np.ascontiguousarray(array_of(minimums).T)
    return Groups(array_of(packed), factors, middles, lowest)


def _cut(weights: Mapping[str, StoredTensor]) -> Iterator[tuple[str, StoredTensor]]:
    """The weights, those of joined products by their halves, which are named like the last product of their expert."""
    for name, weight in weights.items():
        joined = JOINED.fullmatch(name)
        names = _halves(weights, *joined.groups()) if joined else None
        if names is None:
            yield name, weight
            continue
        half = weight.shape[0] // 2
        for each, part in zip(names, (slice(0, half), slice(half, None)), strict=True):
            if isinstance(weight, GroupedWeight):
                yield each, rows_of(weight, part)
            else:
                yield each, ComputedTensor((half, weight.shape[1]), _rows(weight, part))


def _halves(weights: Mapping[str, StoredTensor], module: str, expert: str) -> tuple[str, str] | None:
    """The names of the two halves; None where the expert's last product has no name that tells them."""
    block = module.rpartition(".")[0]
    for last, firsts in CUT.items():
        ending = f".experts.{expert}.{last}{WEIGHT}"
        if found := next((name for name in weights if name.startswith(f"{block}.") and name.endswith(ending)), None):
            stem = found.removesuffix(f"{last}{WEIGHT}")
            return f"{stem}{firsts[0]}{WEIGHT}", f"{stem}{firsts[1]}{WEIGHT}"
    return None


def _rows(weight: StoredTensor, rows: slice) -> Callable[[], Any]:
    return lambda: weight.tensor[rows]
