"""RaiseOpset: convert a graph from another tool to the opset version that the other passes expect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import Names, add_constant_before, all_nodes, infer_shapes, opset, rank, replace_value
from intaglio.graph_passes.opsets.old_opsets import check_equal, convert

OLDEST = 11  # opset; older graphs are converted by ONNX
NEWEST = onnx.defs.onnx_opset_version()

Adapt = Callable[[ir.Node, Names], None]


@dataclass(frozen=True)
class RaiseOpset(Pass):
    """Raise the standard opset of the graph, its subgraphs and its functions to `version`.

    Since opset 11 most new versions of an operator only added types, inputs and attributes, and the node does not
    change. `CHANGES` lists the others, with the conversion of a node. Weights, names and nodes of other domains are not
    changed. An older graph is converted by ONNX first, and compared with the original (`old_opsets`). Raises
    `GraphError` if that fails, or for a node that has no newer form.
    """

    name: ClassVar[str] = "raise_opset"
    effect: ClassVar[Effect] = Effect.EXACT
    version: int = 23

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> ir.Model:
        if not OLDEST <= self.version <= NEWEST:
            raise GraphError(f"raise_opset: got version {self.version}, expected {OLDEST} to {NEWEST}.")
        start, newest, original = opset(model), onnx.defs.onnx_opset_version(), None
        if start > newest:
            raise GraphError(f"raise_opset: the graph has opset {start}, expected at most {newest}. Re-export it.")
        if 0 < start < OLDEST:
            original, model = model, convert(model, OLDEST)
            counts.add("opset", OLDEST - start)
            start = OLDEST
        if start >= self.version:
            counts.leave(f"the graph has opset {start} already, {self.version} was requested")
        elif start == 0:
            counts.leave("the graph uses no standard operators")
        else:
            infer_shapes(model)
            names = Names(model)
            _raise(all_nodes(model), start, self.version, names, counts)
            model.opset_imports[""] = self.version
        for function in model.functions.values():
            if 0 < (start := function.opset_imports.get("", 0)) < self.version:
                _raise(list(ir.traversal.RecursiveGraphIterator(function)), start, self.version, Names(model), counts)
                function.opset_imports[""] = self.version
        needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset(model))] if start else [])
        model.ir_version = max(model.ir_version or 0, needed)
        if original is not None:
            check_equal(original, model)
        return model


def _raise(nodes: Iterable[ir.Node], start: int, version: int, names: Names, counts: Counts) -> None:
    for node in nodes:
        if node.domain != "":
            continue
        if not onnx.defs.has(node.op_type, version, "") or onnx.defs.get_schema(node.op_type, version, "").deprecated:
            raise GraphError(
                f"raise_opset: {node.op_type} {node.name!r} is not in opset {version}. "
                "Re-export the graph without this operator."
            )
        for types, first, adapt, applies in CHANGES:
            if node.op_type in types and start < first <= version and applies(node):
                _refuse_references(node)
                adapt(node, names)
                counts.add(node.op_type)
    counts.add("opset", version - start)


def _refuse_references(node: ir.Node) -> None:
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        raise GraphError(
            f"raise_opset: {node.op_type} {node.name!r} takes its attributes from its function. "
            "Re-export the graph with a newer opset, or without functions."
        )


def _attribute_to_input(name: str, index: int) -> Adapt:
    """Move a list of integers from the attribute `name` to the input `index`."""

    def adapt(node: ir.Node, names: Names) -> None:
        numbers = np.array(node.attributes.pop(name).as_ints(), np.int64)
        _add_input(node, index, numbers, names.new(f"{node.outputs[0].name}_{name}"))

    return adapt


def _signal_axis(node: ir.Node, names: Names) -> None:
    """Move the axis to an input, which has another default."""
    axis = node.attributes.pop("axis").as_int() if "axis" in node.attributes else 1
    _add_input(node, 2, np.array(axis, np.int64), names.new(f"{node.outputs[0].name}_axis"))


def _add_input(node: ir.Node, index: int, array: npt.NDArray[np.int64], name: str) -> None:
    node.resize_inputs(max(len(node.inputs), index + 1))
    node.replace_input_with(index, add_constant_before(node, array, name))


def _softmax(node: ir.Node, names: Names) -> None:
    """Keep the old meaning: until 12, all axes from `axis` (default 1) on were one; since 13 only `axis` counts."""
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    if axis == -1 or (rank(x) is not None and axis == (rank(x) or 0) - 1):
        node.attributes.add(ir.AttrInt64("axis", -1))
        return
    shape = _insert_before(node, "Shape", [x], names.new(f"{y.name}_shape"))
    rows = _insert_before(node, "Flatten", [x], names.new(f"{y.name}_rows"), axis=axis)
    result = _insert_before(node, node.op_type, [rows], names.new(f"{y.name}_flat"), axis=-1)
    replace_value(y, "Reshape", [result, shape], {})


def _insert_before(node: ir.Node, op_type: str, inputs: list[ir.Value], output: str, **attributes: int) -> ir.Value:
    made = ir.node(op_type, inputs, attributes)
    assert node.graph is not None
    node.graph.insert_before(node, made)
    made.outputs[0].name = output
    return made.outputs[0]


def _split_evenly(node: ir.Node, names: Names) -> None:
    node.attributes.add(ir.AttrInt64("num_outputs", len(node.outputs)))


def _drop_ratio(node: ir.Node, names: Names) -> None:
    """Drop the ratio: in inference Dropout returns its input."""
    node.attributes.pop("ratio")


def _drop_training_outputs(node: ir.Node, names: Names) -> None:
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        raise GraphError(
            f"raise_opset: BatchNormalization {node.name!r} outputs its running statistics, as in training. "
            "Export the model in inference mode."
        )
    node.resize_outputs(1)


def _name_grid_sample_mode(node: ir.Node, names: Names) -> None:
    """Rename the mode; the default was bilinear."""
    old = node.attributes["mode"].as_string() if "mode" in node.attributes else "bilinear"
    node.attributes.add(ir.AttrString("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(old, old)))


def _keep_region_coordinates(node: ir.Node, names: Names) -> None:
    """Keep the old coordinates; the new attribute's default is shifted by half a pixel."""
    node.attributes.add(ir.AttrString("coordinate_transformation_mode", "output_half_pixel"))


