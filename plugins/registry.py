"""OPS: the one explicit list of the custom operators that this version knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from intaglio.plugins.contract import Operator
from intaglio.plugins.csr_matmul.spec import CsrMatMul
from intaglio.plugins.group_matmul.spec import GroupMatMul
from intaglio.plugins.int_add.spec import IntAdd
from intaglio.plugins.int_attention.spec import IntAttention
from intaglio.plugins.int_gelu.spec import IntGelu
from intaglio.plugins.int_layer_norm.spec import IntLayerNorm
from intaglio.plugins.int_linear.spec import IntLinear
from intaglio.plugins.int_matmul.spec import IntMatMul
from intaglio.plugins.int_softmax.spec import IntSoftmax
from intaglio.plugins.lut_matmul.spec import LutMatMul
from intaglio.plugins.requantize.spec import Requantize

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

DOMAIN = "intaglio"
VERSION = 1


OPS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        Requantize(),
        IntAdd(),
        IntGelu(),
        IntSoftmax(),
        IntLayerNorm(),
        IntLinear(),
        IntMatMul(),
        IntAttention(),
        LutMatMul(),
        CsrMatMul(),
        GroupMatMul(),
    )
}


def custom_operators(nodes: Iterable[onnx.NodeProto | ir.Node]) -> list[str]:
    """The names of the operators of our domain among `nodes`, sorted."""
    return sorted({node.op_type for node in nodes if node.domain == DOMAIN})
