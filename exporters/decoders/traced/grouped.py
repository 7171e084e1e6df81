"""Weights that the checkpoint stores quantised: products are GroupMatMul, with the same codes, look-ups read codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight
from intaglio.plugins.bit_packing import WORD
from intaglio.plugins.function_body import FunctionBody
from intaglio.plugins.group_matmul.look_up import Codes, look_up
from intaglio.plugins.group_matmul.minimums import MINIMUMS, ONES
from intaglio.plugins.registry import DOMAIN, VERSION

FLOATS, WORDS, BYTES = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.UINT8


def keep_codes(model: ir.Model, weights: Mapping[ir.Value, GroupedWeight]) -> list[str]:
    """Replace each MatMul by a weight of `weights`, stored [K, N], by GroupMatMul, and let a Gather look up codes.

    Returns the names of weights that stay in floating point: in a graph of float16, which is for GPUs, those of groups
    below 32, and those that are looked up, as TensorRT looks up no bytes; and those of levels that the graph also uses
    otherwise. Raises `SourceError` for another weight that it also uses otherwise.
    """
    graph, left = model.graph, list[str]()
    names: dict[int, str] = {}  # of weights: a head may be tied to the embedding

    def constants_of(value: ir.Value, weight: GroupedWeight) -> dict[str, ir.Value]:
        name = names.setdefault(id(weight), str(value.name).removesuffix("_transposed"))
        return _constants(graph, name, weight)

    for value, weight in weights.items():
        users = [node for node, _ in value.uses()]
        if value.dtype != FLOATS and weight.group_size % WORD:  # the kernels of GPUs have no smaller groups in float16
            left.append(str(value.name))
            continue
        if all(node.op_type == "Gather" and node.inputs[0] is value for node in users):
            if value.dtype != FLOATS or weight.order is not None:
                left.append(str(value.name))
                continue
            _look_up(graph, users, constants_of(value, weight), weight)
            del graph.initializers[str(value.name)]
            continue
        if weight.levels is not None and not _only_multiplied(value, weight.shape):
            left.append(str(value.name))
            continue
        for node in products_by(value, weight.shape):
            _replace(graph, node, weight, constants_of(value, weight))
        del graph.initializers[str(value.name)]
    import_operators(graph)
    if weights:
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)  # of rows that are looked up
    return left


def import_operators(graph: ir.Graph) -> None:
    """State the version of our operators, where the graph has one."""
    if any(node.domain == DOMAIN for node in graph):
        graph.opset_imports[DOMAIN] = VERSION


def products_by(value: ir.Value, shape: tuple[int, int]) -> list[ir.Node]:
    """The MatMuls by a weight [N, K] = `shape`, stored transposed. Raises `SourceError` where it is used otherwise."""
    if not _only_multiplied(value, shape):
        raise SourceError(
            f"{value.name}: the graph does not only multiply by this quantised weight, so it cannot be kept. "
            "Export the checkpoint that it was made from."
        )
    return [node for node, _ in value.uses()]


def _only_multiplied(value: ir.Value, shape: tuple[int, int]) -> bool:
    """Whether all uses of a weight [N, K] = `shape` are MatMuls by its transpose."""
    uses = [node.op_type == "MatMul" and index == 1 for node, index in value.uses()]
    return all(uses) and list(value.shape or ()) == list(shape[::-1])


def _look_up(
    graph: ir.Graph, users: Sequence[ir.Node], constants: Mapping[str, ir.Value], weight: GroupedWeight
) -> None:
    """Replace Gathers of rows of `weight` by those of its codes, which are decoded then."""
    for node in users:
        (result,), indices = node.outputs, node.inputs[1]
        assert indices is not None
        body = FunctionBody()
        codes, zero_points = Codes(weight.bits, weight.shape[1]), constants.get("zero_points")
        stored = constants["packed"], constants["scales"], zero_points, constants.get(MINIMUMS), constants.get("levels")
        found = look_up(body, indices, *stored, codes)
        found.type, found.shape = result.type, result.shape
        for each in body.nodes:
            each.metadata_props.update(node.metadata_props)
        graph.insert_before(node, body.nodes)
        label, result.name = result.name, None
        result.replace_all_uses_with(found, replace_graph_outputs=True)
        found.name = label
        graph.remove(node, safe=True)


def _replace(graph: ir.Graph, node: ir.Node, weight: GroupedWeight, constants: Mapping[str, ir.Value]) -> None:
    x = node.inputs[0]
    assert x is not None
    if order := constants.get("order"):
        sorted_ = ir.node("Gather", [x, order], {"axis": -1})
        sorted_.outputs[0].type, sorted_.outputs[0].shape = x.type, x.shape
        sorted_.metadata_props.update(node.metadata_props)
        graph.insert_before(node, sorted_)
        x = sorted_.outputs[0]
    optional = [constants.get("zero_points"), constants.get("levels")]
    while optional and optional[-1] is None:
        optional.pop()
    inputs = [x, constants["packed"], constants["scales"], *optional]
    attributes = {
        "bits": weight.bits,
        "K": weight.shape[1],
        "group_size": weight.group_size,
        "activation_bits": weight.activation_bits,
    }
    product = ir.node("GroupMatMul", inputs, attributes, domain=DOMAIN)
    made = [product]
    if minimums := constants.get(MINIMUMS):
        made += _less(graph, x, product.outputs[0], minimums, weight.group_size)
    replace_product(graph, node, product, made)


def replace_product(graph: ir.Graph, node: ir.Node, product: ir.Node, made: Sequence[ir.Node]) -> None:
    """Replace `node` by the nodes `made`, among them the `product` by codes; the last one returns what it returned."""
    for each in made:
        each.metadata_props.update(node.metadata_props)
    for value in (product.outputs[0], made[-1].outputs[0]):
        value.type, value.shape = node.outputs[0].type, node.outputs[0].shape
    graph.insert_before(node, made)
    name, node.outputs[0].name = node.outputs[0].name, None
    node.outputs[0].replace_all_uses_with(made[-1].outputs[0], replace_graph_outputs=True)
    made[-1].outputs[0].name = name
    graph.remove(node, safe=True)


def _less(graph: ir.Graph, x: ir.Value, product: ir.Value, minimums: ir.Value, group_size: int) -> list[ir.Node]:
    """`product` less what the minimum of each group [groups, N] adds up to: it times the sum of the group's inputs."""
    assert minimums.shape is not None

    weight = str(minimums.name).removesuffix(MINIMUMS)

    def constant(array: npt.NDArray[Any], kind: str) -> ir.Value:
        return initializer(graph, ir.Tensor(array, name=f"{weight}{kind}"))

    axes = len(x.shape) if x.shape is not None else 2  # rows of an expert
    shape = np.array([0] * (axes - 1) + [minimums.shape[0], group_size], np.int64)
    cast = x.dtype is not None and x.dtype != FLOATS
    made = [ir.node("Cast", [x], {"to": FLOATS})] if cast else []
    made.append(ir.node("Reshape", [made[-1].outputs[0] if cast else x, constant(shape, f"groups{axes}")]))
    # Not ReduceSum, which ONNX Runtime 1.31 gets wrong for an expert without a row.
    ones = constant(np.ones((group_size, 1), np.float32), ONES)
    made.append(ir.node("MatMul", [made[-1].outputs[0], ones]))
    made.append(ir.node("Squeeze", [made[-1].outputs[0], constant(np.array([-1], np.int64), "last")]))
    made.append(ir.node("MatMul", [made[-1].outputs[0], minimums]))
    if cast:
        made.append(ir.node("Cast", [made[-1].outputs[0]], {"to": x.dtype}))
    return [*made, ir.node("Sub", [product, made[-1].outputs[0]])]