def _refuse_group_normalization(node: ir.Node, names: Names) -> None:
    raise GraphError(
        f"raise_opset: GroupNormalization {node.name!r} had one weight per group, since opset 21 one per channel. "
        "Re-export the graph with opset 21 or later."
    )


def _has(attribute: str) -> Callable[[ir.Node], bool]:
    return lambda node: attribute in node.attributes


def _always(node: ir.Node) -> bool:
    return True


REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod SumSquare"

# Node types, the first opset with the new form, the conversion, and the condition for it.
# Lines of the same operator are in the order of opsets.
CHANGES: list[tuple[set[str], int, Adapt, Callable[[ir.Node], bool]]] = [
    ({"Dropout"}, 12, _drop_ratio, _has("ratio")),
    ({"Softmax", "LogSoftmax", "Hardmax"}, 13, _softmax, _always),
    ({"Squeeze", "Unsqueeze", "ReduceSum"}, 13, _attribute_to_input("axes", 1), _has("axes")),
    ({"Split"}, 13, _attribute_to_input("split", 1), _has("split")),
    ({"BatchNormalization"}, 14, _drop_training_outputs, lambda node: len(node.outputs) > 1),
    ({"RoiAlign"}, 16, _keep_region_coordinates, _always),
    ({f"Reduce{kind}" for kind in REDUCTIONS.split()}, 18, _attribute_to_input("axes", 1), _has("axes")),
    ({"Split"}, 18, _split_evenly, lambda node: len(node.inputs) < 2 or node.inputs[1] is None),
    ({"DFT"}, 20, _signal_axis, _always),
    ({"GridSample"}, 20, _name_grid_sample_mode, _always),
    ({"GroupNormalization"}, 21, _refuse_group_normalization, _always),
]
