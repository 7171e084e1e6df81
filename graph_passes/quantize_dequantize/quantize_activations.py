"""QuantizeActivations: round the activations of an encoder to calibrated integers (Q/DQ form)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.calibration.activation_statistics import calibrated
from intaglio.graph_passes.calibration.thresholds import threshold
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant
from intaglio.graph_passes.quantize_dequantize.quantized import LAYOUT, Writer, channel_factors, quantized
from intaglio.graph_passes.quantize_dequantize.region import activations, is_embedding, model_region
from intaglio.graph_passes.quantize_dequantize.residual_streams import ResidualStream, residual_streams
from intaglio.plugins.integer_math import gelu_inner_scale, gelu_out_scale

FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16}
PRODUCTS = {"MatMul"}
LONGEST = 2**15  # rows of such a weight
# Operators that use their input without rounding.
EXACT = {"Softmax", "Expand", "QuantizeLinear", "DequantizeLinear", *LAYOUT}


@dataclass(frozen=True)
class QuantizeActivations(Pass):
    """Insert QuantizeLinear → DequantizeLinear, with static symmetric scales, at the activations of the encoder.

    1. 8 bits before every matrix product, on both sides where both are activations.
    2. `where="everything"`: 16 bits before every other operator (sums of two activations, Gelu, LayerNormalization,
       and operators without an integer form, so that only these stay in floating point), and on the outputs of the
       encoder. `where="products"`: nothing else (Q/DQ INT8 for TensorRT).
    3. Scales are symmetric, but for a GELU before linear layers alone, with "everything": its results end at -0.17, and
       a zero point leaves nearly all of the 8 bits to those above. (TensorRT's own INT8 has no zero points.)
    4. Reshape, Transpose and a product with a scalar do not change the integers of an activation, so the nodes are
       inserted before them. Activations already in Q/DQ form (embeddings) stay, but for an operator other than Add
       they are rounded again if their channels have separate scales.
    5. Not changed: adding a bias, a factor per channel (which becomes part of the following scale), the scores of an
       attention, which stay exact between two products, and the sums of a residual stream (`residual_streams.py`).

    Raises `GraphError` for an activation that was not calibrated.
    """

    name: ClassVar[str] = "quantize_activations"
    effect: ClassVar[Effect] = Effect.INT8
    where: Literal["everything", "products"] = "everything"

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        region, known_activations = model_region(model), activations(model)
        exact, streams = residual_streams(region) if self._everything else (set(), {})
        made: dict[tuple[ir.Value, int, bool], ir.Value] = {}
        wanted = [
            (node, index, bits)
            for node in region
            for index, bits in _wanted(node)
            if (bits == 8 or self._everything) and node.inputs[index] in known_activations - exact
        ]
        for node, index, bits in wanted:
            source = node.inputs[index]
            assert source is not None
            root, user = _root(source, node)
            known = quantized(root)
            streamed = node in streams
            if known is None or streamed or (known.per_tensor is None and node.op_type != "Add"):
                key = root, bits, streamed
                if key not in made:
                    made[key] = self._rounded(writer, root, bits, node, streams.get(node))
                    counts.add(f"{bits}-bit activations")
                _rewire(user, root, made[key])
        if self._everything:
            for value in _leaving(region):
                back = writer.quantize_dequantize(value, _scale(value, 16), 16)
                _rewire_head(value, back, set(region))
                counts.add("16-bit activations")

    def _rounded(
        self, writer: Writer, root: ir.Value, bits: int, node: ir.Node, stream: ResidualStream | None
    ) -> ir.Value:
        """The activation at `bits`, for `node` among others."""
        if stream is not None:
            return writer.quantize_dequantize(root, stream.scales(root), bits)
        if self._everything and bits == 8 and _is_gelu_for_linear(root):
            scale, zero_point = _asymmetric(root)
            return writer.quantize_dequantize(root, scale, bits, zero_point)
        return writer.quantize_dequantize(root, _scale(root, bits, _is_gate(node, root)), bits)

    @property
    def _everything(self) -> bool:
        return self.where == "everything"


def is_bias_add(node: ir.Node) -> bool:
    """Whether the node adds a constant of one axis to a matrix product."""
    if node.op_type != "Add":
        return False
    for first, second in ((0, 1), (1, 0)):
        product, bias = node.inputs[first], constant(node.inputs[second])
        producer = None if product is None else product.producer()
        if bias is not None and len(bias.shape) <= 1 and producer is not None and producer.op_type == "MatMul":
            return True
    return False


def is_mask_add(node: ir.Node) -> bool:
    """Whether the node adds a mask or a bias to the scores of an attention: it leads to a Softmax and nowhere else."""
    users = [user for user, _ in node.outputs[0].uses()]
    return node.op_type == "Add" and all(user.op_type == "Softmax" or is_mask_add(user) for user in users)


def _wanted(node: ir.Node) -> list[tuple[int, int]]:
    """Return which inputs of a node to round, and to how many bits."""
    rounded = [index for index, value in enumerate(node.inputs) if value is not None and _is_activation(value)]
    if node.op_type in PRODUCTS:
        return [(index, 8) for index in rounded]
    if node.op_type == "RotaryEmbedding":
        return [(0, 16)]
    if len(rounded) == 2 and node.op_type == "Mul":
        return [(index, 8 if _is_gate(node, value) else 16) for index, value in enumerate(node.inputs)]
    passing = node.op_type in EXACT or is_embedding(node) or is_scalar_product(node)
    scaling = any(channel_factors(node, value) is not None for value in node.inputs if value is not None)
    if passing or scaling or is_bias_add(node) or is_mask_add(node):
        return []
    return [(index, 16) for index in rounded]


def _is_gate(node: ir.Node, value: ir.Value | None) -> bool:
    """Whether the node multiplies a GELU with another activation: i-GELU has 8 bits, and a scale for each channel."""
    producer = None if value is None else value.producer()
    return node.op_type == "Mul" and producer is not None and producer.op_type == "Gelu"


def _is_activation(value: ir.Value) -> bool:
    if constant(value) is not None or value.dtype not in FLOATS:
        return False
    back = quantized(value)
    return back is None or constant(back.integers) is None


def _root(value: ir.Value, user: ir.Node) -> tuple[ir.Value, ir.Node]:
    """Return where to quantise `value`, before layout nodes and products with a scalar, and the users of that value.

    The values of an attention are quantised after their heads are joined, where they have channels.
    """
    root, consumer = value, user
    producer = root.producer()
    while producer is not None and (producer.op_type in LAYOUT or is_scalar_product(producer)):
        source = next(each for each in producer.inputs if each is not None and constant(each) is None)
        root, consumer, producer = source, producer, source.producer()
    if producer is not None and producer.op_type in PRODUCTS and len(_wanted(producer)) == 2:
        return value, user
    return root, consumer


def is_scalar_product(node: ir.Node) -> bool:
    """Whether the node multiplies or divides by one positive number."""
    if node.op_type not in ("Mul", "Div"):
        return False
    return scalar_factor(node) is not None


def scalar_factor(node: ir.Node) -> float | None:
    """Return the positive factor of a Mul or Div with a constant of one element."""
    for index in (1,) if node.op_type == "Div" else (0, 1):
        tensor = constant(node.inputs[index])
        if tensor is not None and tensor.size == 1 and (number := float(tensor.numpy().reshape(-1)[0])) > 0:
            return 1 / number if node.op_type == "Div" else number
    return None


def _rewire(user: ir.Node, old: ir.Value, new: ir.Value) -> None:
    for index, value in enumerate(user.inputs):
        if value is old:
            user.replace_input_with(index, new)


def _rewire_head(value: ir.Value, new: ir.Value, region: set[ir.Node]) -> None:
    """Connect the nodes after the encoder, and the graph's outputs, to `new`, which takes the name of `value`."""
    for user, index in list(value.uses()):
        if user not in region and user.op_type != "QuantizeLinear":
            user.replace_input_with(index, new)
    graph = value.graph
    if graph is not None and value.is_graph_output():
        name, value.name = value.name, f"{value.name}_float"
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = new
        new.name = name


def _leaving(region: list[ir.Node]) -> list[ir.Value]:
    """Return the floating-point values of the encoder that are used after it."""
    inside = set(region)
    return [
        value
        for node in region
        for value in node.outputs
        if value.dtype in FLOATS
        and quantized(value) is None
        and (
            value.is_graph_output()
            or any(user not in inside and user.op_type != "QuantizeLinear" for user, _ in value.uses())
        )
    ]


def _scale(value: ir.Value, bits: int, per_channel: bool = False) -> npt.NDArray[np.float32]:
    """Return the scale of a value at `bits`, or the scales [channels] that cover each channel's range."""
    if bits == 16 and (gelu := _only_gelu(value)) is not None:
        # i-GELU computes at this scale; values that come at it need no rounding of their own.
        return np.asarray(gelu_inner_scale(gelu_out_scale(gelu_scale(gelu))), np.float32)
    seen = calibrated(value)
    levels = 2 ** (bits - 1) - 1
    if per_channel and seen.channel_absmax is not None:
        largest = np.where(seen.channel_absmax > 0, seen.channel_absmax, seen.absmax or 1.0)
        return np.asarray(largest / levels, np.float32)
    return np.asarray((threshold(seen, bits) or 1.0) / levels, np.float32)


def _is_gelu_for_linear(value: ir.Value) -> bool:
    """Whether the value is a GELU's, maybe with a factor per channel, and goes to linear layers alone."""
    node = value.producer()
    if node is not None and node.op_type == "Mul":
        inner = next(
            (each for each in node.inputs if each is not None and channel_factors(node, each) is not None), None
        )
        node = None if inner is None or len(inner.uses()) != 1 else inner.producer()
    if node is None or node.op_type != "Gelu" or value.is_graph_output():
        return False
    return all(user.op_type == "MatMul" and index == 0 and _is_short(user.inputs[1]) for user, index in value.uses())


def _is_short(weight: ir.Value | None) -> bool:
    """Whether it is constant, in 8 bits, and of so few rows that a bias can take its sums times a zero point."""
    known = quantized(weight)
    tensor = None if known is None else constant(known.integers)
    return tensor is not None and len(tensor.numpy()) <= LONGEST


def _asymmetric(value: ir.Value) -> tuple[npt.NDArray[np.float32], int]:
    """Return the scale and the zero point with which 8 bits cover the calibrated range, up to the threshold."""
    seen = calibrated(value)
    limit = threshold(seen, 8) or 1.0
    low, high = min(max(-seen.minimum, 0.0), limit), min(max(seen.maximum, 0.0), limit)
    scale = np.float32((low + high or 1.0) / 255)
    return np.asarray(scale), round(float(low / scale)) - 128


def _only_gelu(value: ir.Value) -> ir.Node | None:
    users = [user for user, _ in value.uses()]
    return users[0] if len(users) == 1 and users[0].op_type == "Gelu" else None


def gelu_scale(gelu: ir.Node) -> float:
    """Return the scale at the output of a Gelu, so that 8 bits cover the calibrated maximum."""
    return (calibrated(gelu.outputs[0]).absmax or 1.0) / 127
