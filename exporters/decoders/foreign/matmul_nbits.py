"""`MatMulNBits` of ONNX Runtime becomes GroupMatMul, with the same codes, scales and zero points."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, Groups
from intaglio.exporters.decoders.foreign.norms import replace
from intaglio.exporters.decoders.foreign.original import EXACT
from intaglio.exporters.decoders.foreign.site import Nodes, given
from intaglio.exporters.decoders.traced.grouped import keep_codes
from intaglio.plugins.bit_packing import WORD, pack
from intaglio.plugins.group_matmul.signature import smallest_group

BITS = (2, 4, 8)


def keep_nbits(model: ir.Model, nodes: Nodes, dtype: ir.DataType) -> list[str]:
    """Replace each MatMulNBits by GroupMatMul; `dtype`: of their inputs. Returns why some are left."""
    graph = model.graph
    weights: dict[ir.Value, GroupedWeight] = {}
    placed: dict[str, ir.Value] = {}
    left: dict[str, list[str]] = {}
    for node in list(graph):
        if (node.domain, node.op_type) != ("com.microsoft", "MatMulNBits"):
            continue
        if reason := _unfit(node, dtype):
            left.setdefault(reason, []).append(str(node.inputs[1].name))  # type: ignore[union-attr]
            node.attributes.add(ir.AttrInt64("accuracy_level", EXACT))
            continue
        weight = _weight(node)
        stored = str(node.inputs[1].name)  # type: ignore[union-attr]
        if stored not in placed:
            channels, inputs = weight.shape
            placed[stored] = ir.Value(
                name=stored.removesuffix("_Q4").removesuffix("_quant") + ".codes",
                shape=ir.Shape([inputs, channels]),
                type=ir.TensorType(dtype),
            )
            placed[stored].const_value = ir.LazyTensor(_no_numbers, ir.DataType.FLOAT, placed[stored].shape)  # type: ignore[arg-type]
            graph.register_initializer(placed[stored])
            weights[placed[stored]] = weight
        with nodes.before(node):
            found = nodes.op("MatMul", [node.inputs[0], placed[stored]])
            found.type, found.shape = node.outputs[0].type, node.outputs[0].shape
            if (bias := given(node, 5)) is not None:
                found = nodes.op("Add", [found, bias])
        replace(graph, node, {0: found})
    keep_codes(model, weights)
    return [
        f"{len(names)} products stay as ONNX Runtime's MatMulNBits, in float32 (accuracy_level {EXACT}): {reason}"
        for reason, names in left.items()
    ]


def _no_numbers() -> ir.TensorProtocol:
    raise AssertionError("the weight's codes take its place")


def _unfit(node: ir.Node, dtype: ir.DataType) -> str:
    """Why the weight of a MatMulNBits is none of GroupMatMul; "" if it is."""
    bits, size, width = (node.attributes[name].as_int() for name in ("bits", "block_size", "K"))
    zeros = given(node, 3)
    if bits not in BITS:
        return f"{bits} bits"
    if size % smallest_group(bits) or width % WORD or width % size:
        return f"groups of {size} for {width} inputs"
    if size % WORD and dtype != ir.DataType.FLOAT:
        return f"groups of {size} in {dtype.numpy().name}"
    if given(node, 4) is not None:
        return "g_idx"
    if zeros is not None and zeros.dtype != ir.DataType.UINT8:
        return "zero points in floating point"
    if any(value is not None and value.const_value is None for value in node.inputs[1:4]):
        return "weights that are computed"
    return ""


def _weight(node: ir.Node) -> GroupedWeight:
    attributes = node.attributes
    bits, size, width, channels = (attributes[name].as_int() for name in ("bits", "block_size", "K", "N"))
    stored, scales, zeros = (
        value.const_value if value is not None else None for value in (*node.inputs[1:3], given(node, 3))
    )
    name, groups = str(node.inputs[1].name), width // size  # type: ignore[union-attr]
    expected: Mapping[str, tuple[ir.TensorProtocol | None, int]] = {
        "weights": (stored, channels * width * bits // 8),
        "scales": (scales, channels * groups),
        "zero points": (zeros, channels * -(-groups * bits // 8)),
    }
    for what, (tensor, size_) in expected.items():
        if tensor is not None and tensor.size != size_:
            raise SourceError(f"the {what} of {name} are {tensor.size} numbers, expected {size_}")
    assert stored is not None and scales is not None

    def read() -> Groups:
        codes = _unpacked(stored.numpy(), bits, channels)
        points = np.full((channels, groups), 2 ** (bits - 1), np.uint8)
        if zeros is not None:
            points = _unpacked(zeros.numpy(), bits, channels)[:, :groups]
        return Groups(pack(codes, bits), scales.numpy().astype(np.float32).reshape(channels, groups), points)

    return GroupedWeight((channels, width), bits, size, read)


def _unpacked(array: npt.NDArray[np.generic], bits: int, rows: int) -> npt.NDArray[np.uint8]:
    """Numbers of `bits` bits, the lowest bits of a byte first: uint8 [rows, numbers]."""
    stored = array.view(np.uint8).reshape(rows, -1, 1)
    numbers = stored >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8(2**bits - 1)
    return np.ascontiguousarray(numbers.reshape(rows, -1))
