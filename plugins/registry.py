"""OPS: the explicit list of all custom operators of this version."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from intaglio.plugins.contract import Operator

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

DOMAIN = "intaglio"
CUDA_DOMAIN = f"{DOMAIN}.cuda"  # of nodes with CUDA kernels for ONNX Runtime, see plugins/ort/cuda_nodes.py
VERSION = 1
PACKED = frozenset(["GroupMatMul", "LutMatMul"])  # products by weights of few bits, `packed` [outputs, words]

# Operators that a graph gets when ONNX Runtime opens it on a CPU, and no file has; TensorRT's engines get some of them.
UNPLUGGED = ("LowRankMatMul", "PackedMatMul")  # the others
OF_SESSIONS = ("CachedAttention", "QuantizeCache", *UNPLUGGED)

# The folder of each operator, whose spec.py has the object `OPERATOR`.
FOLDERS = (
    "requantize",
    "int_add",
    "int_gelu",
    "int_softmax",
    "int_layer_norm",
    "int_linear",
    "int_matmul",
    "int_attention",
    "int_rotary",
    "lut_matmul",
    "csr_matmul",
    "group_matmul",
    "quantize_cache",
    "cached_attention",
    "low_rank_matmul",
    "packed_matmul",
)


def _operators() -> Iterable[Operator]:
    return (import_module(f"intaglio.plugins.{folder}.spec").OPERATOR for folder in FOLDERS)


OPS: dict[str, Operator] = {operator.name: operator for operator in _operators()}


def custom_operators(nodes: Iterable[onnx.NodeProto | ir.Node]) -> list[str]:
    """The names of the operators of our domain among `nodes`, sorted."""
    return sorted({node.op_type for node in nodes if node.domain == DOMAIN})