def _constants(graph: ir.Graph, name: str, weight: GroupedWeight) -> dict[str, ir.Value]:
    """The inputs of GroupMatMul by their names, read from the checkpoint when the graph is written."""
    channels, inputs = weight.shape
    groups = inputs // weight.group_size
    kinds = {"packed": (WORDS, [channels, inputs * weight.bits // WORD]), "scales": (FLOATS, [channels, groups])}
    if weight.levels is None and (weight.read().zero_points != 2 ** (weight.bits - 1)).any():
        kinds["zero_points"] = (BYTES, [channels, groups])
    if weight.has_minimums:
        kinds[MINIMUMS] = (FLOATS, [groups, channels])
    made = {}
    for kind, (dtype, shape) in kinds.items():

        def read(kind: str = kind) -> npt.NDArray[Any]:
            found: npt.NDArray[Any] = getattr(weight.read(), kind)
            return found.T if kind == MINIMUMS else found

        made[kind] = read_later(graph, f"{name}.{kind}", dtype, shape, read)
    if weight.levels is not None:
        made["levels"] = initializer(graph, ir.Tensor(weight.levels, name=f"{name}.levels"))
    if weight.order is not None:
        made["order"] = initializer(graph, ir.Tensor(weight.order, name=f"{name}.order"))
    return made


def read_later(
    graph: ir.Graph, name: str, dtype: ir.DataType, shape: Sequence[int], read: Callable[[], npt.NDArray[Any]]
) -> ir.Value:
    """The initializer `name` with what `read` returns when the graph is written."""

    def tensor() -> ir.TensorProtocol:
        return ir.Tensor(np.ascontiguousarray(read()), name=name)

    return initializer(graph, ir.LazyTensor(tensor, dtype, ir.Shape(shape), name=name))


def initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """The initializer of this name, made of `tensor` where a weight is not used before: several nodes may use one."""
    if (known := graph.initializers.get(str(tensor.name))) is not None:
        return known
    value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
    value.const_value = tensor
    graph.register_initializer(value)
    return value
