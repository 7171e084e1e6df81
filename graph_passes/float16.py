"""Float16: convert a graph from float32 to float16."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from intaglio.bundle.effect import Effect
from intaglio.bundle.half_precision import OutOfRange, half
from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.float32_nodes import (
    exact_nodes,
    has_no_half_form,
    log_probabilities,
    stated_dtype,
    takes_half,
)
from intaglio.graph_passes.front_end import STRUCTURE, front_end
from intaglio.graph_passes.graphs import (
    Names,
    all_graphs,
    all_nodes,
    all_values,
    has_subgraphs,
    infer_shapes,
    remove_if_dead,
)
from intaglio.runtime.sessions.step import EXIT_THRESHOLDS

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
CAST_OPSET, CAST_IR_VERSION = 13, 7  # of a graph that used no standard operators before


@dataclass(frozen=True)
class Float16(Pass):
    """Convert float32 to float16 everywhere: initializers, Constants, tensors and dtypes in attributes, values.

    1. Finite weights beyond ±65504 are clamped; nonzero numbers too close to 0 become the smallest subnormal.
    2. Operators, inputs and outputs without a float16 form (see `float32_nodes`), and nodes of other domains, stay
       float32 between Casts; so do the operators (by type) and nodes (by name) listed in `keep`.
    3. The graph's float32 inputs and outputs become float16; with `keep_io` they stay float32, and are cast.
    4. Calls of the model's functions are inlined first.
    5. Cos, Sin, Range and BitCast, and all that their inputs are computed from, stay float32: rotary positions of some
       thousand radians would be off by whole radians, ranges would have another length.
    6. So do the log-mel features of a recogniser (`front_end`), with the waveform that they are computed from, and
       log-probabilities that are an output of the graph (LogSoftmax), which a search adds up.

    LayerNormalization still computes mean and variance in float32 (`stash_type`). Raises `GraphError` for a decoder
    with an exit after every block, which compares states in float32, and if the dtype of a value of another domain's
    node is unknown.
    """

    name: ClassVar[str] = "float16"
    effect: ClassVar[Effect] = Effect.FLOAT16
    keep: tuple[str, ...] = ()
    keep_io: bool = False

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        if any(value.name == EXIT_THRESHOLDS.name for value in model.graph.inputs):
            raise GraphError(
                "float16: the decoder has an exit after every block, where states are compared in float32. "
                "Export its checkpoint with --dtype float16 instead."
            )
        if model.functions:
            calls = sum(node.op_identifier() in model.functions for node in all_nodes(model))
            InlinePass()(model)
            counts.add("inlined", calls)
        infer_shapes(model)
        nodes = all_nodes(model)
        if not any(value.dtype == FLOAT for value in all_values(model)):
            counts.leave("no float32 value in the graph")
            return
        present = {node.op_type for node in nodes} | {node.name for node in nodes}
        for name in self.keep:
            if name not in present:
                counts.leave(f"keep: no node has the type or the name {name!r}")
        _Conversion(model, nodes, self, counts).run()


class _Conversion:
    """One run of the pass."""

    def __init__(self, model: ir.Model, nodes: list[ir.Node], options: Float16, counts: Counts):
        self.model, self.nodes, self.options, self.counts = model, nodes, options, counts
        self.names = Names(model)
        self.out_of_range = OutOfRange()
        self.floats = {value for value in all_values(model) if value.dtype == FLOAT}
        features, exact, log_probs = front_end(model), exact_nodes(nodes), log_probabilities(nodes)
        self.computed_in_single = exact | features | log_probs
        # Places that stay float32: (node, index of an input), and (node, index of an output).
        self.single_inputs = [(node, index) for node in nodes for index in self._single(node, node.inputs, "inputs")]
        self.single_outputs = [(node, index) for node in nodes for index in self._single(node, node.outputs, "outputs")]
        self.kept = self._kept_constants() | {node.outputs[0] for node in log_probs}
        self.kept |= self._inputs_of(features | exact_nodes(nodes, ["BitCast"]))
        self.singles: dict[ir.Value, ir.Value] = {}  # a float16 value -> the same value in float32, if there is one
        self.casts: list[ir.Node] = []

    def run(self) -> None:
        """Convert the model."""
        graph = self.model.graph
        single_io = [*graph.inputs, *graph.outputs] if self.options.keep_io else []
        outputs = [index for index, value in enumerate(graph.outputs) if value in self.floats]
        self._initializers(single_io)
        for node in self.nodes:
            if not self._stays(node) and self.kept.isdisjoint(node.outputs):
                self._attributes(node)
        for value in self.floats - self.kept:
            _set_element(value, HALF)
        for node, index in self.single_outputs:
            self._cast_output(node.outputs[index])
        if self.options.keep_io:
            for value in [value for value in graph.inputs if value in self.floats]:
                self._cast_graph_input(value)
        for node, index in self.single_inputs:
            self._cast_input(node, index)
        if self.options.keep_io:
            for index in outputs:
                self._cast_graph_output(index)
        self._count_casts()
        self.counts.reasons += self.out_of_range.reasons()

    def _count_casts(self) -> None:
        for node in self.casts:
            remove_if_dead(node)
        if casts := sum(node.graph is not None for node in self.casts):
            self.counts.add("casts", casts)
            if "" not in self.model.opset_imports:  # a graph of other domains' operators alone
                self.model.opset_imports[""] = CAST_OPSET
                self.model.ir_version = max(self.model.ir_version or 0, CAST_IR_VERSION)

    def _single(self, node: ir.Node, values: Sequence[ir.Value | None], side: str) -> list[int]:
        """Return the indices of the node's inputs or outputs that stay float32."""
        schema = self._schema(node)
        if schema is None and not has_subgraphs(node):
            for value in values:
                if value is not None and value.name and value.dtype is None:
                    raise GraphError(
                        f"float16: the dtype of {value.name!r} at {node.domain}.{node.op_type} {node.name!r} is not "
                        "known. State it in the graph's value_info."
                    )
        floats = [index for index, value in enumerate(values) if value in self.floats]
        if self._stays(node):
            return floats
        return [index for index in floats if schema is not None and not takes_half(schema, side, index)]

    def _schema(self, node: ir.Node) -> onnx.defs.OpSchema | None:
        version = self.model.opset_imports.get(node.domain, 1)
        known = onnx.defs.has(node.op_type, version, node.domain)
        return onnx.defs.get_schema(node.op_type, version, node.domain) if known else None

    def _stays(self, node: ir.Node) -> bool:
        """Whether the node computes in float32; for a node with a body, the nodes of the body decide."""
        named = node.op_type in self.options.keep or node.name in self.options.keep
        if named and has_subgraphs(node):
            self.counts.leave(f"keep: {node.op_type} {node.name!r} has a body; name the nodes in it instead")
        if has_subgraphs(node):
            return False
        single = named or node in self.computed_in_single or self._schema(node) is None
        return single or has_no_half_form(node)

    def _kept_constants(self) -> set[ir.Value]:
        """Return the initializers and Constants used only in float32 places; they do not change."""
        constants = [value for graph in all_graphs(self.model) for value in graph.initializers.values()]
        constants += [node.outputs[0] for node in self.nodes if node.op_type == "Constant" and node.domain == ""]
        places = set(self.single_inputs)
        return {
            value
            for value in constants
            if value.uses() and not value.is_graph_input() and not value.is_graph_output()
            if all((node, index) in places for node, index in value.uses())
        }

    def _inputs_of(self, nodes: set[ir.Node]) -> set[ir.Value]:
        """Return the graph's inputs whose numbers only `nodes` use, such as a waveform."""
        inputs = self.floats.intersection(self.model.graph.inputs)
        users = {value: {node for node, _ in value.uses() if node.op_type not in STRUCTURE} for value in inputs}
        return {value for value, reading in users.items() if reading and reading <= nodes}

    def _initializers(self, single_io: list[ir.Value]) -> None:
        for graph in all_graphs(self.model):
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is None or tensor.dtype != FLOAT or value in self.kept:
                    continue
                if value.is_graph_input() and value in single_io:
                    continue  # the default of an input
                value.const_value = half(tensor, self.out_of_range)
                self.counts.add("weights")

    def _attributes(self, node: ir.Node) -> None:
        """Convert the tensors and dtypes in the node's attributes, explicit or by default."""
        for name, attribute in list(node.attributes.items()):
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == FLOAT:
                node.attributes[name] = ir.AttrTensor(name, half(attribute.as_tensor(), self.out_of_range))
                self.counts.add("constants")
            elif node.op_type == "Cast" and name == "to" and attribute.as_int() == FLOAT:
                node.attributes[name] = ir.AttrInt64(name, HALF)
            elif node.op_type == "Constant" and name in ("value_float", "value_floats"):
                numbers = np.array(attribute.value, np.float32)
                del node.attributes[name]
                node.attributes["value"] = ir.AttrTensor("value", half(ir.tensor(numbers), self.out_of_range))
                self.counts.add("constants")
            elif attribute.type == ir.AttributeType.TYPE_PROTO and attribute.value.type.dtype == FLOAT:
                stated = copy.deepcopy(attribute.value)
                stated.type.dtype = HALF
                node.attributes[name] = ir.Attr(name, ir.AttributeType.TYPE_PROTO, stated)
        if node.op_type == "SequenceEmpty" and stated_dtype(node) in (None, FLOAT):
            node.attributes["dtype"] = ir.AttrInt64("dtype", HALF)
        if node.op_type == "ConstantOfShape" and "value" not in node.attributes:
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1, np.float16)))

    def _cast(self, value: ir.Value, to: ir.DataType, name: str) -> ir.Value:
        """Insert a Cast of `value` right after its producer, so that it is visible wherever `value` is."""
        if not isinstance(value.type, ir.TensorType):
            raise GraphError(
                f"float16: {value.name!r} of type {value.type} is between operators of float16 and of float32, and no "
                "Cast converts it. Leave float16 out, or change that part of the graph."
            )
        name_of_node = f"{value.name}_to_{to.name.lower()}"
        node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", to)], num_outputs=1, name=name_of_node)
        producer, graph = value.producer(), value.graph
        assert graph is not None
        if producer is not None:
            graph.insert_after(producer, node)
        else:
            graph.insert_before(graph[0], node)
        self.casts.append(node)
        result = node.outputs[0]
        result.name, result.type, result.shape = name, value.type, value.shape
        _set_element(result, to)
        return result

    def _cast_output(self, output: ir.Value) -> None:
        """Cast the output of a float32 place; the cast value takes over its name."""
        if output in self.kept:
            return
        _set_element(output, FLOAT)
        result = self._cast(output, HALF, "")
        cast = result.producer()
        assert cast is not None
        name = str(output.name)
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        cast.replace_input_with(0, output)
        output.name = self.names.new(f"{name}_float32")
        result.name = name
        self.singles[result] = output

    def _cast_input(self, node: ir.Node, index: int) -> None:
        """Cast the input of a float32 place, or use its float32 original."""
        value = node.inputs[index]
        if value is None or value in self.kept:
            return
        if value not in self.singles:
            self.singles[value] = self._cast(value, FLOAT, self.names.new(f"{value.name}_float32"))
        node.replace_input_with(index, self.singles[value])

    def _cast_graph_input(self, value: ir.Value) -> None:
        uses = value.uses()
        _set_element(value, FLOAT)
        if not uses:
            return
        result = self._cast(value, HALF, self.names.new(f"{value.name}_float16"))
        for node, index in uses:
            node.replace_input_with(index, result)
        self.singles[result] = value

    def _cast_graph_output(self, index: int) -> None:
        """Return float32 under the output's name; a float16 value with other uses gets another name."""
        outputs = self.model.graph.outputs
        value = outputs[index]
        if value.dtype == FLOAT:
            return  # an input that is returned unchanged
        name = str(value.name)
        single = self.singles.get(value)
        if single is None:
            single = self._cast(value, FLOAT, "")
        outputs[index] = single
        value.name = self.names.new(f"{name}_float16")
        single.name = name


def _set_element(value: ir.Value, dtype: ir.DataType) -> None:
    """Change the dtype without changing the type object, which other values may share."""
    value.type = copy.deepcopy(value.type)
    value.dtype = dtype
